//! The frames that hostile programs send through their mux ports: valid, forged and random frames.
//! A mux port is a pair of packet rings through which a program with a TCP/IP stack of its own
//! shares the NIC.

use tidelane_netem::Rng;
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TCP_HEADER_LEN,
    TcpFlags, TcpOptions, checksum, emit_tcp, write_tcp_checksum,
};

use super::frame::{TCP, UDP};

/// Offset of the protocol in a frame with an IPv4 packet.
const V4_PROTOCOL: usize = 14 + 9;
/// Offset of the next header in a frame with an IPv6 packet.
const V6_PROTOCOL: usize = 14 + 6;

/// A 3-tuple: protocol, local address and local port.
pub type Tuple = (u8, Endpoint);

/// Fields of a frame that a hostile program chooses.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// Source link address.
    pub mac: MacAddress,
    /// Destination link address.
    pub dst_mac: MacAddress,
    /// Source address and port, with the protocol.
    pub src: Tuple,
    /// Destination address and port.
    pub dst: Endpoint,
    /// TCP flags of the segment. Unused in a UDP datagram.
    pub flags: TcpFlags,
    /// Length of the payload in bytes.
    pub payload_len: usize,
}

impl Draft {
    /// Returns the frame with correct lengths and checksums. A random sequence number and payload
    /// make the frame unique. Returns `None` if the addresses have different IP versions.
    pub fn frame(&self, rng: &mut Rng) -> Option<Vec<u8>> {
        let (protocol, src) = self.src;
        let template = HeaderTemplate::new(self.mac, self.dst_mac, src.addr, self.dst.addr)?;
        let header_len = if protocol == TCP { TCP_HEADER_LEN } else { 8 };
        let len = header_len + self.payload_len;
        let mut frame = vec![0; template.headers_len() + len];
        let start = template.write(&mut frame, len as u16, Ecn::NotEct, rng.next_u32() as u16);
        let (header, payload) = frame[start..].split_at_mut(header_len);
        rng.fill(payload);
        if protocol == TCP {
            let fields = SegmentHeader {
                src_port: src.port,
                dst_port: self.dst.port,
                seq: SeqNumber(rng.next_u32()),
                ack: SeqNumber(rng.next_u32()),
                flags: self.flags,
                wnd: rng.next_u32() as u16,
                urgent: 0,
                options: TcpOptions::NONE,
            };
            emit_tcp(header, &fields);
            let pseudo = template.pseudo_header(len as u16);
            write_tcp_checksum(header, pseudo, checksum::sum(payload));
        } else {
            // A UDP header has no sequence number. Only the random payload makes the datagram
            // unique.
            header[..2].copy_from_slice(&src.port.to_be_bytes());
            header[2..4].copy_from_slice(&self.dst.port.to_be_bytes());
            header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            into_udp(&mut frame, (src.addr, self.dst.addr), start);
        }
        Some(frame)
    }
}

/// Completes a frame with a UDP header: changes the protocol in the IP header from TCP to UDP, and
/// writes the checksums. `start` is the offset of the UDP header in bytes.
fn into_udp(frame: &mut [u8], (src, dst): (IpAddress, IpAddress), start: usize) {
    if src.is_v4() {
        frame[V4_PROTOCOL] = UDP;
        frame[24..26].fill(0);
        let checksum = checksum::sum(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    } else {
        frame[V6_PROTOCOL] = UDP;
    }
    let len = (frame.len() - start) as u32;
    let pseudo = checksum::pseudo_header(src, dst, UDP, len);
    let checksum = pseudo.plus(checksum::sum(&frame[start..])).checksum();
    // Zero would mean that the datagram has no checksum (RFC 768).
    let checksum = if checksum == 0 { u16::MAX } else { checksum };
    frame[start + 6..start + 8].copy_from_slice(&checksum.to_be_bytes());
}

/// Changes a valid frame with a TCP segment into a frame that no mux port may send.
pub fn spoil(rng: &mut Rng, frame: &mut Vec<u8>) {
    let is_v4 = frame[12] == 8;
    let transport = if is_v4 { 34 } else { 54 };
    match rng.below(6) {
        0 => {
            // One wrong bit that a checksum covers. The IPv6 header has no checksum, so the bit
            // lies after this header.
            let first = if is_v4 { 14 } else { transport };
            let at = rng.between(first as u64, frame.len() as u64 - 1) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
        1 => {
            let len = rng.below(frame.len() as u64) as usize;
            frame.truncate(len);
        }
        2 => {
            let len = rng.below(200) as usize;
            frame.resize(len, 0);
            rng.fill(frame);
            // Wrong source link address.
            if let Some(byte) = frame.get_mut(6) {
                *byte = 0xff;
            }
        }
        3 if is_v4 => {
            // A fragment with a correct header checksum.
            frame[20..22].copy_from_slice(&[0x20, rng.below(8) as u8]);
            rewrite_v4_checksum(frame);
        }
        4 => {
            // Another protocol: ICMP, ICMPv6, SCTP, IPv4 or IPv6 within the packet, or GRE.
            let at = if is_v4 { V4_PROTOCOL } else { V6_PROTOCOL };
            frame[at] = [1, 58, 132, 4, 41, 47][rng.below(6) as usize];
            if is_v4 {
                rewrite_v4_checksum(frame);
            }
        }
        _ => {
            // A data offset below the minimum header, or beyond the segment.
            frame[transport + 12] = [0, 0x40, 0xf0][rng.below(3) as usize];
            let short = transport + TCP_HEADER_LEN;
            if frame[transport + 12] == 0xf0 && frame.len() >= transport + 60 {
                frame.truncate(short);
            }
        }
    }
}

fn rewrite_v4_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let checksum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}
