//! [`Kernel`]: the kernel services that a context on a NIC queue needs, as a trait.

use std::{io, net::IpAddr};

use tidelane_wire::{IpAddress, MacAddress};

/// Protocol of a claimed port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Grants claims of ports, and resolves link addresses. A claim reserves a port in the kernel, and
/// steers the port's packets to the context. Tests implement a fake kernel.
pub trait Kernel {
    /// Reserves a port of `addr` in the kernel, and steers the port's packets to the context. If
    /// `port` is zero, the kernel selects a port. Returns the port.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a kernel socket uses the port. Otherwise, the errors of `bind` and of the
    /// demux.
    fn claim(&mut self, addr: IpAddress, transport: Transport, port: u16) -> io::Result<u16>;

    /// Removes the reservation and the steering of a port.
    fn release(&mut self, addr: IpAddress, transport: Transport, port: u16);

    /// Returns the link address of the next hop to `peer`. The call may wait for up to 200 ms while
    /// the kernel resolves the address.
    ///
    /// # Errors
    ///
    /// `NetworkUnreachable` if no route to `peer` leads over the interface. `HostUnreachable` if
    /// the next hop does not answer in time.
    fn next_hop(&mut self, peer: IpAddr) -> io::Result<MacAddress>;
}
