//! IPv6 packets (RFC 8200): the header, and the extension headers before the transport header.

use crate::{
    address::{IpAddress, MacAddress},
    drop_reason::DropReason,
    packet::{Ecn, Packet},
    template::{ETHERNET_HEADER_LEN, IPV6_HEADER_LEN},
};

const VERSION_6: u8 = 6;
/// Largest number of headers that are examined in a packet, apart from the IPv6 header. The count
/// includes the transport header or the fragment header at the end. The limit keeps the work per
/// packet small.
const HEADERS_MAX: usize = 8;
/// Unit of the length of extension headers, in bytes.
const EXTENSION_UNIT: usize = 8;
/// Length of a fragment header in bytes.
pub(crate) const FRAGMENT_HEADER_LEN: usize = EXTENSION_UNIT;
/// Option of one byte that pads an extension header (RFC 8200 §4.2).
const PAD1: u8 = 0;
/// Mask of the two highest bits of an option's type. If these bits are zero, a node that does not
/// know the option may skip the option. Otherwise, the node must discard the packet (RFC 8200
/// §4.2).
const OPTION_ACTION: u8 = 0xc0;
/// Mask of the offset and the more-fragments flag in the 16-bit word at byte 2 of a fragment
/// header.
const OFFSET_OR_MORE: u16 = 0xfff9;

/// Next-header numbers of extension headers.
mod extension {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const DESTINATION: u8 = 60;
}

/// Parses an IPv6 packet: header, length and extension headers. Rejects fragments. Accepts an
/// atomic fragment (offset zero, no more fragments), because this fragment carries the whole packet
/// (RFC 6946).
pub fn parse_ipv6(bytes: &[u8]) -> Result<Packet<'_>, DropReason> {
    parse_packet_v6(&[0; ETHERNET_HEADER_LEN], bytes)
}

pub(crate) fn parse_packet_v6<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    bytes: &'a [u8],
) -> Result<Packet<'a>, DropReason> {
    let (header, rest) = header_and_rest(bytes)?;
    let (protocol, payload) = transport(header[6], rest)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *link;
    let (src, dst) = addresses(header);
    Ok(Packet {
        src_mac: MacAddress([s0, s1, s2, s3, s4, s5]),
        dst_mac: MacAddress([d0, d1, d2, d3, d4, d5]),
        src,
        dst,
        ecn: Ecn::from_tos(header[1] >> 4),
        ttl: header[7],
        protocol,
        df: true,
        payload,
    })
}

/// Splits a packet into the header and the bytes that its payload length covers.
pub(crate) fn header_and_rest(bytes: &[u8]) -> Result<(&[u8; IPV6_HEADER_LEN], &[u8]), DropReason> {
    let (header, rest) = bytes
        .split_first_chunk::<IPV6_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    if header[0] >> 4 != VERSION_6 {
        return Err(DropReason::BadIpHeader);
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let rest = rest.get(..len).ok_or(DropReason::Truncated)?;
    Ok((header, rest))
}

/// Returns source and destination address.
///
/// An IPv4-mapped address becomes `::`, which is neither a valid source nor a valid destination. A
/// mapped address is not valid on the wire (RFC 4942 §2.2), and the stack would take it for an IPv4
/// address.
pub(crate) fn addresses(header: &[u8; IPV6_HEADER_LEN]) -> (IpAddress, IpAddress) {
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&header[at..at + 16]);
        let address = IpAddress(bytes);
        if address.is_v4() {
            IpAddress::UNSPECIFIED_V6
        } else {
            address
        }
    };
    (address(8), address(24))
}

/// Skips the extension headers. Returns the protocol number of the transport header, and the bytes
/// from this header on.
///
/// Ignores the options that a node may skip. Rejects a packet with any other option, a packet whose
/// routing header has a Segments Left field that is not zero, and a fragment.
pub(crate) fn transport(mut next: u8, mut rest: &[u8]) -> Result<(u8, &[u8]), DropReason> {
    for _ in 0..HEADERS_MAX {
        let len = match next {
            extension::HOP_BY_HOP | extension::DESTINATION | extension::ROUTING => {
                extension_len(next, rest)?
            }
            extension::FRAGMENT => {
                let [_, _, high, low, ..] = *rest else {
                    return Err(DropReason::Truncated);
                };
                if u16::from_be_bytes([high, low]) & OFFSET_OR_MORE != 0 {
                    return Err(DropReason::Fragment);
                }
                EXTENSION_UNIT
            }
            protocol => return Ok((protocol, rest)),
        };
        let behind = rest.get(len..).ok_or(DropReason::Truncated)?;
        (next, rest) = (rest[0], behind);
    }
    Err(DropReason::BadIpHeader)
}

/// Returns the length in bytes of an extension header other than a fragment header. Rejects a
/// routing header whose Segments Left field is not zero, and an option that a node must not skip.
fn extension_len(number: u8, rest: &[u8]) -> Result<usize, DropReason> {
    let [_, units, _, left, ..] = *rest else {
        return Err(DropReason::Truncated);
    };
    let len = (usize::from(units) + 1) * EXTENSION_UNIT;
    let acceptable = match number {
        extension::ROUTING => left == 0,
        _ => {
            let options = rest.get(2..len).ok_or(DropReason::Truncated)?;
            may_skip_all(options)
        }
    };
    if acceptable {
        Ok(len)
    } else {
        Err(DropReason::BadIpHeader)
    }
}

/// Returns true if a node that knows none of the options may skip all of them. Returns false if an
/// option extends beyond the end of `options`.
fn may_skip_all(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        if kind & OPTION_ACTION != 0 {
            return false;
        }
        options = if *kind == PAD1 {
            rest
        } else {
            let Some((len, data)) = rest.split_first() else {
                return false;
            };
            let Some(behind) = data.get(usize::from(*len)..) else {
                return false;
            };
            behind
        };
    }
    true
}

/// The fields of a fragment header, and the data after the header.
pub(crate) struct FragmentHeader<'a> {
    /// Protocol of the packet's payload: a transport protocol or an extension header.
    pub next: u8,
    /// Offset in bytes, but the lowest bit is the more-fragments flag.
    pub word: u16,
    /// Identification of the packet.
    pub id: u32,
    /// Data after the fragment header.
    pub payload: &'a [u8],
}

/// Skips the extension headers before the fragment header, and parses the fragment header. Returns
/// `BadFragment` if there is no fragment header.
pub(crate) fn fragment_header(
    mut next: u8,
    mut rest: &[u8],
) -> Result<FragmentHeader<'_>, DropReason> {
    for _ in 0..HEADERS_MAX {
        match next {
            extension::HOP_BY_HOP | extension::DESTINATION | extension::ROUTING => {
                let len = extension_len(next, rest)?;
                let behind = rest.get(len..).ok_or(DropReason::Truncated)?;
                (next, rest) = (rest[0], behind);
            }
            extension::FRAGMENT => {
                let (header, payload) = rest
                    .split_first_chunk::<FRAGMENT_HEADER_LEN>()
                    .ok_or(DropReason::Truncated)?;
                let [next, _, high, low, id @ ..] = *header;
                return Ok(FragmentHeader {
                    next,
                    word: u16::from_be_bytes([high, low]) & OFFSET_OR_MORE,
                    id: u32::from_be_bytes(id),
                    payload,
                });
            }
            _ => return Err(DropReason::BadFragment),
        }
    }
    Err(DropReason::BadIpHeader)
}

#[cfg(test)]
mod tests;
