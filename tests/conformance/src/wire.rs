//! Encodes and parses packets. The code is independent of the engine's codec, which is under test.
//! The stack under test runs on the host under test. The script simulates the peer, the remote
//! host.

use std::fmt;

use crate::{
    ast::TcpOption,
    ip::{self, ICMP, ICMPV6, TCP, Version, checksum, pseudo_sum},
};

/// Length of a TCP header without options, in bytes.
const TCP_LEN: usize = 20;
/// Control bit SYN.
pub const SYN: u8 = 2;
/// Control bit PSH.
pub const PUSH: u8 = 8;
/// Control bit ACK.
pub const ACK: u8 = 16;
/// Control bit URG.
pub const URG: u8 = 32;

/// A TCP segment, with two fields of its IP header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// ECN field of the IP header.
    pub ecn: u8,
    /// True if the packet must not be fragmented.
    pub dont_fragment: bool,
    /// Source port.
    pub from_port: u16,
    /// Destination port.
    pub to_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Window field.
    pub win: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options in their order.
    pub options: Vec<TcpOption>,
    /// Payload.
    pub payload: Vec<u8>,
}

/// Encodes options without padding.
fn emit_options(options: &[TcpOption]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for option in options {
        let (kind, body): (u8, Vec<u8>) = match option {
            TcpOption::Eol => {
                bytes.push(0);
                continue;
            }
            TcpOption::Nop => {
                bytes.push(1);
                continue;
            }
            TcpOption::Mss(mss) => (2, mss.to_be_bytes().to_vec()),
            TcpOption::WindowScale(shift) => (3, vec![*shift]),
            TcpOption::SackPermitted => (4, Vec::new()),
            TcpOption::Sack(blocks) => {
                let edges = blocks.iter().flat_map(|(left, right)| [*left, *right]);
                (5, edges.flat_map(u32::to_be_bytes).collect())
            }
            TcpOption::Timestamps(value, echo) => {
                (8, [value.to_be_bytes(), echo.to_be_bytes()].concat())
            }
            TcpOption::FastOpen(cookie) => (34, cookie.clone()),
            TcpOption::Other(kind, body) => (*kind, body.clone()),
        };
        bytes.extend([kind, body.len() as u8 + 2]);
        bytes.extend(body);
    }
    bytes
}

/// Parses one option. The result is [`TcpOption::Other`] if the kind is unknown or the length is
/// wrong.
fn parse_option(kind: u8, body: &[u8]) -> TcpOption {
    let word = |at: usize| {
        let bytes = body.get(at..at + 4)?;
        bytes.try_into().ok().map(u32::from_be_bytes)
    };
    let known = match (kind, body.len()) {
        (2, 2) => Some(TcpOption::Mss(u16::from_be_bytes([body[0], body[1]]))),
        (3, 1) => Some(TcpOption::WindowScale(body[0])),
        (4, 0) => Some(TcpOption::SackPermitted),
        (5, len) if len % 8 == 0 && len > 0 => {
            let block = |at| Some((word(at)?, word(at + 4)?));
            let blocks: Option<Vec<_>> = (0..len).step_by(8).map(block).collect();
            blocks.map(TcpOption::Sack)
        }
        (8, 8) => word(0)
            .zip(word(4))
            .map(|(value, echo)| TcpOption::Timestamps(value, echo)),
        (34, _) => Some(TcpOption::FastOpen(body.to_vec())),
        _ => None,
    };
    known.unwrap_or_else(|| TcpOption::Other(kind, body.to_vec()))
}

fn parse_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, String> {
    let mut options = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        match kind {
            0 => options.push(TcpOption::Eol),
            1 => options.push(TcpOption::Nop),
            _ => {
                let len = usize::from(*bytes.first().ok_or("an option without length")?);
                let body = bytes
                    .get(1..len.saturating_sub(1))
                    .ok_or("an option too long")?;
                options.push(parse_option(*kind, body));
                bytes = &bytes[len - 1..];
            }
        }
    }
    Ok(options)
}

impl Packet {
    /// Encodes the segment as a packet from the remote host, with an IP header. Over IPv4 the flag
    /// DF is always set, whatever `dont_fragment` is.
    pub fn emit(&self, version: Version) -> Vec<u8> {
        let mut options = emit_options(&self.options);
        options.resize(options.len().next_multiple_of(4), 0);
        let header_len = TCP_LEN + options.len();
        let mut tcp = Vec::new();
        tcp.extend(self.from_port.to_be_bytes());
        tcp.extend(self.to_port.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(header_len as u8 / 4) << 4, self.flags]);
        tcp.extend(self.win.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(options);
        tcp.extend(&self.payload);
        let sum = checksum(&tcp, pseudo_sum(version, TCP, tcp.len()));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let header = ip::header(version, TCP, self.ecn, tcp.len(), true);
        [header, tcp].concat()
    }

    /// Parses a packet that the host under test sent. Returns `None` if the packet is not TCP to
    /// the remote host, and an error if the packet is malformed.
    pub fn parse(version: Version, bytes: &[u8]) -> Option<Result<Self, String>> {
        let received = ip::parse(version, bytes)?;
        Some(received.and_then(|received| Self::parse_tcp(version, &received)))
    }

    fn parse_tcp(version: Version, received: &ip::Received<'_>) -> Result<Self, String> {
        let tcp = received.tcp;
        if tcp.len() < TCP_LEN {
            return Err(format!("{} bytes are no segment", tcp.len()));
        }
        if checksum(tcp, pseudo_sum(version, TCP, tcp.len())) != 0 {
            return Err("the segment's checksum is wrong".to_owned());
        }
        let header_len = usize::from(tcp[12] >> 4) * 4;
        let options = tcp
            .get(TCP_LEN..header_len)
            .ok_or("the data offset is wrong")?;
        let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        Ok(Self {
            ecn: received.ecn,
            dont_fragment: received.dont_fragment,
            from_port: half(0),
            to_port: half(2),
            seq: word(4),
            ack: word(8),
            flags: tcp[13],
            win: half(14),
            urgent: half(18),
            options: parse_options(options)?,
            payload: tcp[header_len..].to_vec(),
        })
    }
}

/// Encodes an ICMP or ICMPv6 error about a segment that the host under test sent. `(kind, code,
/// mtu)` are the error's type, code and MTU. An error without an MTU has 0. `ports` are the
/// segment's source and destination ports, and `(seq, len)` are the segment's sequence number and
/// payload length.
pub fn icmp_error(
    version: Version,
    (kind, code, mtu): (u8, u8, u16),
    ports: (u16, u16),
    (seq, len): (u32, u32),
) -> Vec<u8> {
    let mut icmp = vec![kind, code, 0, 0];
    icmp.extend(u32::from(mtu).to_be_bytes());
    icmp.extend(ip::header(version, TCP, 0, TCP_LEN + len as usize, false));
    icmp.extend(ports.0.to_be_bytes());
    icmp.extend(ports.1.to_be_bytes());
    icmp.extend(seq.to_be_bytes());
    let (protocol, before) = match version.is_v6() {
        true => (ICMPV6, pseudo_sum(version, ICMPV6, icmp.len())),
        false => (ICMP, 0),
    };
    let sum = checksum(&icmp, before);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    [ip::header(version, protocol, 0, icmp.len(), true), icmp].concat()
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        match self {
            Self::Nop => f.write_str("nop"),
            Self::Eol => f.write_str("eol"),
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::WindowScale(shift) => write!(f, "wscale {shift}"),
            Self::SackPermitted => f.write_str("sackOK"),
            Self::Sack(blocks) => {
                let blocks = blocks
                    .iter()
                    .map(|(left, right)| format!(" {left}:{right}"));
                write!(f, "sack{}", blocks.collect::<String>())
            }
            Self::Timestamps(value, echo) => write!(f, "TS val {value} ecr {echo}"),
            Self::FastOpen(cookie) => write!(f, "FO {}", hex(cookie)),
            Self::Other(kind, body) => write!(f, "kind {kind} {}", hex(body)),
        }
    }
}

impl fmt::Display for Packet {
    /// Formats the packet in the notation of scripts, without its ports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = ["", "[ect1] ", "[ect0] ", "[ce] "];
        f.write_str(words[usize::from(self.ecn & 3)])?;
        let letters: String = "SFRP.UEW"
            .chars()
            .zip([2, 1, 4, 8, 16, 32, 64, 128])
            .filter_map(|(letter, bit)| (self.flags & bit != 0).then_some(letter))
            .collect();
        f.write_str(if letters.is_empty() { "-" } else { &letters })?;
        let len = self.payload.len() as u32;
        write!(f, " {}:{}({len})", self.seq, self.seq.wrapping_add(len))?;
        if self.flags & ACK != 0 {
            write!(f, " ack {}", self.ack)?;
        }
        write!(f, " win {}", self.win)?;
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        if self.options.is_empty() {
            return Ok(());
        }
        let options: Vec<_> = self.options.iter().map(TcpOption::to_string).collect();
        write!(f, " <{}>", options.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Packet {
        Packet {
            ecn: 2,
            dont_fragment: true,
            from_port: 5000,
            to_port: 8080,
            seq: 7,
            ack: 9,
            flags: ACK | 8,
            win: 257,
            urgent: 0,
            options: vec![
                TcpOption::Nop,
                TcpOption::Nop,
                TcpOption::Timestamps(100, 200),
                TcpOption::Sack(vec![(1, 2), (3, 4)]),
                TcpOption::Other(253, vec![1, 2, 3]),
            ],
            payload: b"hello".to_vec(),
        }
    }

    /// Returns the test packet as a packet from the host under test to the remote host.
    fn outbound(version: Version) -> Vec<u8> {
        let inbound = packet().emit(version);
        let header = ip::header(version, TCP, packet().ecn, 0, false);
        let mut bytes = [&header, &inbound[header.len()..]].concat();
        // `header` has a wrong length field, and over IPv4 a wrong checksum. Copy the correct
        // fields from `inbound`. The IPv4 header checksum of `inbound` is correct here, too,
        // because the order of the addresses does not change a checksum.
        let same = if version.is_v6() { 4..6 } else { 2..12 };
        bytes[same.clone()].copy_from_slice(&inbound[same]);
        bytes
    }

    #[test]
    fn an_emitted_packet_can_be_parsed() {
        for version in Version::ALL {
            let parsed = Packet::parse(version, &outbound(version)).unwrap().unwrap();
            assert_eq!((parsed.seq, &parsed.payload[..]), (7, &b"hello"[..]));
            assert_eq!(parsed.options[..5], packet().options[..]);
            let text = "[ect0] P. 7:12(5) ack 9 win 257 \
                        <nop,nop,TS val 100 ecr 200,sack 1:2 3:4,kind 253 010203";
            assert!(parsed.to_string().starts_with(text), "{parsed}");
        }
    }

    /// A packet with one wrong bit is an error. In the IPv4 header or in the segment, the bit makes
    /// a checksum wrong. In the length field of the IPv6 header, the bit makes the length wrong.
    /// The test does not compare the messages. A packet to the host under test is not parsed.
    #[test]
    fn a_wrong_checksum_is_seen() {
        for (version, places) in [
            (Version::V4, [1, 24, 30, 40]),
            (Version::V6, [4, 44, 50, 60]),
        ] {
            let good = outbound(version);
            for at in places.into_iter().chain([good.len() - 1]) {
                let mut bad = good.clone();
                bad[at] ^= 1;
                let parsed = Packet::parse(version, &bad).unwrap();
                assert!(parsed.is_err(), "{version}: byte {at}");
            }
            let other = Packet::parse(version, &packet().emit(version));
            assert_eq!(other, None, "a packet to the host under test was parsed");
        }
    }

    #[test]
    fn an_icmpv6_error_is_summed_over_its_pseudo_header() {
        let bytes = icmp_error(Version::V6, (2, 0, 1300), (8080, 40_000), (9, 100));
        let icmp = &bytes[40..];
        assert_eq!(
            (bytes[6], &icmp[..2], &icmp[6..8]),
            (58, &[2, 0][..], &[5, 20][..])
        );
        assert_eq!(
            checksum(icmp, pseudo_sum(Version::V6, ICMPV6, icmp.len())),
            0
        );
    }
}
