//! [`Kernel`]: a trait with the calls to the kernel that a context on a NIC queue needs. A context
//! is a TCP/IP stack in the program.

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
/// makes the demux (an XDP program) steer the port's packets to the context. Tests implement a fake
/// kernel.
pub trait Kernel {
    /// Claims a port at the local address `addr`. If `port` is zero, the kernel selects a port.
    /// Returns the claimed port.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a kernel socket uses the port. Otherwise, the errors of `bind` and of the
    /// demux.
    fn claim(&mut self, addr: IpAddress, transport: Transport, port: u16) -> io::Result<u16>;

    /// Ends the claim of a port: removes the reservation in the kernel and the steering.
    fn release(&mut self, addr: IpAddress, transport: Transport, port: u16);

    /// Returns the link address of the next hop to `peer`. The call may wait for up to 200 ms while
    /// the kernel resolves the address.
    ///
    /// # Errors
    ///
    /// `NetworkUnreachable` if no route to `peer` leads over the interface. `HostUnreachable` if
    /// the link address is still unknown when the call ends its wait.
    fn next_hop(&mut self, peer: IpAddr) -> io::Result<MacAddress>;
}
