//! A port held in the kernel.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Gid, Uid, fchown},
    net::{
        AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with, sockopt,
    },
};

use crate::sys;

/// A kernel TCP socket that is bound and does nothing else, so that nobody else gets the port.
#[derive(Debug)]
pub struct PortReservation {
    socket: OwnedFd,
    addr: [u8; 16],
    port: u16,
}

/// A bound socket of a program, as far as it decides whether another socket may be bound beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    /// Local address (IPv4 as `::ffff:a.b.c.d`), unspecified for a wildcard.
    pub addr: [u8; 16],
    /// Local port.
    pub port: u16,
    /// A socket of `::` that leaves IPv4 to others (IPV6_V6ONLY).
    pub v6_only: bool,
    /// The interface to which the socket is restricted (SO_BINDTOIFINDEX), or 0.
    pub ifindex: u32,
    /// The owner of the socket if other sockets of the same owner may join it (SO_REUSEPORT).
    pub reuse_port: Option<u32>,
}

impl PortReservation {
    /// Reserves `port` of `addr` (IPv4 as `::ffff:a.b.c.d`), or if it is 0, one of the kernel's
    /// choice. The error is the kernel's: EADDRINUSE, EACCES for a privileged port, EADDRNOTAVAIL.
    pub fn new(addr: [u8; 16], port: u16) -> io::Result<Self> {
        let socket = new_socket(addr)?;
        Self::bind(socket, addr, port)
    }

    /// Reserves the port of a program's socket beside that socket. From now on the port is held
    /// even if the program closes its socket, or makes it give up the port (`shutdown`,
    /// `connect(AF_UNSPEC)`). Other sockets can be bound only where `twin.reuse_port` allows it, or
    /// after [`set_shared`](Self::set_shared).
    pub fn beside(twin: &Twin) -> io::Result<Self> {
        let socket = new_socket(twin.addr)?;
        if Ipv6Addr::from(twin.addr).is_unspecified() {
            sockopt::set_ipv6_v6only(&socket, twin.v6_only)?;
        }
        if twin.ifindex != 0 {
            sys::bind_to_interface(socket.as_fd(), twin.ifindex)?;
        }
        if let Some(owner) = twin.reuse_port {
            fchown(&socket, Some(Uid::from_raw(owner)), None::<Gid>)?;
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        sys::set_repair(socket.as_fd(), true)?;
        let reserved = Self::bind(socket, twin.addr, twin.port)?;
        sys::set_repair(reserved.as_fd(), false)?;
        Ok(reserved)
    }

    fn bind(socket: OwnedFd, addr: [u8; 16], port: u16) -> io::Result<Self> {
        let ip = Ipv6Addr::from(addr).to_canonical();
        bind(&socket, &SocketAddr::new(ip, port))?;
        let bound = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Self {
            socket,
            addr,
            port: bound.port(),
        })
    }

    /// Lets other sockets with SO_REUSEADDR be bound to the port, as beside a connection.
    pub fn set_shared(&self, shared: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseaddr(&self.socket, shared)?)
    }

    /// The address.
    pub fn addr(&self) -> [u8; 16] {
        self.addr
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// A TCP socket for addresses of the version of `addr`.
fn new_socket(addr: [u8; 16]) -> io::Result<OwnedFd> {
    let family = if Ipv6Addr::from(addr).to_canonical().is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        family,
        SocketType::STREAM,
        flags,
        Some(ipproto::TCP),
    )?)
}

impl AsFd for PortReservation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
