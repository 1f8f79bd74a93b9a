//! The kernel's part of a context, as a trait.

use std::{io, net::IpAddr};

use tidelane_wire::{IpAddress, MacAddress};

/// The needs of a context beside the packets: ports, and link addresses.
pub trait Kernel {
    /// Reserves a TCP port of `addr` in the kernel, and sends its packets to the context from now
    /// on. The kernel chooses the port if `port` is zero. Returns the port.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a socket of the kernel has the port. Otherwise the errors of `bind` and of
    /// the demux.
    fn claim(&mut self, addr: IpAddress, port: u16) -> io::Result<u16>;

    /// Leaves a port to the kernel again.
    fn release(&mut self, addr: IpAddress, port: u16);

    /// Returns the link address of the next hop to `peer`. The call may wait for a fraction of a
    /// second while the kernel resolves the address.
    ///
    /// # Errors
    ///
    /// `NetworkUnreachable` without a route over the interface. `HostUnreachable` if the next hop
    /// does not answer.
    fn next_hop(&mut self, peer: IpAddr) -> io::Result<MacAddress>;
}
