//! Segments without a flow that may be of connections of the kernel: they are handed back to it.
//!
//! A frame can come to the service although it is the kernel's: it was in a ring when the kernel
//! got its connection, it answers a SYN cookie of the kernel, or the kernel answered for a while
//! because a core showed no life. The service would answer with a RST. Where the driver can hand
//! frames to the kernel, it gets the segment instead: the kernel has the connection, or sends the
//! RST itself. See `docs/design/claims.md`.

use tidelane_engine::SegmentOut;
use tidelane_packet_io::PacketIo;
use tidelane_wire::{
    Endpoint, FlowKey, TcpFlags, checksum, parse_frame, protocol, split_tcp, tcp_checksum_ok,
    write_tcp_checksum,
};

use crate::{
    Host, HostRequest,
    io::{HostIo, MEMORY_LINK},
};

/// Frames that wait for the driver. Segments beyond are answered with a RST.
const FRAMES_MAX: usize = 256;

/// Segments that the kernel is to have.
#[derive(Debug, Default)]
pub(crate) struct HandBack {
    /// The driver hands frames to the kernel.
    enabled: bool,
    /// Of the frames that are being looked at: their segments have no flow.
    keys: Vec<FlowKey>,
    /// For the driver.
    frames: Vec<Stray>,
}

/// A frame for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The connection of its segment.
    pub key: FlowKey,
    /// The frame, whose checksums are complete.
    pub frame: Vec<u8>,
}

impl HandBack {
    fn has_room(&self) -> bool {
        self.enabled && self.frames.len() + self.keys.len() < FRAMES_MAX
    }

    /// Returns true if there are frames to keep among those that are being looked at.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Keeps the frames whose segments have no flow. They go to the kernel with their checksums.
    #[cold]
    pub(crate) fn keep<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        for frame in frames {
            if self.frames.len() < FRAMES_MAX
                && let Some(stray) = Stray::of(frame)
                && self.keys.contains(&stray.key)
            {
                self.frames.push(stray);
            }
        }
        self.keys.clear();
    }
}

impl Stray {
    /// A frame with a TCP segment, whose sender may have left the checksum to the link. `None` for
    /// a SYN: the kernel would accept what the service refused.
    fn of(frame: &[u8]) -> Option<Self> {
        let packet = parse_frame(frame).ok()?;
        if packet.protocol != protocol::TCP {
            return None;
        }
        let parts = split_tcp(packet.payload).ok()?;
        let flags = parts.segment().flags;
        if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
            return None;
        }
        let (peer, local) = parts.ports();
        let key = FlowKey {
            local: Endpoint::new(packet.dst, local),
            peer: Endpoint::new(packet.src, peer),
        };
        let mut whole = frame.to_vec();
        if !tcp_checksum_ok(packet.src, packet.dst, packet.payload, false) {
            let len = packet.payload.len();
            let start = packet.payload.as_ptr().addr() - frame.as_ptr().addr();
            let pseudo = checksum::pseudo_header(packet.src, packet.dst, protocol::TCP, len as u32);
            write_tcp_checksum(
                &mut whole[start..start + len],
                pseudo,
                checksum::Sum::default(),
            );
        }
        Some(Self { key, frame: whole })
    }
}

impl<P: PacketIo> HostIo<P> {
    /// Returns true if the segment that this RST answers goes to the kernel instead: one that
    /// acknowledges, for the port of a listener. (A RST that answers a SYN acknowledges it,
    /// RFC 9293 §3.10.7.1: the service has refused the client.)
    #[cold]
    pub(crate) fn leaves_to_kernel(&mut self, out: &SegmentOut) -> bool {
        let port = out.key.local.port;
        let is_reset = out.flags == TcpFlags::RST && out.link != MEMORY_LINK;
        let listens = || self.listeners.iter().any(|(_, l)| l.local.port == port);
        let leaves = is_reset && self.hand_back.has_room() && listens();
        if leaves {
            self.hand_back.keys.push(out.key);
        }
        leaves
    }
}

impl<P: PacketIo> Host<P> {
    /// The driver hands frames of [`take_strays`](Self::take_strays) to the kernel.
    pub fn enable_hand_back(&mut self) {
        self.io.hand_back.enabled = true;
    }

    /// Frames whose segments have no flow here: the kernel is to receive them.
    pub fn take_strays(&mut self) -> Vec<Stray> {
        std::mem::take(&mut self.io.hand_back.frames)
    }

    /// Frames that were looked at go to the kernel, if their segments have no flow.
    #[cold]
    pub(crate) fn hand_back<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        let before = self.io.hand_back.frames.len();
        self.io.hand_back.keep(frames);
        if before == 0 && !self.io.hand_back.frames.is_empty() {
            self.io.request(HostRequest::Strays);
        }
    }
}
