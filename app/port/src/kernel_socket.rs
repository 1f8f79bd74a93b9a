//! Kernel sockets. With such a socket, a program proves to the service (the process `tidelaned`)
//! that the program may use a 3-tuple (protocol, local address and local port).

use std::{
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with, sockopt,
};

use crate::protocol::Protocol;

/// Opens a kernel socket and binds it to `addr`. If the port of `addr` is 0, the kernel chooses a
/// port. An IPv6 socket has IPV6_V6ONLY. A UDP socket does not have SO_REUSEADDR. For TCP, tries
/// `bind` without SO_REUSEADDR first. If this `bind` fails with EADDRINUSE, for example because the
/// port has connections in TIME-WAIT, tries again with SO_REUSEADDR.
pub fn bound(protocol: Protocol, addr: SocketAddr) -> io::Result<OwnedFd> {
    match bind_new(protocol, addr, false) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && protocol == Protocol::Tcp => {
            bind_new(protocol, addr, true)
        }
        bound => bound,
    }
}

/// Opens a kernel socket with the option SO_REUSEADDR if `reuse` is true, and binds it to `addr`.
fn bind_new(protocol: Protocol, addr: SocketAddr, reuse: bool) -> io::Result<OwnedFd> {
    let family = match addr {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let (kind, number) = match protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(number))?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_reuseaddr(&socket, reuse)?;
    bind(&socket, &addr)?;
    Ok(socket)
}

/// Returns the protocol, the local address and the local port of a TCP or UDP socket. Returns
/// `InvalidInput` for a socket of another protocol.
pub fn tuple_of(socket: BorrowedFd<'_>) -> io::Result<(Protocol, SocketAddr)> {
    let protocol = match sockopt::socket_protocol(socket)? {
        Some(ipproto::TCP) => Protocol::Tcp,
        Some(ipproto::UDP) => Protocol::Udp,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok((protocol, SocketAddr::try_from(getsockname(socket)?)?))
}
