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
    /// Its local address, unspecified for a wildcard.
    pub local: Endpoint,
    /// Whether it listens.
    pub listens: bool,
}

/// Looks at `fd`. `None` unless it is a bound TCP socket over IPv4.
pub fn examine(fd: &OwnedFd) -> io::Result<Option<KernelSocket>> {
    let tcp = sockopt::socket_domain(fd)? == AddressFamily::INET
        && sockopt::socket_type(fd)? == SocketType::STREAM
        && sockopt::socket_protocol(fd)? == Some(ipproto::TCP);
    if !tcp {
        return Ok(None);
    }
    let Ok(SocketAddr::V4(local)) = SocketAddr::try_from(getsockname(fd)?) else {
        return Ok(None);
    };
    let addr = if local.ip().is_unspecified() {
        IpAddress::default()
    } else {
        IpAddress::from_v4(local.ip().octets())
    };
    Ok(Some(KernelSocket {
        cookie: sockopt::socket_cookie(fd)?,
        local: Endpoint {
            addr,
            port: local.port(),
        },
        listens: sockopt::socket_acceptconn(fd)?,
    }))
}
