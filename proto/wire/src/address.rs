//! Addresses of links and hosts, and the end of a connection.

use core::fmt;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All ones.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the address names a group (broadcast included).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct IpAddress(pub [u8; 16]);

/// What the mapped form of an IPv4 address starts with, compared as one number.
const V4_PREFIX: u128 = u128::from_ne_bytes(IpAddress::UNSPECIFIED_V4.0);
const V4_PREFIX_MASK: u128 = (!(u32::MAX as u128)).to_be();

impl IpAddress {
    /// `0.0.0.0`, mapped.
    pub const UNSPECIFIED_V4: Self = Self::from_v4([0; 4]);
    /// `::`.
    pub const UNSPECIFIED_V6: Self = Self([0; 16]);

    /// The mapped form of an IPv4 address.
    #[inline]
    pub const fn from_v4(v4: [u8; 4]) -> Self {
        let [a, b, c, d] = v4;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address, where this is the mapped form of one.
    #[inline]
    pub const fn as_v4(self) -> Option<[u8; 4]> {
        if !self.is_v4() {
            return None;
        }
        let [.., a, b, c, d] = self.0;
        Some([a, b, c, d])
    }

    /// Whether this is the mapped form of an IPv4 address.
    #[inline]
    pub const fn is_v4(self) -> bool {
        u128::from_ne_bytes(self.0) & V4_PREFIX_MASK == V4_PREFIX
    }

    /// Whether this is `0.0.0.0` or `::`: "any address" in a bind.
    #[inline]
    pub const fn is_unspecified(self) -> bool {
        matches!(u128::from_be_bytes(self.0), 0 | 0xffff_0000_0000)
    }

    /// Whether a socket bound to this address has `other`: it is the same, or this is "any address"
    /// of the same version. (That `::` may stand for both versions is the socket's matter.)
    #[inline]
    pub fn covers(self, other: Self) -> bool {
        self == other || self.is_unspecified() && self.is_v4() == other.is_v4()
    }

    /// Whether the first `len` bits are those of `prefix`. An IPv4 prefix counts 96 bits more than
    /// usual; in a shorter one, which is IPv6's, no IPv4 address lies.
    pub fn shares_prefix(self, prefix: Self, len: u8) -> bool {
        if len < 96 && self.is_v4() {
            return false;
        }
        let differs = u128::from_be_bytes(self.0) ^ u128::from_be_bytes(prefix.0);
        len == 0 || differs >> (128 - u32::from(len.min(128))) == 0
    }

    /// The first `len` bits, and zeros. An IPv4 prefix counts 96 bits more than usual.
    pub const fn masked(self, len: u8) -> Self {
        let mask = match len {
            0 => 0,
            1..128 => u128::MAX << (128 - len as u32),
            _ => u128::MAX,
        };
        Self((u128::from_be_bytes(self.0) & mask).to_be_bytes())
    }

    /// Whether this is in `fe80::/10`, where an address means something only on its link.
    pub const fn is_link_local_v6(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Whether this is in `127.0.0.0/8` or `::1`.
    pub const fn is_loopback(self) -> bool {
        match self.as_v4() {
            Some([first, ..]) => first == 127,
            None => u128::from_be_bytes(self.0) == 1,
        }
    }

    /// Returns true in `0.0.0.0/8`, "this network" (RFC 1122 §3.2.1.3).
    #[inline]
    pub const fn is_this_network_v4(self) -> bool {
        matches!(self.as_v4(), Some([0, ..]))
    }

    /// Whether this names a group: `224.0.0.0/4`, `ff00::/8`, or the limited broadcast address.
    #[inline]
    pub const fn is_multicast_or_broadcast(self) -> bool {
        match self.as_v4() {
            Some([first, ..]) if first >> 4 == 0xe => true,
            Some(v4) => u32::from_be_bytes(v4) == u32::MAX,
            None => self.0[0] == 0xff,
        }
    }
}

impl fmt::Display for IpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_v4() {
            Some(v4) => core::net::Ipv4Addr::from(v4).fmt(f),
            None => core::net::Ipv6Addr::from(self.0).fmt(f),
        }
    }
}

impl From<[u8; 4]> for IpAddress {
    #[inline(always)]
    fn from(v4: [u8; 4]) -> Self {
        Self::from_v4(v4)
    }
}

impl From<core::net::IpAddr> for IpAddress {
    fn from(address: core::net::IpAddr) -> Self {
        match address {
            core::net::IpAddr::V4(v4) => Self::from_v4(v4.octets()),
            core::net::IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<IpAddress> for core::net::IpAddr {
    fn from(address: IpAddress) -> Self {
        match address.as_v4() {
            Some(v4) => Self::V4(v4.into()),
            None => Self::V6(address.0.into()),
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Endpoint {
    /// The host.
    pub addr: IpAddress,
    /// The port, in host byte order.
    pub port: u16,
}

impl Endpoint {
    /// The end at `addr` and `port`.
    pub const fn new(addr: IpAddress, port: u16) -> Self {
        Self { addr, port }
    }

    /// The end at an IPv4 address and `port`.
    pub const fn v4(v4: [u8; 4], port: u16) -> Self {
        Self {
            addr: IpAddress::from_v4(v4),
            port,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.addr.is_v4() {
            write!(f, "{}:{}", self.addr, self.port)
        } else {
            write!(f, "[{}]:{}", self.addr, self.port)
        }
    }
}
