//! Ethernet frames and IPv4 packets. [`crate::ipv6`] parses IPv6 packets.

use crate::{
    address::MacAddress,
    checksum::{self, Sum},
    drop_reason::DropReason,
    ipv6,
    packet::{Ecn, Packet},
    template::{ETHERNET_HEADER_LEN, IPV4_HEADER_LEN},
};

pub(crate) const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub(crate) const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const VERSION_4: u8 = 4;
/// First byte of a header without options: version 4 and an IHL of five 32-bit words.
pub(crate) const VERSION_AND_IHL: u8 = 0x45;
/// Fields of the 16-bit word at byte 6: the flags DF and MF, and the fragment offset in units of
/// eight bytes.
const FLAG_DF: u16 = 0x4000;
pub(crate) const FLAG_MF: u16 = 0x2000;
pub(crate) const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Kinds of IPv4 options.
mod option {
    pub const END: u8 = 0;
    pub const NO_OPERATION: u8 = 1;
    pub const LOOSE_SOURCE_ROUTE: u8 = 131;
    pub const STRICT_SOURCE_ROUTE: u8 = 137;
}

/// Parses an Ethernet frame that carries an unfragmented IPv4 or IPv6 packet. Returns an error for
/// every other frame, for example `Fragment` if the frame carries a fragment.
///
/// The function does not check the destination MAC address, because only the caller knows whether
/// its NIC is in promiscuous mode.
#[inline]
pub fn parse_frame(frame: &[u8]) -> Result<Packet<'_>, DropReason> {
    match parse_frame_v4(frame) {
        Some(packet) => packet.map(Packet::widen),
        None => parse_other(frame),
    }
}

/// Parses a frame like [`parse_frame`], but only if the frame carries an IPv4 header without
/// options. Returns `None` for other frames.
///
/// A receive loop calls this function first, so that the compiler specializes the loop for IPv4:
/// the first 12 bytes of each [`IpAddress`](crate::IpAddress) are constants, and the fields of the
/// packet stay in registers.
#[inline(always)]
pub fn parse_frame_v4(frame: &[u8]) -> Option<Result<Packet<'_, [u8; 4]>, DropReason>> {
    let (link, bytes) = frame.split_first_chunk::<ETHERNET_HEADER_LEN>()?;
    let header = bytes.first_chunk::<IPV4_HEADER_LEN>()?;
    let words = header_words(header);
    let no_options = words[0].to_ne_bytes()[0] == VERSION_AND_IHL;
    (link[12..] == ETHERTYPE_IPV4 && no_options).then(|| {
        let payload = payload_of(bytes, &words, IPV4_HEADER_LEN)?;
        build_packet(link, &words, checksum::sum_words(&words), payload)
    })
}

/// Parses an IPv4 packet (RFC 791). Checks version, lengths, checksum and options. Rejects
/// fragments and source routes.
pub fn parse_ipv4(bytes: &[u8]) -> Result<Packet<'_>, DropReason> {
    parse_packet(&[0; ETHERNET_HEADER_LEN], bytes)
}

/// Parses a frame that [`parse_frame_v4`] does not handle: IPv4 with options, or IPv6. This
/// function is not inlined, so that the code for IPv4 without options stays small.
#[inline(never)]
fn parse_other(frame: &[u8]) -> Result<Packet<'_>, DropReason> {
    let Some((link, packet)) = frame.split_first_chunk::<ETHERNET_HEADER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    match [link[12], link[13]] {
        ETHERTYPE_IPV4 => parse_packet(link, packet),
        ETHERTYPE_IPV6 => ipv6::parse_packet_v6(link, packet),
        _ => Err(DropReason::UnsupportedEthertype),
    }
}

/// The IPv4 header without options, as 32-bit words in memory order. The parser loads each word
/// once for both the header fields and the checksum.
type HeaderWords = [u32; IPV4_HEADER_LEN / 4];

#[inline(always)]
fn header_words(header: &[u8; IPV4_HEADER_LEN]) -> HeaderWords {
    core::array::from_fn(|word| {
        let at = word * 4;
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    })
}

/// Parses an IPv4 packet with a header of any length.
fn parse_packet<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    bytes: &'a [u8],
) -> Result<Packet<'a>, DropReason> {
    let (header, payload) = ipv4_parts(bytes)?;
    let fixed = header
        .first_chunk::<IPV4_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    build_packet(link, &header_words(fixed), checksum::sum(header), payload).map(Packet::widen)
}

/// Splits an IPv4 packet or fragment into header and payload. Checks the version, the lengths, the
/// checksum and the options of the header.
pub(crate) fn ipv4_parts(bytes: &[u8]) -> Result<(&[u8], &[u8]), DropReason> {
    let header = bytes
        .first_chunk::<IPV4_HEADER_LEN>()
        .ok_or(DropReason::Truncated)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != VERSION_4 || header_len < IPV4_HEADER_LEN {
        return Err(DropReason::BadIpHeader);
    }
    let payload = payload_of(bytes, &header_words(header), header_len)?;
    let header = bytes.get(..header_len).unwrap_or(bytes);
    if !checksum::sum(header).is_valid() {
        return Err(DropReason::BadIpChecksum);
    }
    check_options(&header[IPV4_HEADER_LEN..])?;
    Ok((header, payload))
}

/// Rejects source routes, and options with invalid lengths. Skips all other options.
///
/// A sender that sets a source route also chooses the route of the replies. Linux therefore drops a
/// packet with a source route if `accept_source_route` is off. The service's XDP program
/// (`ebpf/demux`) passes a packet with a source route to the kernel, so that this setting applies.
fn check_options(mut options: &[u8]) -> Result<(), DropReason> {
    while let [kind, after_kind @ ..] = options {
        match *kind {
            option::END => return Ok(()),
            option::NO_OPERATION => options = after_kind,
            option::LOOSE_SOURCE_ROUTE | option::STRICT_SOURCE_ROUTE => {
                return Err(DropReason::SourceRoute);
            }
            _ => {
                let len = after_kind.first().map_or(0, |len| usize::from(*len));
                let rest = options.get(len..).filter(|_| len >= 2);
                options = rest.ok_or(DropReason::BadIpHeader)?;
            }
        }
    }
    Ok(())
}

/// Returns the payload: the bytes from the end of the header up to the header's Total Length.
#[inline(always)]
fn payload_of<'a>(
    bytes: &'a [u8],
    words: &HeaderWords,
    header_len: usize,
) -> Result<&'a [u8], DropReason> {
    let [_, _, high, low] = words[0].to_ne_bytes();
    let total_len = usize::from(u16::from_be_bytes([high, low]));
    if total_len < header_len {
        return Err(DropReason::BadIpHeader);
    }
    bytes
        .get(header_len..total_len)
        .ok_or(DropReason::Truncated)
}

/// Builds a [`Packet`] from the header words. Rejects bad checksums and fragments.
#[inline(always)]
fn build_packet<'a>(
    link: &[u8; ETHERNET_HEADER_LEN],
    words: &HeaderWords,
    header_sum: Sum,
    payload: &'a [u8],
) -> Result<Packet<'a, [u8; 4]>, DropReason> {
    if !header_sum.is_valid() {
        return Err(DropReason::BadIpChecksum);
    }
    let [first, second, third, src, dst] = words.map(u32::to_ne_bytes);
    let fragment = u16::from_be_bytes([second[2], second[3]]);
    if fragment & (FLAG_MF | FRAGMENT_OFFSET) != 0 {
        return Err(DropReason::Fragment);
    }
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *link;
    Ok(Packet {
        src_mac: MacAddress([s0, s1, s2, s3, s4, s5]),
        dst_mac: MacAddress([d0, d1, d2, d3, d4, d5]),
        src,
        dst,
        ecn: Ecn::from_tos(first[1]),
        ttl: third[0],
        protocol: third[1],
        df: fragment & FLAG_DF != 0,
        payload,
    })
}
