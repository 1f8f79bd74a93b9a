//! GSO frames that programs send through their mux ports. A GSO frame has the headers of one TCP
//! segment and the payload of several segments. A mux port is a pair of packet rings through which
//! a program with a TCP/IP stack of its own shares the NIC.
//!
//! A NIC with GSO (generic segmentation offload) gets the whole frame. For other receivers, the mux
//! splits the frame: it copies the frame's headers to each segment, and then sets the lengths,
//! identification, sequence number, flags and checksums of the segment.

use tidelane_packet_io::{GSO_SEGMENT_MIN, GsoParameters, GsoPayload, LinkFull, PacketIo};
use tidelane_wire::{
    ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpAddress, Packet, RawSegment,
    SeqNumber, TcpFlags, checksum, protocol, write_partial_checksum, write_tcp_checksum,
};

use crate::rate::Amount;

/// Offsets of IPv4 header fields in a frame: total length, identification, checksum.
const V4_LEN: usize = ETHERNET_HEADER_LEN + 2;
const V4_ID: usize = ETHERNET_HEADER_LEN + 4;
const V4_CHECKSUM: usize = ETHERNET_HEADER_LEN + 10;
/// Offset of the IPv6 header's payload length in a frame.
const V6_LEN: usize = ETHERNET_HEADER_LEN + 4;
/// Offsets of fields in a TCP header: sequence number, flags.
const SEQ: usize = 4;
const FLAGS: usize = 13;

/// A checked GSO frame.
#[derive(Clone, Copy, Debug)]
pub struct GsoFrame<'a> {
    /// The Ethernet, IP and TCP headers.
    headers: &'a [u8],
    /// The TCP payload of all segments.
    payload: &'a [u8],
    src: IpAddress,
    dst: IpAddress,
    parameters: GsoParameters,
}

impl<'a> GsoFrame<'a> {
    /// Checks a frame whose payload is to be split into segments of `segment_size` bytes. `packet`
    /// is the parsed frame. `frame_len_max` is the length in bytes of the longest frame that the
    /// link can carry.
    ///
    /// Returns `None` unless all of these conditions hold:
    ///
    /// - The packet is a TCP segment, and has none of the flags SYN, RST and URG.
    /// - The frame has no IP options, no extension headers and no Ethernet padding.
    /// - The payload is longer than one segment.
    /// - `segment_size` is at least [`GSO_SEGMENT_MIN`], and the link can carry a full segment.
    pub(crate) fn new(
        frame: &'a [u8],
        packet: &Packet<'a>,
        segment_size: u16,
        frame_len_max: usize,
    ) -> Option<Self> {
        let is_v6 = !packet.src.is_v4();
        let ip_len = if is_v6 {
            IPV6_HEADER_LEN
        } else {
            IPV4_HEADER_LEN
        };
        let tcp_start = ETHERNET_HEADER_LEN + ip_len;
        let segment = RawSegment::new_checked(packet.payload).ok()?.segment();
        let headers_len = frame.len() - segment.payload.len();
        let refused = TcpFlags::SYN.union(TcpFlags::RST).union(TcpFlags::URG);
        let is_whole = frame.len() == tcp_start + packet.payload.len();
        let is_right = packet.protocol == protocol::TCP
            && is_whole
            && ends_with_packet(frame, is_v6)
            && !segment.flags.intersects(refused)
            && segment_size >= GSO_SEGMENT_MIN
            && segment.payload.len() > usize::from(segment_size)
            && headers_len + usize::from(segment_size) <= frame_len_max;
        is_right.then_some(Self {
            headers: &frame[..headers_len],
            payload: segment.payload,
            src: packet.src,
            dst: packet.dst,
            parameters: GsoParameters {
                headers_len: headers_len as u16,
                segment_size,
                tcp_start: tcp_start as u16,
                is_v6,
            },
        })
    }

    /// Returns the length of the frame in bytes.
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.len()
    }

    /// Returns false, because each frame has headers.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the length of the longest segment with its headers, in bytes.
    pub(crate) fn segment_len_max(&self) -> usize {
        self.headers.len() + usize::from(self.parameters.segment_size)
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        self.payload
            .len()
            .div_ceil(usize::from(self.parameters.segment_size))
    }

    /// Returns the number of segments, and the total length of the segments with their headers.
    pub(crate) fn amount(&self) -> Amount {
        let segments = self.segments();
        Amount {
            packets: segments as u64,
            bytes: (segments * self.headers.len() + self.payload.len()) as u64,
        }
    }

    /// Sends the whole frame through `port`, the port of the NIC. The NIC must support GSO frames
    /// of this length.
    pub fn send<P: PacketIo>(&self, port: &mut P) -> Result<(), LinkFull> {
        let headers = port.tx_gso_headers();
        let headers = headers.get_mut(..self.headers.len()).ok_or(LinkFull)?;
        headers.copy_from_slice(self.headers);
        let tcp_start = usize::from(self.parameters.tcp_start);
        let tcp_len = self.len() - tcp_start;
        write_partial_checksum(&mut headers[tcp_start..], self.pseudo_header(tcp_len));
        port.tx_gso_send(GsoPayload::Private([self.payload, &[]]), self.parameters)
    }

    /// Writes segment `at`, counted from zero, to `segment`.
    ///
    /// # Panics
    ///
    /// May panic if `at` is not less than [`segments`](Self::segments).
    pub fn write_segment(&self, at: usize, segment: &mut Vec<u8>) {
        let size = usize::from(self.parameters.segment_size);
        let start = at * size;
        let end = self.payload.len().min(start + size);
        let payload = &self.payload[start..end];
        segment.clear();
        segment.extend_from_slice(self.headers);
        segment.extend_from_slice(payload);
        self.patch_ip(at, segment);
        let tcp_start = usize::from(self.parameters.tcp_start);
        let tcp_len = segment.len() - tcp_start;
        let header = &mut segment[tcp_start..self.headers.len()];
        let seq = field(header, SEQ);
        let seq = SeqNumber(u32::from_be_bytes(seq)).add(start as u32);
        header[SEQ..SEQ + 4].copy_from_slice(&seq.to_u32().to_be_bytes());
        let mut flags = TcpFlags(header[FLAGS]);
        // RFC 3168 §6.1.2: a sender sets CWR only on the first new segment after it reduced cwnd.
        if at > 0 {
            flags.remove(TcpFlags::CWR);
        }
        if end < self.payload.len() {
            flags.remove(TcpFlags::FIN.union(TcpFlags::PSH));
        }
        header[FLAGS] = flags.0;
        write_tcp_checksum(header, self.pseudo_header(tcp_len), checksum::sum(payload));
    }

    /// Writes the length of a segment, and for IPv4 its identification and header checksum.
    fn patch_ip(&self, at: usize, segment: &mut [u8]) {
        let len = segment.len() - ETHERNET_HEADER_LEN;
        if self.parameters.is_v6 {
            let len = (len - IPV6_HEADER_LEN) as u16;
            segment[V6_LEN..V6_LEN + 2].copy_from_slice(&len.to_be_bytes());
            return;
        }
        let id = u16::from_be_bytes(field(segment, V4_ID)).wrapping_add(at as u16);
        segment[V4_LEN..V4_LEN + 2].copy_from_slice(&(len as u16).to_be_bytes());
        segment[V4_ID..V4_ID + 2].copy_from_slice(&id.to_be_bytes());
        segment[V4_CHECKSUM..V4_CHECKSUM + 2].fill(0);
        let header = &segment[ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + IPV4_HEADER_LEN];
        let checksum = checksum::sum(header).checksum();
        segment[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }

    fn pseudo_header(&self, tcp_len: usize) -> checksum::Sum {
        checksum::pseudo_header(self.src, self.dst, protocol::TCP, tcp_len as u32)
    }
}

/// Returns true if the IP packet ends where the frame ends.
fn ends_with_packet(frame: &[u8], is_v6: bool) -> bool {
    let (at, before) = if is_v6 {
        (V6_LEN, ETHERNET_HEADER_LEN + IPV6_HEADER_LEN)
    } else {
        (V4_LEN, ETHERNET_HEADER_LEN)
    };
    usize::from(u16::from_be_bytes(field(frame, at))) + before == frame.len()
}

/// Returns the `N` bytes at `at` of a header that has been parsed.
fn field<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}
