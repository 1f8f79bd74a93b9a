//! Conversion of raw IP packets to segments and ICMP errors of the engine (Tidelane's TCP), and of
//! segments to packets.

use tidelane_engine::{Arrival, Endpoint, FlowKey, IpFields, SegmentOut};
use tidelane_wire::{
    DropReason, HeaderTemplate, MacAddress, TCP_HEADER_LEN_MAX, checksum, emit_tcp,
    parse_icmp_error, parse_ipv4, parse_tcp, protocol, tcp_checksum_ok, write_tcp_checksum,
};

use crate::{
    inbound::{Inbound, LINK},
    ip6,
};

/// Length of the Ethernet header in bytes. [`HeaderTemplate`] writes an Ethernet header, and
/// [`emit_with`] cuts it off.
const ETHERNET_HEADER_LEN: usize = 14;
/// Length of the Ethernet and IPv4 headers together, in bytes.
const BELOW_TCP: usize = 34;

/// Parses an IPv4 or IPv6 packet. Checks lengths and checksums as the kernel does, but does not
/// check the checksum of ICMPv6.
pub fn parse(bytes: &[u8]) -> Result<Inbound<'_>, DropReason> {
    if bytes.first().is_some_and(|first| first >> 4 == 6) {
        return ip6::parse(bytes);
    }
    let packet = parse_ipv4(bytes)?;
    match packet.protocol {
        protocol::ICMP => parse_icmp_error(packet.payload).map(Inbound::Error),
        protocol::TCP => {
            if !tcp_checksum_ok(packet.src, packet.dst, packet.payload, false) {
                return Err(DropReason::BadChecksum);
            }
            let segment = parse_tcp(packet.payload)?;
            let arrival = Arrival {
                key: FlowKey {
                    local: Endpoint::new(packet.dst, segment.dst_port),
                    peer: Endpoint::new(packet.src, segment.src_port),
                },
                link: LINK,
                ecn: packet.ecn,
            };
            Ok(Inbound::Segment(arrival, segment))
        }
        _ => Err(DropReason::UnsupportedProtocol),
    }
}

/// Returns the packet with the segment `out` and `payload`, with complete checksums. `ip_id` is the
/// identification field of IPv4. Returns `None` if the TCP header and the payload together exceed
/// 65,535 bytes, or if the local address is IPv4 and the peer's address is IPv6.
pub fn emit(out: &SegmentOut, payload: &[u8], ip_id: u16) -> Option<Vec<u8>> {
    emit_with(out, payload, ip_id, IpFields::default())
}

/// Returns the packet of [`emit`], but takes the DiffServ field and the TTL (or hop limit) from
/// `fields`.
pub fn emit_with(
    out: &SegmentOut,
    payload: &[u8],
    ip_id: u16,
    fields: IpFields,
) -> Option<Vec<u8>> {
    let (local, peer) = (out.key.local, out.key.peer);
    let header = out.segment(payload).header();
    if !local.addr.is_v4() {
        return ip6::emit(out, &header, payload, fields);
    }
    let none = MacAddress::default();
    let mut template = HeaderTemplate::new(none, none, local.addr, peer.addr)?;
    template.set_fields(fields);
    let mut frame = vec![0; BELOW_TCP + TCP_HEADER_LEN_MAX];
    let header_len = emit_tcp(&mut frame[BELOW_TCP..], &header);
    frame.truncate(BELOW_TCP + header_len);
    let tcp_len = u16::try_from(header_len + payload.len()).ok()?;
    template.write(&mut frame, tcp_len, out.ecn, ip_id);
    let (pseudo, payload_sum) = (template.pseudo_header(tcp_len), checksum::sum(payload));
    write_tcp_checksum(&mut frame[BELOW_TCP..], pseudo, payload_sum);
    frame.extend_from_slice(payload);
    Some(frame.split_off(ETHERNET_HEADER_LEN))
}

#[cfg(test)]
mod tests {
    use tidelane_engine::{Ecn, Origin, SeqNumber, TcpFlags, TcpOptions};

    use super::*;

    fn segment_out() -> SegmentOut {
        SegmentOut {
            origin: Origin::NoFlow(IpFields::default()),
            key: FlowKey {
                local: Endpoint::v4([192, 168, 0, 1], 8080),
                peer: Endpoint::v4([192, 0, 2, 1], 4242),
            },
            link: LINK,
            seq: SeqNumber(7),
            ack: SeqNumber(9),
            flags: TcpFlags::ACK | TcpFlags::PSH,
            wnd: 1000,
            urgent: 0,
            options: TcpOptions::timestamps(3, 4),
            payload_pos: 0,
            payload_len: 5,
            segment_size: 1460,
            ecn: Ecn::Ect0,
        }
    }

    #[test]
    fn an_emitted_packet_is_parsed_by_the_peer() {
        let packet = emit(&segment_out(), b"hello", 1).unwrap();
        assert_eq!(packet.len(), 20 + 32 + 5);
        let Ok(Inbound::Segment(arrival, segment)) = parse(&packet) else {
            panic!("not a segment");
        };
        assert_eq!(arrival.key, segment_out().key.reversed());
        assert_eq!(arrival.ecn, Ecn::Ect0);
        assert_eq!(segment.payload, b"hello");
        assert_eq!(segment.options, TcpOptions::timestamps(3, 4));
    }

    /// Each byte of the packet in turn gets a flipped bit. The other bytes stay unchanged.
    #[test]
    fn a_flipped_bit_is_refused() {
        let good = emit(&segment_out(), b"hello", 1).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(parse(&bad).is_err(), "accepted a flipped bit in byte {at}");
        }
    }
}
