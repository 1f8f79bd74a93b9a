//! The headers of frames, parsed for the oracle, which checks the frames of mux ports. The parser
//! shares no code with the mux. A mux port is a pair of packet rings through which a program with a
//! TCP/IP stack of its own shares the NIC.

use tidelane_wire::{Endpoint, IpAddress};

use crate::digest::Digest;

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;
/// TCP flags that belong to the fingerprint of a segment: SYN, RST and ACK. The fingerprint omits
/// the other flags, because the mux may change them when it splits a GSO frame.
const NAMING_FLAGS: u8 = 0b1_0110;
/// Bits of the TCP flags.
const SYN: u8 = 0b10;
const RST: u8 = 0b100;
const ACK: u8 = 0b1_0000;

/// The headers of a frame with an unfragmented TCP or UDP packet.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Protocol number.
    pub protocol: u8,
    /// Source address and port.
    pub src: Endpoint,
    /// Destination address and port.
    pub dst: Endpoint,
    /// Sequence number. Zero for UDP.
    seq: u32,
    /// Acknowledgment number. Zero for UDP.
    ack: u32,
    /// TCP flags. Zero for UDP.
    flags: u8,
    /// Payload of the TCP segment or UDP datagram.
    payload: &'a [u8],
    /// True if the IPv4 header checksum and the TCP or UDP checksum are correct. The absent
    /// checksum of a UDP datagram over IPv4 counts as correct.
    pub is_intact: bool,
}

/// The addresses, the protocol, and the payload of an IP packet.
struct Ip<'a> {
    protocol: u8,
    src: IpAddress,
    dst: IpAddress,
    payload: &'a [u8],
    /// True if the IPv4 header checksum is correct. Always true for IPv6, whose header has no
    /// checksum.
    is_intact: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the one's complement sum of `start` and the 16-bit words of `bytes` (RFC 1071).
fn sum(bytes: &[u8], start: u32) -> u32 {
    let words = bytes.chunks(2);
    let sum = words.fold(start, |sum, word| {
        sum + u32::from(word[0]) * 256 + word.get(1).map_or(0, |low| u32::from(*low))
    });
    fold(sum)
}

/// Adds the carries of a sum of 16-bit words to its low 16 bits.
fn fold(sum: u32) -> u32 {
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff)
}

fn ip(packet: &[u8]) -> Option<Ip<'_>> {
    match packet.first()? >> 4 {
        4 => {
            let header_len = usize::from(packet[0] & 15) * 4;
            let header = packet.get(..header_len).filter(|_| header_len >= 20)?;
            // More-fragments flag or fragment offset: the packet is a fragment.
            if word(header, 6)? & 0x3fff != 0 {
                return None;
            }
            let len = usize::from(word(header, 2)?);
            Some(Ip {
                protocol: header[9],
                src: IpAddress::from_v4(*header[12..].first_chunk()?),
                dst: IpAddress::from_v4(*header[16..].first_chunk()?),
                payload: packet.get(header_len..len)?,
                is_intact: sum(header, 0) == 0xffff,
            })
        }
        6 => {
            let header = packet.get(..40)?;
            let len = usize::from(word(header, 4)?);
            Some(Ip {
                protocol: header[6],
                src: IpAddress(*header[8..].first_chunk()?),
                dst: IpAddress(*header[24..].first_chunk()?),
                payload: packet.get(40..40 + len)?,
                is_intact: true,
            })
        }
        _ => None,
    }
}

fn frame_ip(frame: &[u8]) -> Option<Ip<'_>> {
    let ip = ip(frame.get(ETHERNET..)?)?;
    let ether_type = if ip.src.is_v4() { 0x0800 } else { 0x86dd };
    (word(frame, 12)? == ether_type).then_some(ip)
}

/// Parses a frame with an unfragmented TCP or UDP packet without IPv6 extension headers. Returns
/// `None` for any other frame.
pub fn read(frame: &[u8]) -> Option<Seen<'_>> {
    let ip = frame_ip(frame)?;
    let (payload, protocol) = (ip.payload, ip.protocol);
    let (header_len, seq, ack, flags) = match protocol {
        TCP => {
            let header_len = usize::from(payload.get(12)? >> 4) * 4;
            let flags = *payload.get(13)?;
            (header_len, long(payload, 4)?, long(payload, 8)?, flags)
        }
        UDP => (8, 0, 0, 0),
        _ => return None,
    };
    let addresses = sum(&ip.dst.0, sum(&ip.src.0, 0));
    // `IpAddress` stores an IPv4 address in the IPv4-mapped form. The bytes 0xffff of this form do
    // not change a one's complement sum.
    let pseudo = addresses + u32::from(protocol) + payload.len() as u32;
    let is_unchecked = protocol == UDP && ip.src.is_v4() && word(payload, 6)? == 0;
    Some(Seen {
        protocol,
        src: Endpoint::new(ip.src, word(payload, 0)?),
        dst: Endpoint::new(ip.dst, word(payload, 2)?),
        seq,
        ack,
        flags,
        payload: payload.get(header_len..)?,
        is_intact: ip.is_intact && (is_unchecked || sum(payload, fold(pseudo)) == 0xffff),
    })
}

/// Returns the protocol and source of the packet that an ICMP or ICMPv6 error quotes. Returns
/// `None` if the frame contains no complete error.
pub fn quoted_source(frame: &[u8]) -> Option<(u8, Endpoint)> {
    let outer = frame_ip(frame)?;
    let is_error = match (outer.protocol, outer.payload.first()?) {
        (1, kind) => matches!(kind, 3..=5 | 11 | 12),
        (58, kind) => *kind < 128,
        _ => false,
    };
    let quoted = outer.payload.get(8..).filter(|_| is_error)?;
    let (start, protocol, src) = match quoted.first()? >> 4 {
        4 => {
            let src = IpAddress::from_v4(*quoted.get(12..)?.first_chunk()?);
            (usize::from(quoted[0] & 15) * 4, *quoted.get(9)?, src)
        }
        _ => {
            let src = IpAddress(*quoted.get(8..)?.first_chunk()?);
            (40, *quoted.get(6)?, src)
        }
    };
    Some((protocol, Endpoint::new(src, word(quoted, start)?)))
}

/// Returns the hash of all bytes of a frame after its destination link address.
pub fn whole(frame: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.bytes(frame.get(6..).unwrap_or_default());
    digest.value()
}

impl Seen<'_> {
    /// Returns true for a TCP segment with RST.
    pub fn is_reset(&self) -> bool {
        self.protocol == TCP && self.flags & RST != 0
    }

    /// Returns true for a TCP segment with SYN and without ACK, which opens a connection.
    pub fn is_first(&self) -> bool {
        self.protocol == TCP && self.flags & (SYN | ACK) == SYN
    }

    /// Returns true for a packet that may open a connection, or an exchange of UDP datagrams.
    pub fn may_open(&self) -> bool {
        self.protocol == UDP || self.is_first()
    }

    /// Returns the fingerprint of the packet: a hash of its protocol, endpoints, sequence and
    /// acknowledgment number, flags SYN, RST and ACK, and payload. An identical retransmission has
    /// the same fingerprint.
    pub fn print(&self) -> u64 {
        self.print_of(self.seq, self.payload)
    }

    fn print_of(&self, seq: u32, payload: &[u8]) -> u64 {
        let mut digest = Digest::default();
        for end in [self.src, self.dst] {
            digest.bytes(&end.addr.0);
            digest.bytes(&end.port.to_be_bytes());
        }
        digest.bytes(&seq.to_be_bytes());
        digest.bytes(&self.ack.to_be_bytes());
        digest.bytes(&[self.protocol, self.flags & NAMING_FLAGS]);
        digest.bytes(payload);
        digest.value()
    }

    /// Returns the fingerprints of the segments of a GSO frame, or of a single packet.
    /// `segment_size` is the number of payload bytes of a segment, or zero for a frame without GSO.
    pub fn prints(&self, segment_size: u16) -> Vec<u64> {
        if segment_size == 0 || self.payload.is_empty() {
            return vec![self.print()];
        }
        let size = usize::from(segment_size);
        let parts = self.payload.chunks(size).enumerate();
        let print = |(at, part): (usize, &[u8])| {
            self.print_of(self.seq.wrapping_add((at * size) as u32), part)
        };
        parts.map(print).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidelane_wire::{
        Ecn, HeaderTemplate, MacAddress, SegmentHeader, SeqNumber, TCP_HEADER_LEN, TcpFlags,
        TcpOptions, checksum, emit_tcp, write_tcp_checksum,
    };

    use super::*;

    fn frame(src: Endpoint, dst: Endpoint, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mac = MacAddress::default();
        let template = HeaderTemplate::new(mac, mac, src.addr, dst.addr)
            .expect("both endpoints have one IP version");
        let tcp_len = TCP_HEADER_LEN + payload.len();
        let mut frame = vec![0; template.headers_len() + tcp_len];
        let start = template.write(&mut frame, tcp_len as u16, Ecn::NotEct, 7);
        let (header, rest) = frame[start..].split_at_mut(TCP_HEADER_LEN);
        rest.copy_from_slice(payload);
        let fields = SegmentHeader {
            src_port: src.port,
            dst_port: dst.port,
            seq: SeqNumber(seq),
            ack: SeqNumber(2),
            flags: TcpFlags::ACK,
            wnd: 100,
            urgent: 0,
            options: TcpOptions::NONE,
        };
        emit_tcp(header, &fields);
        let pseudo = template.pseudo_header(tcp_len as u16);
        write_tcp_checksum(header, pseudo, checksum::sum(payload));
        frame
    }

    fn ends(is_v6: bool) -> (Endpoint, Endpoint) {
        let addr = |last: u8| match is_v6 {
            false => IpAddress::from_v4([10, 0, 0, last]),
            true => IpAddress([0xfd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, last]),
        };
        (Endpoint::new(addr(1), 1000), Endpoint::new(addr(2), 9))
    }

    #[test]
    fn a_frame_is_read_and_every_wrong_bit_is_seen() {
        for is_v6 in [false, true] {
            let (src, dst) = ends(is_v6);
            let genuine = frame(src, dst, 5, b"some bytes");
            let seen = read(&genuine).expect("a packet");
            assert_eq!((seen.src, seen.dst, seen.protocol), (src, dst, TCP));
            assert!(seen.is_intact && !seen.is_reset());
            // No checksum covers the Ethernet header, nor the traffic class, flow label and hop
            // limit of IPv6. The test therefore changes no bit of an Ethernet or IPv6 header.
            let first = if is_v6 { 14 + 40 } else { 14 };
            for bit in first * 8..genuine.len() * 8 {
                let mut wrong = genuine.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&wrong).is_none_or(|seen| !seen.is_intact), "bit {bit}");
            }
        }
    }

    #[test]
    fn the_segments_of_a_gso_frame_have_the_prints_of_single_frames() {
        let (src, dst) = ends(false);
        let payload: Vec<u8> = (0..250).collect();
        let whole = frame(src, dst, u32::MAX - 50, &payload);
        let prints = read(&whole).expect("a packet").prints(100);
        let single = payload.chunks(100).enumerate().map(|(at, part)| {
            let seq = (u32::MAX - 50).wrapping_add(at as u32 * 100);
            let part = frame(src, dst, seq, part);
            read(&part).expect("a packet").print()
        });
        assert_eq!(prints, single.collect::<Vec<_>>());
        assert_eq!(prints.len(), 3);
    }

    #[test]
    fn the_quoted_source_of_an_icmp_error_is_found() {
        let (src, dst) = ends(false);
        let quoted = &frame(src, dst, 5, b"x")[14..];
        assert!(quoted_source(&frame(dst, src, 0, b"")).is_none());
        let mut error = vec![0; 14 + 20 + 8];
        error[12..14].copy_from_slice(&[8, 0]);
        error[14..18].copy_from_slice(&[0x45, 0, 0, (28 + quoted.len()) as u8]);
        error[23] = 1;
        error[34] = 3;
        error.extend(quoted);
        assert_eq!(quoted_source(&error), Some((TCP, src)));
        error[34] = 8;
        assert_eq!(quoted_source(&error), None);
    }
}
