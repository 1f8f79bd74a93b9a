//! Encodes and parses IPv4 and TCP headers.
//!
//! This code shares nothing with the library's encoder and parser, so that the tests find the
//! library's mistakes.

// The control bits of the TCP header.
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

const LOCAL: [u8; 4] = [192, 168, 0, 1];
const PEER: [u8; 4] = [192, 0, 2, 1];
const LOCAL_PORT: u16 = 8080;
const PEER_PORT: u16 = 4242;

/// The header fields that the tests compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tcp {
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
}

impl Tcp {
    pub const fn new(flags: u8, seq: u32, ack: u32) -> Self {
        Self { flags, seq, ack }
    }
}

/// Returns the sum of the big-endian 16-bit words of `bytes`.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    bytes.chunks(2).map(word).sum()
}

/// Returns the Internet checksum (RFC 1071) for a sum of 16-bit words.
fn checksum(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Returns the sum of the pseudo-header's 16-bit words, for a TCP segment of `len` bytes.
fn pseudo_header(src: [u8; 4], dst: [u8; 4], len: usize) -> u32 {
    sum(&src) + sum(&dst) + 6 + len as u32
}

/// Returns a packet from the peer to the stack under test.
pub fn segment(tcp: &Tcp, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(PEER_PORT.to_be_bytes());
    segment.extend(LOCAL_PORT.to_be_bytes());
    segment.extend(tcp.seq.to_be_bytes());
    segment.extend(tcp.ack.to_be_bytes());
    segment.extend([5 << 4, tcp.flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    let check = checksum(pseudo_header(PEER, LOCAL, segment.len()) + sum(&segment));
    segment[16..18].copy_from_slice(&check);
    let mut packet = vec![0x45, 0];
    packet.extend((20 + segment.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(PEER);
    packet.extend(LOCAL);
    let check = checksum(sum(&packet));
    packet[10..12].copy_from_slice(&check);
    packet.extend(segment);
    packet
}

/// Parses a packet from the stack to the peer, and checks its checksums, length and addresses.
/// Returns the header fields and the payload, or `None` if `packet` is empty.
pub fn parse(packet: &[u8]) -> Option<(Tcp, &[u8])> {
    if packet.is_empty() {
        return None;
    }
    assert_eq!(checksum(sum(&packet[..20])), [0, 0], "IPv4 checksum");
    assert_eq!(
        u16::from_be_bytes([packet[2], packet[3]]) as usize,
        packet.len()
    );
    let segment = &packet[20..];
    let src = packet[12..16].try_into().unwrap();
    let dst = packet[16..20].try_into().unwrap();
    assert_eq!((src, dst), (LOCAL, PEER));
    let check = checksum(pseudo_header(src, dst, segment.len()) + sum(segment));
    assert_eq!(check, [0, 0], "TCP checksum");
    let number = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
    let tcp = Tcp::new(segment[13], number(4), number(8));
    Some((tcp, &segment[usize::from(segment[12] >> 4) * 4..]))
}
