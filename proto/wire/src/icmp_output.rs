//! ICMP errors that this host sends: "time exceeded" about a packet that was not reassembled in
//! time (RFC 1122 §3.3.2, RFC 8200 §4.5), and "fragmentation needed" or "packet too big" about a
//! packet that is longer than the MTU (RFC 1191 §4, RFC 4443 §3.2).

use crate::{
    checksum::{self, Sum},
    fragment::FrameHeaders,
    icmp,
    icmp_error::ICMP_HEADER_LEN,
    icmpv6,
    packet::{Ecn, protocol},
    template::{ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, IPV4_HEADER_LEN, IPV6_HEADER_LEN},
};

/// Code of "fragment reassembly time exceeded" in ICMP and ICMPv6.
const REASSEMBLY_TIMEOUT: u8 = 1;
/// Largest length of the quote in an ICMPv4 and in an ICMPv6 error, in bytes. The whole IP packet
/// then has at most 576 bytes (RFC 1812 §4.3.2.3) or 1280 bytes (RFC 4443 §2.4 (c)).
const QUOTE_V4_MAX: usize = 576 - IPV4_HEADER_LEN - ICMP_HEADER_LEN;
const QUOTE_V6_MAX: usize = 1280 - IPV6_HEADER_LEN - ICMP_HEADER_LEN;
/// Largest length of the frame with an ICMP error, in bytes.
pub const ICMP_ERROR_LEN_MAX: usize = FRAME_HEADERS_LEN_MAX + ICMP_HEADER_LEN + QUOTE_V6_MAX;

/// The ICMP header of an error, without the checksum.
#[derive(Clone, Copy)]
struct IcmpHeader {
    /// Type and code in ICMP for IPv4.
    v4: [u8; 2],
    /// Type and code in ICMPv6.
    v6: [u8; 2],
    /// MTU of the next hop in bytes. Zero if the error does not report an MTU.
    mtu: u16,
}

/// Writes the frame of a "time exceeded" error to the sender of an incomplete packet.
///
/// `first` has the header fields of the packet's first fragment. `packet` has the bytes of this
/// fragment as received, from the IP header on. `ttl` and `ip_id` are IP header fields of the
/// error. `ip_id` is ignored for IPv6, whose header has no identification. Returns the length of
/// the frame in bytes, or `None` if `frame` is shorter than [`ICMP_ERROR_LEN_MAX`].
pub fn emit_time_exceeded(
    frame: &mut [u8],
    first: &FrameHeaders,
    packet: &[u8],
    (ttl, ip_id): (u8, u16),
) -> Option<usize> {
    let header = IcmpHeader {
        v4: [icmp::TYPE_TIME_EXCEEDED, REASSEMBLY_TIMEOUT],
        v6: [icmpv6::TYPE_TIME_EXCEEDED, REASSEMBLY_TIMEOUT],
        mtu: 0,
    };
    emit(frame, first, packet, (ttl, ip_id), header)
}

/// Writes the frame of an error to the sender of a packet that is longer than `mtu` bytes:
/// "fragmentation needed" for IPv4, "packet too big" for IPv6.
///
/// `headers` has the header fields of the packet, and `packet` has its bytes from the IP header on.
/// The other arguments and the result are those of [`emit_time_exceeded`].
pub fn emit_packet_too_big(
    frame: &mut [u8],
    headers: &FrameHeaders,
    packet: &[u8],
    mtu: u16,
    (ttl, ip_id): (u8, u16),
) -> Option<usize> {
    let header = IcmpHeader {
        v4: [icmp::TYPE_UNREACHABLE, icmp::CODE_FRAGMENTATION_NEEDED],
        v6: [icmpv6::TYPE_TOO_BIG, 0],
        mtu,
    };
    emit(frame, headers, packet, (ttl, ip_id), header)
}

fn emit(
    frame: &mut [u8],
    quoted: &FrameHeaders,
    packet: &[u8],
    (ttl, ip_id): (u8, u16),
    header: IcmpHeader,
) -> Option<usize> {
    let is_v4 = quoted.src.is_v4();
    let (next, [kind, code], quote_max) = if is_v4 {
        (protocol::ICMP, header.v4, QUOTE_V4_MAX)
    } else {
        (protocol::ICMPV6, header.v6, QUOTE_V6_MAX)
    };
    let quote = packet.get(..quote_max).unwrap_or(packet);
    let back = FrameHeaders {
        src_mac: quoted.dst_mac,
        dst_mac: quoted.src_mac,
        src: quoted.dst,
        dst: quoted.src,
        ttl,
        next,
    };
    let icmp_len = ICMP_HEADER_LEN + quote.len();
    let (mut headers, headers_len) = back.emit(Ecn::NotEct, icmp_len as u16);
    if is_v4 {
        let ip = &mut headers[ETHERNET_HEADER_LEN..][..IPV4_HEADER_LEN];
        ip[4..6].copy_from_slice(&ip_id.to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum::sum(ip).checksum();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let frame = frame.get_mut(..ICMP_ERROR_LEN_MAX)?;
    frame[..headers_len].copy_from_slice(&headers[..headers_len]);
    let icmp = &mut frame[headers_len..headers_len + icmp_len];
    // ICMP for IPv4 has an MTU field of 16 bits at byte 6. ICMPv6 has an MTU field of 32 bits at
    // byte 4.
    let [mtu_high, mtu_low] = header.mtu.to_be_bytes();
    icmp[..ICMP_HEADER_LEN].copy_from_slice(&[kind, code, 0, 0, 0, 0, mtu_high, mtu_low]);
    icmp[ICMP_HEADER_LEN..].copy_from_slice(quote);
    let pseudo = if is_v4 {
        Sum::ZERO
    } else {
        checksum::pseudo_header(back.src, back.dst, next, icmp_len as u32)
    };
    let sum = pseudo.plus(checksum::sum(icmp)).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(headers_len + icmp_len)
}
