//! The ICMP error for a packet that was not reassembled in time (RFC 1122 §3.3.2, RFC 8200 §4.5).

use crate::{
    checksum::{self, Sum},
    fragment::FrameHeaders,
    icmp::TYPE_TIME_EXCEEDED,
    icmp_error::ICMP_HEADER_LEN,
    icmpv6,
    packet::{Ecn, protocol},
    template::{ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, IPV4_HEADER_LEN, IPV6_HEADER_LEN},
};

/// Code of "fragment reassembly time exceeded" in ICMP and ICMPv6.
const CODE: u8 = 1;
/// Length of the longest quotes in bytes. An error with this quote is short enough to reach every
/// host (RFC 1812 §4.3.2.3, RFC 4443 §2.4 (c)).
const QUOTE_V4_MAX: usize = 576 - IPV4_HEADER_LEN - ICMP_HEADER_LEN;
const QUOTE_V6_MAX: usize = 1280 - IPV6_HEADER_LEN - ICMP_HEADER_LEN;
/// Largest length of the frame with the error, in bytes.
pub const TIME_EXCEEDED_LEN_MAX: usize = FRAME_HEADERS_LEN_MAX + ICMP_HEADER_LEN + QUOTE_V6_MAX;

/// Writes the frame that carries the error to the sender of an incomplete packet.
///
/// `first` has the header fields of the packet's first fragment. `packet` has the bytes of this
/// fragment as received, from the IP header on. `ttl` and `ip_id` are IP header fields of the
/// error. An IPv6 header has no identification. Returns the length of the frame in bytes, or `None`
/// if `frame` is shorter than [`TIME_EXCEEDED_LEN_MAX`].
pub fn emit_time_exceeded(
    frame: &mut [u8],
    first: &FrameHeaders,
    packet: &[u8],
    (ttl, ip_id): (u8, u16),
) -> Option<usize> {
    let is_v4 = first.src.is_v4();
    let (next, kind, quote_max) = if is_v4 {
        (protocol::ICMP, TYPE_TIME_EXCEEDED, QUOTE_V4_MAX)
    } else {
        (protocol::ICMPV6, icmpv6::TYPE_TIME_EXCEEDED, QUOTE_V6_MAX)
    };
    let quote = packet.get(..quote_max).unwrap_or(packet);
    let back = FrameHeaders {
        src_mac: first.dst_mac,
        dst_mac: first.src_mac,
        src: first.dst,
        dst: first.src,
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
    let frame = frame.get_mut(..TIME_EXCEEDED_LEN_MAX)?;
    frame[..headers_len].copy_from_slice(&headers[..headers_len]);
    let icmp = &mut frame[headers_len..headers_len + icmp_len];
    icmp[..ICMP_HEADER_LEN].copy_from_slice(&[kind, CODE, 0, 0, 0, 0, 0, 0]);
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
