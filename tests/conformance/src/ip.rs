//! The IP layer of a script run: the IP version, the addresses, and the headers of packets.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;
/// Length of an IPv4 header without options, in bytes.
const V4_LEN: usize = 20;
/// Length of an IPv6 header, in bytes.
const V6_LEN: usize = 40;
/// TTL or hop limit of injected packets.
const HOP_LIMIT: u8 = 64;

/// The IP version of a run, one of the values of packetdrill's option `--ip_version=`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Version {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
    /// IPv4 packets with IPv6 sockets, which use IPv4-mapped addresses.
    Mapped,
}

/// IPv4 address of the host under test.
const LOCAL_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// IPv6 address of the host under test.
const LOCAL_V6: Ipv6Addr = Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1);
/// IPv4 address of the remote host, whose packets the script injects.
const REMOTE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// IPv6 address of the remote host.
const REMOTE_V6: Ipv6Addr = Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1);

impl Version {
    /// All versions.
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Mapped];

    /// Returns the name of the version in the option `--ip_version=`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
            Self::Mapped => "ipv4-mapped-ipv6",
        }
    }

    /// Returns the version called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }

    /// Returns true if the packets are IPv6.
    pub const fn is_v6(self) -> bool {
        matches!(self, Self::V6)
    }

    /// Returns the domain of the sockets, AF_INET or AF_INET6.
    pub const fn domain(self) -> i32 {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 | Self::Mapped => libc::AF_INET6,
        }
    }

    /// Returns the MTU of the device in bytes. The MTU of an IPv6 run is larger by the difference
    /// of the header lengths, so that segments have the same size over IPv4 and IPv6.
    pub const fn mtu(self) -> u32 {
        1500 + if self.is_v6() {
            (V6_LEN - V4_LEN) as u32
        } else {
            0
        }
    }

    /// Returns the address of the host under test, as programs pass it to calls.
    pub const fn local(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(LOCAL_V4),
            Self::V6 => IpAddr::V6(LOCAL_V6),
            Self::Mapped => IpAddr::V6(LOCAL_V4.to_ipv6_mapped()),
        }
    }

    /// Returns the address of the remote host, as programs pass it to calls.
    pub const fn remote(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(REMOTE_V4),
            Self::V6 => IpAddr::V6(REMOTE_V6),
            Self::Mapped => IpAddr::V6(REMOTE_V4.to_ipv6_mapped()),
        }
    }

    /// Returns the local and the remote address, as the headers of packets have them.
    fn ends(self) -> [Vec<u8>; 2] {
        match self.is_v6() {
            true => [LOCAL_V6, REMOTE_V6].map(|address| address.octets().to_vec()),
            false => [LOCAL_V4, REMOTE_V4].map(|address| address.octets().to_vec()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the Internet checksum (RFC 1071) of `bytes`. `before` is the sum over other bytes, such
/// as a pseudo-header.
pub fn checksum(bytes: &[u8], before: u32) -> u16 {
    let mut sum = before;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns the sum over the pseudo-header, which the checksums of TCP and ICMPv6 include. `len` is
/// the length of the TCP segment or the ICMPv6 message in bytes. Packets in both directions have
/// the same sum.
pub fn pseudo_sum(version: Version, protocol: u8, len: usize) -> u32 {
    let addresses = version.ends().concat();
    u32::from(!checksum(&addresses, u32::from(protocol) + len as u32))
}

/// Returns the IP header of a packet with a payload of `len` bytes. `inbound` is true for a packet
/// from the remote host.
pub fn header(version: Version, protocol: u8, ecn: u8, len: usize, inbound: bool) -> Vec<u8> {
    let [local, remote] = version.ends();
    let ends = match inbound {
        true => [remote, local].concat(),
        false => [local, remote].concat(),
    };
    if version.is_v6() {
        let mut header = vec![0x60, ecn << 4, 0, 0];
        header.extend((len as u16).to_be_bytes());
        header.extend([protocol, HOP_LIMIT]);
        header.extend(ends);
        return header;
    }
    let mut header = vec![0x45, ecn];
    header.extend(((V4_LEN + len) as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, HOP_LIMIT, protocol, 0, 0]);
    header.extend(ends);
    let sum = checksum(&header, 0);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// A parsed packet that the host under test sent.
pub struct Received<'a> {
    /// ECN field.
    pub ecn: u8,
    /// True if the packet must not be fragmented.
    pub dont_fragment: bool,
    /// TCP header and payload.
    pub tcp: &'a [u8],
}

/// Parses a packet that the host under test sent. Returns `None` if the packet is not TCP to the
/// remote host. Returns an error if the length or the checksum in the IP header is wrong.
pub fn parse(version: Version, bytes: &[u8]) -> Option<Result<Received<'_>, String>> {
    let [_, remote] = version.ends();
    if version.is_v6() {
        let header = bytes.get(..V6_LEN)?;
        let to_remote = header[0] >> 4 == 6 && header[6] == TCP && header[24..] == remote;
        return to_remote.then(|| parse_v6(bytes));
    }
    let header = bytes.get(..V4_LEN)?;
    let to_remote = header[0] >> 4 == 4 && header[9] == TCP && header[16..] == remote;
    to_remote.then(|| parse_v4(bytes))
}

fn parse_v4(bytes: &[u8]) -> Result<Received<'_>, String> {
    let header_len = usize::from(bytes[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    check_len(total, bytes)?;
    let (header, tcp) = bytes
        .split_at_checked(header_len)
        .ok_or("the IP header is longer than the packet")?;
    if checksum(header, 0) != 0 {
        return Err("the IP header's checksum is wrong".to_owned());
    }
    Ok(Received {
        ecn: bytes[1] & 3,
        dont_fragment: bytes[6] & 0x40 != 0,
        tcp,
    })
}

fn parse_v6(bytes: &[u8]) -> Result<Received<'_>, String> {
    let len = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
    check_len(V6_LEN + len, bytes)?;
    Ok(Received {
        ecn: bytes[1] >> 4 & 3,
        dont_fragment: true,
        tcp: &bytes[V6_LEN..],
    })
}

/// Compares the length in the IP header with the length of the packet.
fn check_len(said: usize, bytes: &[u8]) -> Result<(), String> {
    match said == bytes.len() {
        true => Ok(()),
        false => Err(format!(
            "the packet has {} bytes, but its IP header says {said}",
            bytes.len()
        )),
    }
}
