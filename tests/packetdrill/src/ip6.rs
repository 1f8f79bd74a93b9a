//! Parses and emits IPv6 packets. Extension headers are not supported, because no script uses an
//! extension header.

use tidelane_engine::{
    Arrival, Ecn, Endpoint, FlowKey, IcmpError, IcmpErrorKind, IpAddress, IpFields, SegmentOut,
    SeqNumber,
};
use tidelane_wire::{
    DropReason, SegmentHeader, TCP_HEADER_LEN_MAX, checksum, emit_tcp, parse_tcp, protocol,
    tcp_checksum_ok, write_tcp_checksum,
};

use crate::inbound::{Inbound, LINK};

/// Length of the IPv6 header in bytes.
const HEADER_LEN: usize = 40;
/// Next header value of ICMPv6.
const ICMP6: u8 = 58;

/// The parsed fields of an IPv6 header (RFC 8200 §3).
struct Header {
    traffic_class: u8,
    /// Payload length in bytes.
    len: usize,
    /// Next header: the protocol of the payload.
    next: u8,
    src: IpAddress,
    dst: IpAddress,
}

/// Parses the IPv6 header. Returns the header and the bytes after it.
fn header(bytes: &[u8]) -> Result<(Header, &[u8]), DropReason> {
    let (fixed, rest) = bytes
        .split_first_chunk::<HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    let [first, second, ..] = *fixed;
    if first >> 4 != 6 {
        return Err(DropReason::BadIpHeader);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&fixed[at..at + 16]);
        IpAddress(octets)
    };
    let header = Header {
        traffic_class: first << 4 | second >> 4,
        len: usize::from(u16::from_be_bytes([fixed[4], fixed[5]])),
        next: fixed[6],
        src: address(8),
        dst: address(24),
    };
    Ok((header, rest))
}

/// Parses an IPv6 packet with a TCP segment or an ICMPv6 error. Checks the TCP checksum, but not
/// the ICMPv6 checksum. [`crate::packet::parse`] calls this function for IPv6 packets.
pub fn parse(bytes: &[u8]) -> Result<Inbound<'_>, DropReason> {
    let (header, rest) = header(bytes)?;
    let payload = rest.get(..header.len).ok_or(DropReason::Truncated)?;
    match header.next {
        protocol::TCP => {
            if !tcp_checksum_ok(header.src, header.dst, payload, false) {
                return Err(DropReason::BadChecksum);
            }
            let segment = parse_tcp(payload)?;
            let arrival = Arrival {
                key: FlowKey {
                    local: Endpoint::new(header.dst, segment.dst_port),
                    peer: Endpoint::new(header.src, segment.src_port),
                },
                link: LINK,
                ecn: Ecn::from_tos(header.traffic_class),
            };
            Ok(Inbound::Segment(arrival, segment))
        }
        ICMP6 => parse_error(payload).map(Inbound::Error),
        _ => Err(DropReason::UnsupportedProtocol),
    }
}

/// Parses an ICMPv6 error that quotes a segment that this stack sent (RFC 4443 §3).
fn parse_error(icmp: &[u8]) -> Result<IcmpError, DropReason> {
    let (fixed, quote) = icmp.split_first_chunk::<8>().ok_or(DropReason::Truncated)?;
    let [kind, code, .., mtu_high, mtu_low] = *fixed;
    let kind = match (kind, code) {
        (1, 0) => IcmpErrorKind::NetUnreachable,
        (1, 1) => IcmpErrorKind::Prohibited,
        (1, 4) => IcmpErrorKind::PortUnreachable,
        (1, _) => IcmpErrorKind::HostUnreachable,
        (2, _) => {
            let mtu = u16::from_be_bytes([mtu_high, mtu_low]);
            IcmpErrorKind::FragmentationNeeded { mtu }
        }
        (3, _) => IcmpErrorKind::TimeExceeded,
        (4, _) => IcmpErrorKind::ParameterProblem,
        _ => return Err(DropReason::BadIcmp),
    };
    let (header, transport) = header(quote)?;
    if header.next != protocol::TCP {
        return Err(DropReason::UnsupportedProtocol);
    }
    let &[a, b, c, d, s0, s1, s2, s3] =
        transport.first_chunk::<8>().ok_or(DropReason::Truncated)?;
    let local = Endpoint::new(header.src, u16::from_be_bytes([a, b]));
    let peer = Endpoint::new(header.dst, u16::from_be_bytes([c, d]));
    let seq = SeqNumber(u32::from_be_bytes([s0, s1, s2, s3]));
    let key = FlowKey { local, peer };
    Ok(IcmpError { kind, key, seq })
}

/// Returns the IPv6 packet with the TCP header `tcp` and `payload`. The addresses and the ECN field
/// are those of `out`, the segment that `tcp` was made from. The DiffServ field and the hop limit
/// are those of `fields`.
///
/// Returns `None` if the TCP header and the payload together exceed 65,535 bytes.
/// [`crate::packet::emit_with`] calls this function for IPv6 addresses.
pub fn emit(
    out: &SegmentOut,
    tcp: &SegmentHeader,
    payload: &[u8],
    fields: IpFields,
) -> Option<Vec<u8>> {
    let (src, dst) = (out.key.local.addr, out.key.peer.addr);
    let mut packet = vec![0; HEADER_LEN + TCP_HEADER_LEN_MAX];
    let header_len = emit_tcp(&mut packet[HEADER_LEN..], tcp);
    packet.truncate(HEADER_LEN + header_len);
    let len = u16::try_from(header_len + payload.len()).ok()?;
    let class = fields.traffic_class & 0xfc | out.ecn as u8;
    packet[0] = 6 << 4 | class >> 4;
    packet[1] = class << 4;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    (packet[6], packet[7]) = (protocol::TCP, fields.hop_limit.max(1));
    packet[8..24].copy_from_slice(&src.0);
    packet[24..40].copy_from_slice(&dst.0);
    let pseudo = checksum::pseudo_header(src, dst, protocol::TCP, len.into());
    write_tcp_checksum(&mut packet[HEADER_LEN..], pseudo, checksum::sum(payload));
    packet.extend_from_slice(payload);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use tidelane_engine::{Origin, TcpFlags, TcpOptions};

    use super::*;
    use crate::packet;

    const LOCAL: IpAddress = IpAddress([0xfd, 0x3d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    const PEER: IpAddress = IpAddress([0xfd, 0x3d, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

    fn sent() -> Vec<u8> {
        let out = SegmentOut {
            origin: Origin::NoFlow(IpFields::default()),
            key: FlowKey {
                local: Endpoint::new(LOCAL, 8080),
                peer: Endpoint::new(PEER, 4242),
            },
            link: LINK,
            seq: SeqNumber(7),
            ack: SeqNumber(9),
            flags: TcpFlags::ACK,
            wnd: 1000,
            urgent: 0,
            options: TcpOptions::NONE,
            payload_pos: 0,
            payload_len: 5,
            segment_size: 1440,
            ecn: Ecn::Ce,
        };
        packet::emit(&out, b"hello", 1).unwrap()
    }

    #[test]
    fn an_emitted_packet_is_parsed_by_the_peer() {
        let packet = sent();
        let Ok(Inbound::Segment(arrival, segment)) = packet::parse(&packet) else {
            panic!("not a segment");
        };
        assert_eq!(arrival.key.local, Endpoint::new(PEER, 4242));
        assert_eq!((arrival.ecn, segment.payload), (Ecn::Ce, &b"hello"[..]));
    }

    #[test]
    fn packet_too_big_identifies_the_quoted_segment() {
        let mut packet = sent();
        packet.truncate(48);
        let mut icmp = vec![2, 0, 0, 0, 0, 0, 0x05, 0x00];
        icmp.extend(&packet);
        let mut outer = packet[..40].to_vec();
        outer[4..6].copy_from_slice(&(icmp.len() as u16).to_be_bytes());
        outer[6] = ICMP6;
        outer.extend(icmp);
        let Ok(Inbound::Error(error)) = packet::parse(&outer) else {
            panic!("not an error");
        };
        let mtu = 1280;
        assert_eq!(error.kind, IcmpErrorKind::FragmentationNeeded { mtu });
        assert_eq!((error.key.local.port, error.seq), (8080, SeqNumber(7)));
    }
}
