//! UDP datagrams (RFC 768, RFC 8200 §8.1).

use crate::{
    checksum::{self, Sum},
    drop_reason::DropReason,
    packet::{Packet, protocol},
};

/// Length of a UDP header, in bytes.
pub const UDP_HEADER_LEN: usize = 8;
/// Offset of the checksum in a UDP header, in bytes.
pub const UDP_CHECKSUM_AT: usize = 6;

/// A received datagram. The payload borrows from the received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpDatagram<'a> {
    /// Source port. Zero means that the sender wants no answer.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes from the end of the UDP header to the end of the datagram. The packet may have further
    /// bytes, which the payload does not contain.
    pub payload: &'a [u8],
}

/// Parses the payload of an IP packet as a datagram, and checks the checksum. A checksum field of
/// zero, which means "no checksum", is valid for IPv4 and invalid for IPv6. With `partial_allowed`,
/// the function also accepts a checksum field that holds only the sum of the pseudo-header: see
/// [`tcp_checksum_ok`](crate::tcp_checksum_ok).
///
/// # Errors
///
/// `Truncated` if the payload of the packet is shorter than a UDP header, or if the datagram's
/// length field is less than the length of a UDP header or greater than the length of the packet's
/// payload.
/// `BadChecksum` if the checksum is wrong, or if an IPv6 packet has no checksum.
pub fn parse_udp<'a>(
    packet: &Packet<'a>,
    partial_allowed: bool,
) -> Result<UdpDatagram<'a>, DropReason> {
    let head = packet.payload.first_chunk::<UDP_HEADER_LEN>();
    let [s0, s1, d0, d1, l0, l1, c0, c1] = *head.ok_or(DropReason::Truncated)?;
    let len = u16::from_be_bytes([l0, l1]);
    let datagram = packet.payload.get(..len.into());
    let datagram = datagram.ok_or(DropReason::Truncated)?;
    let payload = datagram.get(UDP_HEADER_LEN..);
    let payload = payload.ok_or(DropReason::Truncated)?;
    let pseudo = checksum::pseudo_header(packet.src, packet.dst, protocol::UDP, len.into());
    let is_valid = match u16::from_be_bytes([c0, c1]) {
        0 if packet.dst.is_v4() => true,
        0 => false,
        field if partial_allowed && field == pseudo.fold() => true,
        _ => pseudo.plus(checksum::sum(datagram)).is_valid(),
    };
    if !is_valid {
        return Err(DropReason::BadChecksum);
    }
    Ok(UdpDatagram {
        src_port: u16::from_be_bytes([s0, s1]),
        dst_port: u16::from_be_bytes([d0, d1]),
        payload,
    })
}

/// Returns the header of a datagram. `len` is the length of header and payload in bytes. `pseudo`
/// and `payload` are the sums of the pseudo-header and of the payload.
pub fn udp_header(
    src_port: u16,
    dst_port: u16,
    len: u16,
    pseudo: Sum,
    payload: Sum,
) -> [u8; UDP_HEADER_LEN] {
    let mut header = unfinished_header(src_port, dst_port, len);
    // A field of zero would mean "no checksum", so send all ones, the other zero of one's
    // complement.
    let sum = pseudo.plus(payload).plus(checksum::sum(&header));
    let field = match sum.checksum() {
        0 => u16::MAX,
        field => field,
    };
    header[UDP_CHECKSUM_AT..].copy_from_slice(&field.to_be_bytes());
    header
}

/// Returns a header like [`udp_header`], but the checksum field holds only the sum of the
/// pseudo-header. The NIC later completes the checksum: it adds the sum of header and payload, and
/// complements the result.
pub fn partial_udp_header(
    src_port: u16,
    dst_port: u16,
    len: u16,
    pseudo: Sum,
) -> [u8; UDP_HEADER_LEN] {
    let mut header = unfinished_header(src_port, dst_port, len);
    header[UDP_CHECKSUM_AT..].copy_from_slice(&pseudo.fold().to_be_bytes());
    header
}

fn unfinished_header(src_port: u16, dst_port: u16, len: u16) -> [u8; UDP_HEADER_LEN] {
    let mut header = [0; UDP_HEADER_LEN];
    header[0..2].copy_from_slice(&src_port.to_be_bytes());
    header[2..4].copy_from_slice(&dst_port.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use super::*;
    use crate::{
        Ecn,
        address::{IpAddress, MacAddress},
    };

    const V4: (IpAddress, IpAddress) = (
        IpAddress::from_v4([10, 0, 0, 1]),
        IpAddress::from_v4([10, 0, 0, 2]),
    );
    const V6: (IpAddress, IpAddress) = (IpAddress([0x20; 16]), IpAddress([0x21; 16]));

    fn packet<'a>((src, dst): (IpAddress, IpAddress), payload: &'a [u8]) -> Packet<'a> {
        Packet {
            src_mac: MacAddress::default(),
            dst_mac: MacAddress::default(),
            src,
            dst,
            ecn: Ecn::NotEct,
            ttl: 64,
            protocol: protocol::UDP,
            df: true,
            payload,
        }
    }

    /// Returns a datagram from port 7 to port 9.
    fn datagram((src, dst): (IpAddress, IpAddress), payload: &[u8]) -> Vec<u8> {
        let len = (UDP_HEADER_LEN + payload.len()) as u16;
        let pseudo = checksum::pseudo_header(src, dst, protocol::UDP, len.into());
        let header = udp_header(7, 9, len, pseudo, checksum::sum(payload));
        [&header[..], payload].concat()
    }

    #[test]
    fn a_datagram_is_parsed_as_it_was_written() {
        for addresses in [V4, V6] {
            for payload in [&b""[..], b"x", b"odd", &[0xff; 1472]] {
                let mut bytes = datagram(addresses, payload);
                let parsed = parse_udp(&packet(addresses, &bytes), false);
                let expected = UdpDatagram {
                    src_port: 7,
                    dst_port: 9,
                    payload,
                };
                assert_eq!(parsed, Ok(expected));
                // Bytes behind the datagram do not count.
                bytes.push(1);
                assert_eq!(parse_udp(&packet(addresses, &bytes), false), Ok(expected));
            }
        }
    }

    /// RFC 768: a checksum of zero is sent as all ones.
    #[test]
    fn a_checksum_of_zero_is_sent_as_all_ones() {
        // The checksum of the datagram with a zero payload becomes the payload. The sum of the new
        // datagram is then 0xffff, and its complement, the checksum, is zero.
        let mut payload = vec![0; 2];
        let bytes = datagram(V4, &payload);
        payload.copy_from_slice(&bytes[UDP_CHECKSUM_AT..UDP_HEADER_LEN]);
        let bytes = datagram(V4, &payload);
        assert_eq!(bytes[UDP_CHECKSUM_AT..UDP_HEADER_LEN], [0xff, 0xff]);
        assert!(parse_udp(&packet(V4, &bytes), false).is_ok());
    }

    #[test]
    fn each_changed_bit_is_noticed() {
        for addresses in [V4, V6] {
            let good = datagram(addresses, b"payload");
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let parsed = parse_udp(&packet(addresses, &bad), false);
                assert!(parsed.is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn only_ipv4_has_datagrams_without_a_checksum() {
        for (addresses, expected) in [(V4, true), (V6, false)] {
            let mut bytes = datagram(addresses, b"payload");
            bytes[UDP_CHECKSUM_AT..UDP_HEADER_LEN].fill(0);
            let parsed = parse_udp(&packet(addresses, &bytes), false);
            assert_eq!(parsed.is_ok(), expected);
        }
    }

    #[test]
    fn a_partial_checksum_is_accepted_only_if_allowed() {
        let (src, dst) = V4;
        let len = UDP_HEADER_LEN as u16 + 2;
        let pseudo = checksum::pseudo_header(src, dst, protocol::UDP, len.into());
        let header = partial_udp_header(7, 9, len, pseudo);
        let bytes = [&header[..], b"ab"].concat();
        assert!(parse_udp(&packet(V4, &bytes), true).is_ok());
        assert_eq!(
            parse_udp(&packet(V4, &bytes), false),
            Err(DropReason::BadChecksum)
        );
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let good = datagram(V4, b"payload");
        for len in 0..good.len() {
            let parsed = parse_udp(&packet(V4, &good[..len]), false);
            assert_eq!(parsed, Err(DropReason::Truncated));
        }
        for len in 0..UDP_HEADER_LEN as u16 {
            let mut bad = good.clone();
            bad[4..6].copy_from_slice(&len.to_be_bytes());
            bad[UDP_CHECKSUM_AT..UDP_HEADER_LEN].fill(0);
            let parsed = parse_udp(&packet(V4, &bad), false);
            assert_eq!(parsed, Err(DropReason::Truncated));
        }
    }
}
