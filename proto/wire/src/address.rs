//! Ethernet addresses, IP addresses and endpoints.

use core::fmt;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns true if the address is multicast or broadcast.
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

/// An IP address of either version. An IPv4 address is stored in its mapped form, `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct IpAddress(pub [u8; 16]);

/// Prefix of an IPv4-mapped address, as one number for a fast comparison.
const V4_PREFIX: u128 = u128::from_ne_bytes(IpAddress::UNSPECIFIED_V4.0);
/// Bits of the prefix: all except the 32 bits of the IPv4 address.
const V4_PREFIX_MASK: u128 = (!(u32::MAX as u128)).to_be();

impl IpAddress {
    /// `0.0.0.0` in mapped form.
    pub const UNSPECIFIED_V4: Self = Self::from_v4([0; 4]);
    /// `::`.
    pub const UNSPECIFIED_V6: Self = Self([0; 16]);

    /// Returns the mapped form of an IPv4 address.
    #[inline]
    pub const fn from_v4(v4: [u8; 4]) -> Self {
        let [a, b, c, d] = v4;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Returns the IPv4 address, or `None` for an IPv6 address.
    #[inline]
    pub const fn as_v4(self) -> Option<[u8; 4]> {
        if !self.is_v4() {
            return None;
        }
        let [.., a, b, c, d] = self.0;
        Some([a, b, c, d])
    }

    /// Returns true for the mapped form of an IPv4 address.
    #[inline]
    pub const fn is_v4(self) -> bool {
        u128::from_ne_bytes(self.0) & V4_PREFIX_MASK == V4_PREFIX
    }

    /// Returns true for `0.0.0.0` and `::`. A socket that is bound to one of these addresses
    /// receives packets for every local address.
    #[inline]
    pub const fn is_unspecified(self) -> bool {
        matches!(u128::from_be_bytes(self.0), 0 | 0xffff_0000_0000)
    }

    /// Returns true if a socket that is bound to this address receives packets for the address
    /// `other`: the addresses are equal, or this address is the unspecified address of the same IP
    /// version. For `::` and an IPv4 address, the function returns false, although a dual-stack
    /// socket that is bound to `::` also receives IPv4 packets.
    #[inline]
    pub fn covers(self, other: Self) -> bool {
        self == other || self.is_unspecified() && self.is_v4() == other.is_v4()
    }

    /// Returns true if the first `len` bits of `self` equal the first `len` bits of `prefix`. The
    /// length of an IPv4 prefix includes the 96 bits of the mapped form: the `len` of `10.0.0.0/8`
    /// is 104. A prefix shorter than 96 bits is an IPv6 prefix and contains no IPv4 address.
    pub fn shares_prefix(self, prefix: Self, len: u8) -> bool {
        if len < 96 && self.is_v4() {
            return false;
        }
        let differs = u128::from_be_bytes(self.0) ^ u128::from_be_bytes(prefix.0);
        len == 0 || differs >> (128 - u32::from(len.min(128))) == 0
    }

    /// Returns the address with all bits cleared except the first `len` bits. For IPv4, `len`
    /// includes the 96 bits of the mapped form.
    pub const fn masked(self, len: u8) -> Self {
        let mask = match len {
            0 => 0,
            1..128 => u128::MAX << (128 - len as u32),
            _ => u128::MAX,
        };
        Self((u128::from_be_bytes(self.0) & mask).to_be_bytes())
    }

    /// Returns true for addresses in `fe80::/10`, which are valid on one link only.
    pub const fn is_link_local_v6(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Returns true for `127.0.0.0/8` and `::1`.
    pub const fn is_loopback(self) -> bool {
        match self.as_v4() {
            Some([first, ..]) => first == 127,
            None => u128::from_be_bytes(self.0) == 1,
        }
    }

    /// Returns true for `0.0.0.0/8`, "this network" (RFC 1122 §3.2.1.3).
    #[inline]
    pub const fn is_this_network_v4(self) -> bool {
        matches!(self.as_v4(), Some([0, ..]))
    }

    /// Returns true for multicast addresses (`224.0.0.0/4`, `ff00::/8`) and the limited broadcast
    /// address (`255.255.255.255`).
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

/// Address and port of one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Endpoint {
    /// Address of the host.
    pub addr: IpAddress,
    /// Port, in host byte order.
    pub port: u16,
}

impl Endpoint {
    /// Creates an endpoint.
    pub const fn new(addr: IpAddress, port: u16) -> Self {
        Self { addr, port }
    }

    /// Creates an endpoint with an IPv4 address.
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
