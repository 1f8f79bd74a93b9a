//! The connections that a killed service leaves behind, and the reset of their peers. The restorer,
//! a process that outlives the service ([`crate::restorer`]), calls this module. The connections
//! are in the journal, which is memory that the service and the restorer share.
//!
//! A peer that waits for an answer sends nothing that the kernel could answer with a RST. Each peer
//! therefore gets an ACK with a sequence number that the peer has already received, as in a
//! keepalive probe. The peer answers with an ACK (RFC 9293 §3.10.7.4), for which this host has no
//! connection: the kernel sends the RST with the exact sequence number that the peer expects. If a
//! new service has meanwhile claimed the port (the port's packets go to the service instead of the
//! kernel), the service sends the same RST.
//!
//! ```text
//!   this process ── ACK, SEQ = SND.UNA - 1 ──> peer
//!         kernel <── ACK, SEG.ACK = RCV.NXT ── peer
//!         kernel ── RST, SEQ = SEG.ACK ──────> peer: ECONNRESET
//! ```
//!
//! SND.UNA is a variable of the killed service's connection, and RCV.NXT is a variable of the peer.
//!
//! If a peer has meanwhile opened a connection with the same 4-tuple to the kernel, the peer treats
//! the ACK as an old duplicate. The new connection continues, and its endpoints exchange one
//! duplicate ACK.

use std::{
    io,
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with},
};
use tidelane_host::{JournalEntry, JournalMemory};
use tidelane_wire::{
    ETHERNET_HEADER_LEN, Ecn, FRAME_HEADERS_LEN_MAX, HeaderTemplate, MacAddress, SegmentHeader,
    TCP_HEADER_LEN_MAX, TcpFlags, TcpOptions, Timestamps, checksum::Sum, emit_tcp,
    write_tcp_checksum,
};

use crate::{clock, sys};

/// Number of segments between two pauses.
const BURST: usize = 64;
/// Pause between two bursts. The pause leaves room on the link for other traffic, because each ACK
/// causes an ACK of the peer and a RST.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum length in bytes of a frame: a segment with its IP header, and a link header that is not
/// sent.
const FRAME_MAX: usize = FRAME_HEADERS_LEN_MAX + TCP_HEADER_LEN_MAX;
/// The window of the segments. The value has no effect: a peer ignores the window of a segment
/// whose sequence number is below the peer's RCV.NXT.
const WINDOW: u16 = u16::MAX;

/// The journal of a service's connections, and the raw sockets that reach the peers after the
/// service was killed.
#[derive(Debug)]
pub struct Orphans {
    journal: JournalMemory,
    /// Raw socket of IPv4. `None` if the kernel has no IPv4.
    v4: Option<OwnedFd>,
    /// Raw socket of IPv6. `None` if the kernel has no IPv6.
    v6: Option<OwnedFd>,
}

impl Orphans {
    /// Opens sockets for connections of `journal` over `interface`. The caller must have
    /// CAP_NET_RAW.
    pub fn of(journal: JournalMemory, interface: &str) -> io::Result<Self> {
        let open = |family| {
            let flags = SocketFlags::CLOEXEC;
            // An IPPROTO_RAW socket sends packets that include their IP headers, and receives
            // nothing.
            let opened = socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW));
            let socket = match opened {
                Err(Errno::AFNOSUPPORT) => return Ok(None),
                opened => opened?,
            };
            match sys::bind_to_interface(socket.as_fd(), interface) {
                // The service itself reports a missing interface when it starts.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                bound => bound?,
            }
            Ok::<_, io::Error>(Some(socket))
        };
        Ok(Self {
            v4: open(AddressFamily::INET)?,
            v6: open(AddressFamily::INET6)?,
            journal,
        })
    }

    /// Returns the descriptors of the raw sockets, which the restorer must keep open.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.v4.iter().chain(&self.v6);
        sockets.map(|socket| socket.as_fd())
    }

    /// Sends each peer an ACK, so that the peer's answer makes the kernel reset the connection.
    /// Returns the number of connections. The caller must first wait for the end of the service,
    /// because the service would otherwise answer the peer.
    pub fn probe_peers(&self) -> usize {
        let mut count = 0;
        for entry in self.journal.entries() {
            self.probe_peer(&entry);
            count += 1;
            if count % BURST == 0 {
                thread::sleep(PAUSE);
            }
        }
        count
    }

    /// Sends the ACK to one peer. Ignores a failed send, because the restorer calls
    /// [`probe_peers`](Self::probe_peers) several times.
    fn probe_peer(&self, entry: &JournalEntry) {
        let mut frame = [0; FRAME_MAX];
        let Some(packet) = write_packet(&mut frame, entry) else {
            return;
        };
        let peer = entry.key.peer.addr;
        // A raw socket has no port.
        let (socket, to) = match peer.as_v4() {
            Some(v4) => (&self.v4, SocketAddr::V4(SocketAddrV4::new(v4.into(), 0))),
            None => {
                let v6 = SocketAddrV6::new(peer.0.into(), 0, 0, 0);
                (&self.v6, SocketAddr::V6(v6))
            }
        };
        if let Some(socket) = socket {
            let _ = sendto(socket, packet, SendFlags::NOSIGNAL, &to);
        }
    }
}

/// Writes the packet for the peer of a connection into `frame`. Returns the packet without the link
/// header, or `None` if the ends of the connection have different IP versions.
fn write_packet<'f>(frame: &'f mut [u8; FRAME_MAX], entry: &JournalEntry) -> Option<&'f [u8]> {
    let JournalEntry { key, .. } = entry;
    let nobody = MacAddress::default();
    let template = HeaderTemplate::new(nobody, nobody, key.local.addr, key.peer.addr)?;
    let now_ms = (clock::now().0 / 1_000_000) as u32;
    // RFC 7323 §3.2: peers may drop a segment without timestamps.
    let timestamps = entry.timestamp_offset.map(|offset| Timestamps {
        tsval: now_ms.wrapping_add(offset),
        tsecr: 0,
    });
    let header = SegmentHeader {
        src_port: key.local.port,
        dst_port: key.peer.port,
        seq: entry.snd_una.sub(1),
        ack: entry.rcv_nxt,
        flags: TcpFlags::ACK,
        wnd: WINDOW,
        urgent: 0,
        options: TcpOptions {
            timestamps,
            ..TcpOptions::default()
        },
    };
    let mut segment = [0; TCP_HEADER_LEN_MAX];
    let len = emit_tcp(&mut segment, &header);
    let segment = segment.get_mut(..len)?;
    let pseudo = template.pseudo_header(len as u16);
    write_tcp_checksum(segment, pseudo, Sum::default());
    let headers = template.write(&mut frame[..], len as u16, Ecn::NotEct, 0);
    frame
        .get_mut(headers..headers + len)?
        .copy_from_slice(segment);
    frame.get(ETHERNET_HEADER_LEN..headers + len)
}

#[cfg(test)]
mod tests {
    use tidelane_wire::{Endpoint, FlowKey, IpAddress, SeqNumber, parse_frame, parse_tcp};

    use super::*;

    fn entry(local: IpAddress, peer: IpAddress) -> JournalEntry {
        JournalEntry {
            key: FlowKey {
                local: Endpoint::new(local, 80),
                peer: Endpoint::new(peer, 5000),
            },
            snd_una: SeqNumber(0),
            rcv_nxt: SeqNumber(77),
            timestamp_offset: Some(5),
        }
    }

    #[test]
    fn rfc9293_section_3_8_4_the_keepalive_segment_is_before_snd_nxt() {
        let v6 = |last| {
            let mut bytes = [0; 16];
            (bytes[0], bytes[15]) = (0xfd, last);
            IpAddress(bytes)
        };
        let v4 = |last| IpAddress::from_v4([10, 0, 0, last]);
        for entry in [entry(v4(1), v4(2)), entry(v6(1), v6(2))] {
            let mut frame = [0; FRAME_MAX];
            let len = write_packet(&mut frame, &entry).expect("a packet").len();
            let packet = parse_frame(&frame[..ETHERNET_HEADER_LEN + len]).expect("whole");
            assert_eq!(packet.src, entry.key.local.addr);
            assert_eq!(packet.dst, entry.key.peer.addr);
            let (src, dst) = (packet.src, packet.dst);
            assert!(tidelane_wire::tcp_checksum_ok(
                src,
                dst,
                packet.payload,
                false
            ));
            let segment = parse_tcp(packet.payload).expect("a segment");
            assert_eq!((segment.src_port, segment.dst_port), (80, 5000));
            assert_eq!(segment.seq, SeqNumber(u32::MAX));
            assert_eq!((segment.ack, segment.flags), (SeqNumber(77), TcpFlags::ACK));
            assert_eq!(segment.payload.len(), 0);
            assert!(segment.options.timestamps.is_some());
        }
    }
}
