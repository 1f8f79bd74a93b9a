//! Connections within this machine (the host) at addresses that the served interface does not have:
//! loopback, and addresses of other interfaces.
//!
//! These connections use the local path (segments in memory) if both programs may connect within
//! the host (`docs/design/loopback.md`). No frame from the wire can have the 4-tuple of one of
//! these connections: the destination of a frame must be an address of the served interface, and
//! neither end of the connection has an address of this interface.

use tidelane_engine::IpAddress;

/// Source address of a connection to `127.0.0.0/8` if the program has not bound its socket to an
/// address.
pub(crate) const LOCALHOST_V4: IpAddress = IpAddress::from_v4([127, 0, 0, 1]);

/// The host's addresses that the served interface does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressesWithin {
    /// True if `127.0.0.0/8` is local: the kernel's loopback interface is up.
    pub localnet: bool,
    /// Single addresses: `::1`, and the addresses of other interfaces.
    pub single: Vec<IpAddress>,
}

impl AddressesWithin {
    /// Returns true if `addr` is one of these addresses: the kernel delivers packets for `addr` to
    /// this host, and the served interface does not have `addr`.
    pub fn has(&self, addr: IpAddress) -> bool {
        self.has_localnet(addr) || self.single.contains(&addr)
    }

    /// Returns the address from which the kernel would connect an unbound socket to `peer`. Returns
    /// `None` if `peer` is not one of these addresses.
    pub fn source_for(&self, peer: IpAddress) -> Option<IpAddress> {
        match self.has_localnet(peer) {
            true => Some(LOCALHOST_V4),
            false => self.single.contains(&peer).then_some(peer),
        }
    }

    /// Returns true if a connection from `local` to `peer` may use the local path: both addresses
    /// are in `127.0.0.0/8`, or both are the same address of `single`.
    fn joins(&self, local: IpAddress, peer: IpAddress) -> bool {
        let in_localnet = self.has_localnet(local) && self.has_localnet(peer);
        in_localnet || local == peer && self.single.contains(&peer)
    }

    /// Returns true if `addr` needs a pool of ephemeral ports, because the kernel chooses `addr` as
    /// a source address.
    pub fn has_pool(&self, addr: IpAddress) -> bool {
        self.source_for(addr) == Some(addr)
    }

    /// Returns the local address of a connection to `peer` within this host. `wanted` is the
    /// address to which the socket is bound, or the unspecified address. `port` is the port to
    /// which the socket is bound, or zero. Returns `None` if the kernel has to handle the
    /// connection.
    pub fn source(&self, wanted: IpAddress, port: u16, peer: IpAddress) -> Option<IpAddress> {
        let source = match wanted.is_unspecified() {
            true => self.source_for(peer)?,
            false => wanted,
        };
        let has_port = port != 0 || self.has_pool(source);
        (has_port && self.joins(source, peer)).then_some(source)
    }

    fn has_localnet(&self, addr: IpAddress) -> bool {
        self.localnet && addr.is_v4() && addr.is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCALHOST_V6: IpAddress = IpAddress([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    const OTHER: IpAddress = IpAddress::from_v4([192, 168, 1, 1]);

    fn host() -> AddressesWithin {
        AddressesWithin {
            localnet: true,
            single: vec![LOCALHOST_V6, OTHER],
        }
    }

    fn localnet(last: u8) -> IpAddress {
        IpAddress::from_v4([127, 1, 0, last])
    }

    #[test]
    fn sources_are_the_kernels() {
        for (peer, source) in [
            (localnet(9), Some(LOCALHOST_V4)),
            (LOCALHOST_V4, Some(LOCALHOST_V4)),
            (LOCALHOST_V6, Some(LOCALHOST_V6)),
            (OTHER, Some(OTHER)),
            (IpAddress::from_v4([192, 168, 1, 2]), None),
            (IpAddress::UNSPECIFIED_V4, None),
        ] {
            assert_eq!(host().source_for(peer), source, "{peer}");
        }
        let down = AddressesWithin::default();
        assert_eq!(down.source_for(LOCALHOST_V4), None);
        assert!(!down.has(LOCALHOST_V4) && !down.has(LOCALHOST_V6));
    }

    #[test]
    fn ends_are_of_one_kind_and_pools_are_few() {
        let host = host();
        assert!(host.joins(localnet(1), localnet(2)));
        assert!(host.joins(OTHER, OTHER) && host.joins(LOCALHOST_V6, LOCALHOST_V6));
        assert!(!host.joins(LOCALHOST_V4, OTHER) && !host.joins(OTHER, LOCALHOST_V4));
        assert!(host.has_pool(LOCALHOST_V4) && host.has_pool(OTHER));
        assert!(!host.has_pool(localnet(9)));
    }
}
