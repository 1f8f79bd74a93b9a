//! The local addresses of a stack, and the check of received packets against them.

use tidelane_engine::IpAddress;
use tidelane_wire::{DropReason, Packet};

/// The local addresses of a stack.
#[derive(Debug)]
pub struct Addresses {
    list: Vec<IpAddress>,
    /// True if other stacks have the same addresses. Packets from these addresses are then valid.
    shared: bool,
}

impl Addresses {
    /// Returns the local addresses in `list`. `shared` is true if other stacks use the same
    /// addresses.
    pub fn new(list: Vec<IpAddress>, shared: bool) -> Self {
        Self { list, shared }
    }

    /// Returns all local addresses.
    pub fn all(&self) -> &[IpAddress] {
        &self.list
    }

    /// Returns the first local address, or the unspecified address if the list is empty.
    pub fn first(&self) -> IpAddress {
        self.list.first().copied().unwrap_or_default()
    }

    /// Returns the first local address that has the same IP version as `peer`.
    pub fn first_for(&self, peer: IpAddress) -> Option<IpAddress> {
        let of_version = |address: &&IpAddress| address.is_v4() == peer.is_v4();
        self.list.iter().find(of_version).copied()
    }

    /// Returns true if `address` is a local address.
    pub fn has(&self, address: IpAddress) -> bool {
        self.list.contains(&address)
    }

    /// Returns an error with the drop reason if the destination of `packet` is not a local address,
    /// or if the source is invalid. A multicast, broadcast, unspecified or loopback address and an
    /// address of `0.0.0.0/8` are invalid sources. If no other stack has the local addresses, a
    /// local address is an invalid source, too.
    pub fn check(&self, packet: &Packet<'_>) -> Result<(), DropReason> {
        if !self.list.contains(&packet.dst) {
            return Err(DropReason::NotOurs);
        }
        let src = packet.src;
        let is_martian = src.is_multicast_or_broadcast()
            || src.is_unspecified()
            || src.is_this_network_v4()
            || src.is_loopback();
        let is_own = !self.shared && self.list.contains(&src);
        match is_martian || is_own {
            true => Err(DropReason::MartianSource),
            false => Ok(()),
        }
    }
}
