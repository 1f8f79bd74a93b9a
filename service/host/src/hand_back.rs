//! The hand-back: the kernel gets a received segment for which the service has no flow (no
//! connection in its TCP engine), because the kernel may have the connection.
//!
//! A frame of a kernel connection can reach the service in three cases:
//!
//! - The frame was in an RX ring when the kernel accepted the connection.
//! - The frame answers a SYN cookie of the kernel.
//! - The kernel accepted the connection while a core of the service did not respond.
//!
//! Without the hand-back, the service would answer the segment with a RST. If the driver (the
//! daemon) can inject frames into the kernel, the kernel gets the segment instead. A kernel without
//! the connection then sends the RST. See `docs/design/claims.md`.

use tidelane_engine::SegmentOut;
use tidelane_wire::{
    Endpoint, FlowKey, RawSegment, TcpFlags, checksum, parse_frame, protocol, tcp_checksum_ok,
    write_tcp_checksum,
};

use crate::{
    HostRequest,
    driver_requests::DriverRequests,
    links::{LOCAL_PATH_LINK, MUX_LINK},
    listeners::Listeners,
};

/// Limit of frames that wait for the driver. The service answers further segments with a RST.
const FRAMES_MAX: usize = 256;

/// The received segments that have no flow and that the driver passes to the kernel.
#[derive(Debug, Default)]
pub(crate) struct HandBack {
    /// True if the driver can inject frames into the kernel.
    enabled: bool,
    /// 4-tuples of the segments that the kernel gets from the present burst. A burst has the frames
    /// that this core received together from a NIC queue or from another core.
    keys: Vec<FlowKey>,
    /// Frames that wait for the driver.
    frames: Vec<Stray>,
}

/// A frame that the driver injects into the kernel, because the service has no flow for the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The 4-tuple of the frame's segment.
    pub key: FlowKey,
    /// The frame, whose TCP checksum is complete.
    pub frame: Vec<u8>,
}

impl HandBack {
    fn has_room(&self) -> bool {
        self.enabled && self.frames.len() + self.keys.len() < FRAMES_MAX
    }

    /// Returns true if the kernel gets the received segment that the RST `out` would answer. The
    /// caller then does not send the RST. For the result true, the hand-back must be enabled and
    /// have room for the frame. The segment must have come from the wire, must have ACK, and must
    /// be for the port of a listener. A RST with ACK answers a segment without ACK, for example a
    /// refused SYN (RFC 9293 §3.10.7.1). The service sends this RST.
    #[cold]
    pub(crate) fn takes(&mut self, out: &SegmentOut, listeners: &Listeners) -> bool {
        let port = out.key.local.port;
        let from_wire = out.link != LOCAL_PATH_LINK && out.link != MUX_LINK;
        let is_reset = out.flags == TcpFlags::RST && from_wire;
        let listens = || listeners.iter().any(|(_, l)| l.local.port == port);
        let takes = is_reset && self.has_room() && listens();
        if takes {
            self.keys.push(out.key);
        }
        takes
    }

    /// Allows the host to keep frames for the driver.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// Takes the frames that wait for the driver.
    pub fn take(&mut self) -> Vec<Stray> {
        std::mem::take(&mut self.frames)
    }

    /// Returns true if the host has to keep frames of the present burst for the driver.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Copies the frames that the kernel gets from a processed burst, and completes the TCP
    /// checksums of the copies. If no frame waited before, asks the driver to take the frames.
    /// `partial_allowed` is true if the link may deliver segments with incomplete checksums.
    #[cold]
    pub(crate) fn keep<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a [u8]>,
        partial_allowed: bool,
        requests: &mut DriverRequests,
    ) {
        let before = self.frames.len();
        for frame in frames {
            if self.frames.len() < FRAMES_MAX
                && let Some(stray) = Stray::of(frame, partial_allowed)
                && self.keys.contains(&stray.key)
            {
                self.frames.push(stray);
            }
        }
        self.keys.clear();
        if before == 0 && !self.frames.is_empty() {
            requests.push(HostRequest::Strays);
        }
    }
}

impl Stray {
    /// Copies a frame with a TCP segment, and completes the TCP checksum of the copy. Returns
    /// `None` for other frames, and for a corrupt segment. Also returns `None` for a SYN without
    /// ACK, because the kernel would accept a connection that the service has refused.
    fn of(frame: &[u8], partial_allowed: bool) -> Option<Self> {
        let packet = parse_frame(frame).ok()?;
        if packet.protocol != protocol::TCP {
            return None;
        }
        let raw = RawSegment::new_checked(packet.payload).ok()?;
        let flags = raw.segment().flags;
        if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
            return None;
        }
        let (peer, local) = raw.ports();
        let key = FlowKey {
            local: Endpoint::new(packet.dst, local),
            peer: Endpoint::new(packet.src, peer),
        };
        let is_ok = |partial| tcp_checksum_ok(packet.src, packet.dst, packet.payload, partial);
        let is_complete = is_ok(false);
        if !is_complete && !is_ok(partial_allowed) {
            return None;
        }
        let mut whole = frame.to_vec();
        if !is_complete {
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
