//! The headers below TCP, built once per flow and patched per segment.

use crate::{
    address::{IpAddress, MacAddress},
    checksum::{self, SmallSum, Sum},
    ipv4::{Ecn, protocol},
};

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER_LEN: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_LEN: usize = 20;
/// Bytes that [`HeaderTemplate::write`] writes.
pub const FRAME_HEADERS_LEN: usize = ETHERNET_HEADER_LEN + IPV4_HEADER_LEN;

/// TTL of what we send: the kernel's default.
const TTL: u8 = 64;
/// "Don't fragment": we do path MTU discovery.
const DF: [u8; 2] = [0x40, 0x00];

/// The Ethernet and IPv4 header of a flow's segments, and the parts of their checksums that do not
/// change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderTemplate {
    bytes: [u8; FRAME_HEADERS_LEN],
    /// Of the IPv4 header with zero length, identification, ECN and checksum.
    ip_sum: SmallSum,
    /// Of the TCP pseudo-header with zero length.
    pseudo_sum: SmallSum,
}

impl HeaderTemplate {
    /// The headers of TCP segments from `src` to `dst` over the given link addresses, with DF and
    /// TTL 64. `None` unless both addresses are IPv4.
    pub fn new(
        src_mac: MacAddress,
        dst_mac: MacAddress,
        src: IpAddress,
        dst: IpAddress,
    ) -> Option<Self> {
        let (src, dst) = (src.as_v4()?, dst.as_v4()?);
        let mut bytes = [0; FRAME_HEADERS_LEN];
        let (ethernet, ip) = bytes.split_at_mut(ETHERNET_HEADER_LEN);
        ethernet[0..6].copy_from_slice(&dst_mac.0);
        ethernet[6..12].copy_from_slice(&src_mac.0);
        ethernet[12..14].copy_from_slice(&[0x08, 0x00]);
        ip[0] = 0x45;
        ip[6..8].copy_from_slice(&DF);
        ip[8] = TTL;
        ip[9] = protocol::TCP;
        ip[12..16].copy_from_slice(&src);
        ip[16..20].copy_from_slice(&dst);
        let ip_sum = SmallSum::new(checksum::sum(ip));
        let pseudo_sum = checksum::pseudo_header_v4(src, dst, protocol::TCP, 0);
        let pseudo_sum = SmallSum::new(pseudo_sum);
        Some(Self {
            bytes,
            ip_sum,
            pseudo_sum,
        })
    }

    /// Changes the link addresses: the neighbor moved, or is known at last.
    pub fn set_link(&mut self, src_mac: MacAddress, dst_mac: MacAddress) {
        self.bytes[0..6].copy_from_slice(&dst_mac.0);
        self.bytes[6..12].copy_from_slice(&src_mac.0);
    }

    /// Where frames go.
    pub fn dst_mac(&self) -> MacAddress {
        let [a, b, c, d, e, f, ..] = self.bytes;
        MacAddress([a, b, c, d, e, f])
    }

    /// Writes both headers to the start of `buf` and returns their length, [`FRAME_HEADERS_LEN`].
    /// `tcp_len` counts TCP header and payload.
    ///
    /// # Panics
    ///
    /// If `buf` is shorter than [`FRAME_HEADERS_LEN`].
    #[inline]
    pub fn write(&self, buf: &mut [u8], tcp_len: u16, ecn: Ecn, ip_id: u16) -> usize {
        let total_len = tcp_len.wrapping_add(IPV4_HEADER_LEN as u16);
        let sum = self
            .ip_sum
            .plus_u16(total_len)
            .plus_u16(ip_id)
            .plus_u16(u16::from(ecn as u8));
        let headers = &mut buf[..FRAME_HEADERS_LEN];
        headers.copy_from_slice(&self.bytes);
        let ip = &mut headers[ETHERNET_HEADER_LEN..];
        ip[1] = ecn as u8;
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[4..6].copy_from_slice(&ip_id.to_be_bytes());
        ip[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
        FRAME_HEADERS_LEN
    }

    /// The TCP pseudo-header's sum for a segment of `tcp_len` bytes.
    #[inline]
    pub fn pseudo_header(&self, tcp_len: u16) -> Sum {
        self.pseudo_sum.plus_u16(tcp_len).widen()
    }
}
