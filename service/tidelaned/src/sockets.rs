//! What the kernel says of a socket that a program sent: MultiStack's contract is that a program
//! may have a port in the service because it has it in the kernel.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use rustix::net::{AddressFamily, SocketType, getsockname, ipproto, sockopt};
use tidelane_wire::{Endpoint, IpAddress};

/// A kernel TCP socket that is bound.
#[derive(Clone, Copy, Debug)]
pub struct KernelSocket {
    /// Identity of the socket, the same through every descriptor of it.
    pub cookie: u64,
    /// Its local address, `0.0.0.0` or `::` for a wildcard.
    pub local: Endpoint,
    /// Whether it is of AF_INET6 and takes nothing over IPv4 (IPV6_V6ONLY).
    pub v6_only: bool,
    /// Whether it listens.
    pub listens: bool,
}

impl KernelSocket {
    /// Its local ends, one for each IP version.
    pub fn ends(&self) -> impl Iterator<Item = Endpoint> {
        let dual = self.local.addr == IpAddress::UNSPECIFIED_V6 && !self.v6_only;
        let v4 = Endpoint::new(IpAddress::UNSPECIFIED_V4, self.local.port);
        std::iter::once(self.local).chain(dual.then_some(v4))
    }
}

/// Looks at `fd`. `None` unless it is a bound TCP socket, and not of one link only.
pub fn examine(fd: &OwnedFd) -> io::Result<Option<KernelSocket>> {
    let family = sockopt::socket_domain(fd)?;
    let tcp = sockopt::socket_type(fd)? == SocketType::STREAM
        && sockopt::socket_protocol(fd)? == Some(ipproto::TCP);
    if !tcp || !matches!(family, AddressFamily::INET | AddressFamily::INET6) {
        return Ok(None);
    }
    let Ok(local) = SocketAddr::try_from(getsockname(fd)?) else {
        return Ok(None);
    };
    let addr = IpAddress::from(local.ip());
    if addr.is_link_local_v6() {
        return Ok(None);
    }
    Ok(Some(KernelSocket {
        cookie: sockopt::socket_cookie(fd)?,
        local: Endpoint::new(addr, local.port()),
        v6_only: family == AddressFamily::INET6 && sockopt::ipv6_v6only(fd)?,
        listens: sockopt::socket_acceptconn(fd)?,
    }))
}
