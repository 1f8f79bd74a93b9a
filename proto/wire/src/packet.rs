//! A parsed IP packet of either version.

use crate::address::{IpAddress, MacAddress};

/// IP protocol numbers.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not-ECT: not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECT(1): ECN-capable.
    Ect1 = 1,
    /// ECT(0): ECN-capable. Senders that follow RFC 3168 use this codepoint.
    Ect0 = 2,
    /// CE: congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// Returns the ECN field, which is the low two bits of the TOS or traffic class byte.
    #[inline]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// A parsed IP packet. `A` is the address type: [`IpAddress`], or `[u8; 4]` for IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a, A = IpAddress> {
    /// Source MAC address; zero if the packet was parsed without an Ethernet frame.
    pub src_mac: MacAddress,
    /// Destination MAC address; zero if the packet was parsed without an Ethernet frame.
    pub dst_mac: MacAddress,
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// ECN field.
    pub ecn: Ecn,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Transport protocol: see [`protocol`].
    pub protocol: u8,
    /// True if DF is set. Always true for IPv6, because IPv6 routers do not fragment.
    pub df: bool,
    /// Transport header and transport payload, without Ethernet padding.
    pub payload: &'a [u8],
}

impl<'a, A: Into<IpAddress>> Packet<'a, A> {
    /// Converts the type of the addresses to [`IpAddress`].
    #[inline(always)]
    pub fn widen(self) -> Packet<'a> {
        Packet {
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            src: self.src.into(),
            dst: self.dst.into(),
            ecn: self.ecn,
            ttl: self.ttl,
            protocol: self.protocol,
            df: self.df,
            payload: self.payload,
        }
    }
}
