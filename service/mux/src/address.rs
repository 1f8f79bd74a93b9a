//! [`Address`]: checks of an IP address, with separate code for packets that are known to be IPv4.

use tidelane_wire::{
    IpAddress,
    checksum::{self, Sum},
};

/// The address type of a packet: `[u8; 4]` for IPv4, or [`IpAddress`]. The checks of IPv4 packets
/// are compiled for four bytes, which takes fewer instructions per packet.
pub trait Address: Copy + Into<IpAddress> {
    /// Returns true if the address is multicast, or the limited broadcast address.
    fn is_multicast_or_broadcast(self) -> bool;

    /// Returns true if the address cannot be the address of a peer, because the address is
    /// unspecified, loopback or in "this network" (0.0.0.0/8).
    fn is_no_peer(self) -> bool;

    /// Returns the sum of the pseudo-header of a packet from `self` to `dst`. `len` is the length
    /// of transport header and payload in bytes.
    fn pseudo_header(self, dst: Self, protocol: u8, len: u32) -> Sum;

    /// Returns true if `addresses` contains this address. Compares each address as one number,
    /// because the bytes of this address are in registers.
    #[inline(always)]
    fn is_one_of(self, addresses: &[IpAddress]) -> bool {
        let bits = u128::from_ne_bytes(self.into().0);
        let mut addresses = addresses.iter();
        addresses.any(|known| u128::from_ne_bytes(known.0) == bits)
    }
}

impl Address for [u8; 4] {
    #[inline(always)]
    fn is_multicast_or_broadcast(self) -> bool {
        self[0] >> 4 == 0xe || self == [u8::MAX; 4]
    }

    #[inline(always)]
    fn is_no_peer(self) -> bool {
        self[0] == 0 || self[0] == 127
    }

    #[inline(always)]
    fn pseudo_header(self, dst: Self, protocol: u8, len: u32) -> Sum {
        checksum::pseudo_header_v4(self, dst, protocol, len)
    }
}

impl Address for IpAddress {
    #[inline(always)]
    fn is_multicast_or_broadcast(self) -> bool {
        IpAddress::is_multicast_or_broadcast(self)
    }

    #[inline(always)]
    fn is_no_peer(self) -> bool {
        match self.as_v4() {
            Some(v4) => v4.is_no_peer(),
            None => self.is_unspecified() || self.is_loopback(),
        }
    }

    #[inline(always)]
    fn pseudo_header(self, dst: Self, protocol: u8, len: u32) -> Sum {
        checksum::pseudo_header(self, dst, protocol, len)
    }
}
