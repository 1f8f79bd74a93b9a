//! Ethernet and IP headers of a flow (for example, a TCP connection). The headers are built once
//! and patched for each packet.

use crate::{
    address::{IpAddress, MacAddress},
    checksum::{self, SmallSum, Sum},
    packet::{Ecn, protocol},
};

/// Length of an Ethernet header, in bytes.
pub const ETHERNET_HEADER_LEN: usize = 14;
/// Length of an IPv4 header without options, in bytes.
pub const IPV4_HEADER_LEN: usize = 20;
/// Length of an IPv6 header without extension headers, in bytes.
pub const IPV6_HEADER_LEN: usize = 40;
/// Length of the headers that [`HeaderTemplate::write`] writes for IPv4, in bytes.
pub const FRAME_HEADERS_LEN_V4: usize = ETHERNET_HEADER_LEN + IPV4_HEADER_LEN;
/// Length of the headers that [`HeaderTemplate::write`] writes for IPv6, in bytes.
pub const FRAME_HEADERS_LEN_V6: usize = ETHERNET_HEADER_LEN + IPV6_HEADER_LEN;
/// Length of the longest headers that [`HeaderTemplate::write`] writes, in bytes.
pub const FRAME_HEADERS_LEN_MAX: usize = FRAME_HEADERS_LEN_V6;

/// Default TTL or hop limit, which is also the default of Linux.
const TTL: u8 = 64;
/// IP header fields that an application may set for a connection. The ECN field is not among these
/// fields, because the TCP engine sets the ECN field of each segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpFields {
    /// Traffic class: the DiffServ field in the upper six bits. The lower two bits are ignored.
    pub traffic_class: u8,
    /// TTL or hop limit. Zero counts as one, because a TTL of zero must not be sent (RFC 1122
    /// §3.2.1.7).
    pub hop_limit: u8,
}

impl IpFields {
    /// Mask of the DiffServ field in the traffic class.
    const DSCP: u8 = 0xfc;
}

impl Default for IpFields {
    fn default() -> Self {
        Self {
            traffic_class: 0,
            hop_limit: TTL,
        }
    }
}

/// Flags and fragment offset with DF set, for path MTU discovery.
const DF: [u8; 2] = [0x40, 0x00];

/// Ethernet and IP header of the packets of a flow. The sums of the constant header fields, which
/// the checksums need, are precomputed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderTemplate {
    /// The headers, followed by unused bytes.
    bytes: [u8; FRAME_HEADERS_LEN_MAX],
    /// Length in bytes of the headers in `bytes`.
    len: u8,
    /// Sum of the IPv4 header in which length, identification, ECN and checksum are zero. Unused
    /// for IPv6.
    ip_sum: SmallSum,
    /// Sum of the transport's pseudo-header with a length of zero.
    pseudo_sum: SmallSum,
    /// Identification of the flow's next IPv4 packet.
    ip_id: u16,
}

impl HeaderTemplate {
    /// Creates the headers of TCP segments from `src` to `dst`, with DF and a TTL of 64. Returns
    /// `None` if the addresses are of different IP versions.
    pub fn new(
        src_mac: MacAddress,
        dst_mac: MacAddress,
        src: IpAddress,
        dst: IpAddress,
    ) -> Option<Self> {
        Self::with_protocol(protocol::TCP, src_mac, dst_mac, src, dst)
    }

    /// Creates the headers of packets of the transport `protocol`, like [`new`](Self::new).
    pub fn with_protocol(
        protocol: u8,
        src_mac: MacAddress,
        dst_mac: MacAddress,
        src: IpAddress,
        dst: IpAddress,
    ) -> Option<Self> {
        let mut template = match (src.as_v4(), dst.as_v4()) {
            (Some(src), Some(dst)) => Self::v4(protocol, src, dst),
            (None, None) => Self::v6(protocol, src, dst),
            _ => return None,
        };
        template.set_link(src_mac, dst_mac);
        Some(template)
    }

    fn v4(protocol: u8, src: [u8; 4], dst: [u8; 4]) -> Self {
        let mut bytes = [0; FRAME_HEADERS_LEN_MAX];
        let (ethernet, ip) = bytes[..FRAME_HEADERS_LEN_V4].split_at_mut(ETHERNET_HEADER_LEN);
        ethernet[12..14].copy_from_slice(&[0x08, 0x00]);
        ip[0] = 0x45;
        ip[6..8].copy_from_slice(&DF);
        ip[8] = TTL;
        ip[9] = protocol;
        ip[12..16].copy_from_slice(&src);
        ip[16..20].copy_from_slice(&dst);
        let ip_sum = SmallSum::new(checksum::sum(ip));
        let pseudo_sum = checksum::pseudo_header_v4(src, dst, protocol, 0);
        Self {
            bytes,
            len: FRAME_HEADERS_LEN_V4 as u8,
            ip_sum,
            pseudo_sum: SmallSum::new(pseudo_sum),
            ip_id: 0,
        }
    }

    fn v6(protocol: u8, src: IpAddress, dst: IpAddress) -> Self {
        let mut bytes = [0; FRAME_HEADERS_LEN_MAX];
        let (ethernet, ip) = bytes.split_at_mut(ETHERNET_HEADER_LEN);
        ethernet[12..14].copy_from_slice(&[0x86, 0xdd]);
        ip[0] = 0x60;
        ip[6] = protocol;
        ip[7] = TTL;
        ip[8..24].copy_from_slice(&src.0);
        ip[24..40].copy_from_slice(&dst.0);
        let pseudo_sum = checksum::pseudo_header_v6(src.0, dst.0, protocol, 0);
        Self {
            bytes,
            len: FRAME_HEADERS_LEN_V6 as u8,
            ip_sum: SmallSum::new(Sum::ZERO),
            pseudo_sum: SmallSum::new(pseudo_sum),
            ip_id: 0,
        }
    }

    /// Sets the IPv6 flow label to the low 20 bits of `label`. RFC 6437 §3 wants labels that are
    /// constant for a flow, hard to guess and evenly distributed. The function has no effect for
    /// IPv4.
    pub fn set_flow_label(&mut self, label: u32) {
        if self.is_v6() {
            self.put_first_word(0xf_ffff, label);
        }
    }

    /// Returns the identification of the flow's next IPv4 packet, which is zero at first. Each flow
    /// has a counter of its own, as in Linux, because a common counter would reveal to each peer
    /// the number of packets that go to other peers (RFC 7739 §3).
    #[inline]
    pub const fn ip_id(&self) -> u16 {
        self.ip_id
    }

    /// Sets the identification of the flow's next packet.
    pub const fn set_ip_id(&mut self, ip_id: u16) {
        self.ip_id = ip_id;
    }

    /// Advances the identification by `packets`, the number of packets sent.
    #[inline(always)]
    pub const fn advance_ip_id(&mut self, packets: u16) {
        self.ip_id = self.ip_id.wrapping_add(packets);
    }

    /// Sets the DiffServ field, and the TTL (IPv4) or the hop limit (IPv6) (RFC 9293 MUST-48,
    /// SHLD-22, MUST-49).
    pub fn set_fields(&mut self, fields: IpFields) {
        let class = fields.traffic_class & IpFields::DSCP;
        let hop_limit = fields.hop_limit.max(1);
        if self.is_v6() {
            self.put_first_word(0x0ff0_0000, u32::from(class) << 20);
            self.bytes[ETHERNET_HEADER_LEN + 7] = hop_limit;
            return;
        }
        let ip = &mut self.bytes[ETHERNET_HEADER_LEN..FRAME_HEADERS_LEN_V4];
        ip[1] = class;
        ip[8] = hop_limit;
        self.ip_sum = SmallSum::new(checksum::sum(ip));
    }

    /// If `allowed` is true, clears DF, so that routers may fragment the packets. Otherwise, sets
    /// DF, as in a new template. The function has no effect for IPv6.
    pub fn set_may_fragment(&mut self, allowed: bool) {
        if self.is_v6() {
            return;
        }
        let ip = &mut self.bytes[ETHERNET_HEADER_LEN..FRAME_HEADERS_LEN_V4];
        ip[6..8].copy_from_slice(if allowed { &[0, 0] } else { &DF });
        self.ip_sum = SmallSum::new(checksum::sum(ip));
    }

    /// In the first word of the IPv6 header (version, traffic class and flow label), replaces the
    /// bits that are set in `mask` by the same bits of `bits`.
    fn put_first_word(&mut self, mask: u32, bits: u32) {
        let ip = &mut self.bytes[ETHERNET_HEADER_LEN..];
        let old = u32::from_be_bytes([ip[0], ip[1], ip[2], ip[3]]);
        let new = old & !mask | bits & mask;
        ip[..4].copy_from_slice(&new.to_be_bytes());
    }

    /// Returns true if the headers are IPv6 headers.
    #[inline]
    pub fn is_v6(&self) -> bool {
        usize::from(self.len) == FRAME_HEADERS_LEN_V6
    }

    /// Returns the length of the headers that [`write`](Self::write) writes, in bytes.
    #[inline]
    pub fn headers_len(&self) -> usize {
        usize::from(self.len)
    }

    /// Sets the MAC addresses, for example after the MAC address of the next hop has changed.
    pub fn set_link(&mut self, src_mac: MacAddress, dst_mac: MacAddress) {
        self.bytes[0..6].copy_from_slice(&dst_mac.0);
        self.bytes[6..12].copy_from_slice(&src_mac.0);
    }

    /// Returns the destination address.
    pub fn peer(&self) -> IpAddress {
        let ip = &self.bytes[ETHERNET_HEADER_LEN..];
        if self.is_v6() {
            let mut peer = [0; 16];
            peer.copy_from_slice(&ip[24..40]);
            return IpAddress(peer);
        }
        IpAddress::from_v4([ip[16], ip[17], ip[18], ip[19]])
    }

    /// Returns the destination MAC address.
    pub fn dst_mac(&self) -> MacAddress {
        let [a, b, c, d, e, f, ..] = self.bytes;
        MacAddress([a, b, c, d, e, f])
    }

    /// Writes the Ethernet and the IP header to the start of `buf`. Returns their length in bytes.
    /// `transport_len` is the length of the transport header and payload in bytes. `ip_id` is
    /// ignored for IPv6, whose header has no identification.
    ///
    /// # Panics
    ///
    /// If `buf` is shorter than [`headers_len`](Self::headers_len).
    pub fn write(&self, buf: &mut [u8], transport_len: u16, ecn: Ecn, ip_id: u16) -> usize {
        let behind = self.write_before(buf, transport_len, ecn, ip_id);
        assert!(behind.is_some(), "the buffer is shorter than the headers");
        self.headers_len()
    }

    /// Writes the headers like [`write`](Self::write). Returns the rest of `buf` for the
    /// transport header, or `None` if `buf` is shorter than the headers.
    #[inline(always)]
    pub fn write_before<'b>(
        &self,
        buf: &'b mut [u8],
        transport_len: u16,
        ecn: Ecn,
        ip_id: u16,
    ) -> Option<&'b mut [u8]> {
        if self.is_v6() {
            return self.write_v6(buf, transport_len, ecn);
        }
        let total_len = transport_len.wrapping_add(IPV4_HEADER_LEN as u16);
        let sum = self
            .ip_sum
            .plus_u16(total_len)
            .plus_u16(ip_id)
            .plus_u16(u16::from(ecn as u8));
        let (headers, behind) = buf.split_first_chunk_mut::<FRAME_HEADERS_LEN_V4>()?;
        headers.copy_from_slice(&self.bytes[..FRAME_HEADERS_LEN_V4]);
        let ip = &mut headers[ETHERNET_HEADER_LEN..];
        ip[1] |= ecn as u8;
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[4..6].copy_from_slice(&ip_id.to_be_bytes());
        ip[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
        Some(behind)
    }

    #[inline(never)]
    fn write_v6<'b>(
        &self,
        buf: &'b mut [u8],
        transport_len: u16,
        ecn: Ecn,
    ) -> Option<&'b mut [u8]> {
        let (headers, behind) = buf.split_first_chunk_mut::<FRAME_HEADERS_LEN_V6>()?;
        *headers = self.bytes;
        let ip = &mut headers[ETHERNET_HEADER_LEN..];
        ip[1] |= (ecn as u8) << 4;
        ip[4..6].copy_from_slice(&transport_len.to_be_bytes());
        Some(behind)
    }

    /// Returns the sum of the transport's pseudo-header for `transport_len` bytes of transport
    /// header and payload.
    #[inline]
    pub fn pseudo_header(&self, transport_len: u16) -> Sum {
        self.pseudo_sum.plus_u16(transport_len).widen()
    }
}
