//! Reservations of ports in the kernel. While the service (the process `tidelaned`) serves a port,
//! a reservation keeps other programs from binding the port.

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

/// A kernel socket (TCP or UDP) that is bound to a port only so that no other socket can bind to
/// the port.
#[derive(Debug)]
pub struct PortReservation {
    socket: OwnedFd,
    addr: [u8; 16],
    port: u16,
}

/// A bound socket of a program, with the properties that decide whether another socket can bind the
/// port, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundSocket {
    /// Local address (IPv4 as `::ffff:a.b.c.d`), unspecified for a wildcard.
    pub addr: [u8; 16],
    /// Local port.
    pub port: u16,
    /// True for a socket that is bound to `::` but leaves IPv4 to other sockets (IPV6_V6ONLY).
    pub v6_only: bool,
    /// Index of the interface to which the socket is restricted (SO_BINDTOIFINDEX), or 0 for none.
    pub ifindex: u32,
    /// User id of the socket's owner, if other sockets of the owner may share the port
    /// (SO_REUSEPORT); otherwise `None`.
    pub reuse_port: Option<u32>,
}

impl PortReservation {
    /// Reserves TCP port `port` of `addr` (IPv4 as `::ffff:a.b.c.d`), or a port of the kernel's
    /// choice if `port` is 0. If the kernel refuses, returns the kernel's error, for example
    /// EADDRINUSE, EACCES for a privileged port, or EADDRNOTAVAIL.
    pub fn new(addr: [u8; 16], port: u16) -> io::Result<Self> {
        let socket = new_socket(addr, SocketType::STREAM)?;
        Self::bind(socket, addr, port)
    }

    /// Reserves a UDP port. Arguments and errors are those of [`new`](Self::new).
    pub fn new_datagram(addr: [u8; 16], port: u16) -> io::Result<Self> {
        let socket = new_socket(addr, SocketType::DGRAM)?;
        // Keep the receive buffer as small as the kernel allows: programs of this machine may send
        // datagrams to the reservation, and no code reads the datagrams.
        sockopt::set_socket_recv_buffer_size(&socket, 0)?;
        Self::bind(socket, addr, port)
    }

    /// Reserves the port to which a program's TCP socket is bound, by binding a second socket to
    /// the same port in repair mode (TCP_REPAIR), in which `bind` ignores other sockets. The
    /// reservation holds the port even if the program closes its socket or makes the socket release
    /// the port (`shutdown`, `connect(AF_UNSPEC)`). If `bound.reuse_port` names a user, further
    /// sockets of this user with SO_REUSEPORT can be bound to the port. Sockets with SO_REUSEADDR
    /// can be bound after [`set_shared`](Self::set_shared), and on some kernels before: see
    /// [`is_exclusive`](Self::is_exclusive).
    pub fn beside(bound: &BoundSocket) -> io::Result<Self> {
        let socket = socket_like(bound, SocketType::STREAM)?;
        if let Some(owner) = bound.reuse_port {
            fchown(&socket, Some(Uid::from_raw(owner)), None::<Gid>)?;
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        sys::set_repair(socket.as_fd(), true)?;
        let reserved = Self::bind(socket, bound.addr, bound.port)?;
        sys::set_repair(reserved.as_fd(), false)?;
        Ok(reserved)
    }

    /// Reserves the port to which `socket`, a program's UDP socket, is bound.
    /// ([`beside`](Self::beside) is the function for TCP.) Ignores `bound.reuse_port`. Returns
    /// EADDRINUSE if another socket without SO_REUSEADDR has the port, for example an earlier
    /// reservation.
    ///
    /// UDP has no repair mode. Therefore this function sets SO_REUSEADDR on the program's socket
    /// for a moment. During this moment, a third socket with SO_REUSEADDR can take the port, so the
    /// caller checks for other sockets afterwards.
    pub fn beside_datagram(bound: &BoundSocket, socket: BorrowedFd<'_>) -> io::Result<Self> {
        let own = socket_like(bound, SocketType::DGRAM)?;
        // Keep the receive buffer as small as the kernel allows: programs of this machine may send
        // datagrams to the reservation, and no code reads the datagrams.
        sockopt::set_socket_recv_buffer_size(&own, 0)?;
        sockopt::set_socket_reuseaddr(&own, true)?;
        let before = sockopt::socket_reuseaddr(socket)?;
        sockopt::set_socket_reuseaddr(socket, true)?;
        let reserved = Self::bind(own, bound.addr, bound.port);
        sockopt::set_socket_reuseaddr(socket, before)?;
        let reserved = reserved?;
        reserved.set_shared(false)?;
        Ok(reserved)
    }

    /// Returns true if the kernel refuses to bind a further TCP socket with SO_REUSEADDR, but
    /// without SO_REUSEPORT, to the port of `bound`. Some kernels let sockets with SO_REUSEADDR
    /// share a reserved port if the first socket of the port had SO_REUSEADDR at its `bind`. Linux
    /// 6.18 refuses these sockets.
    pub fn is_exclusive(bound: &BoundSocket) -> io::Result<bool> {
        let probe = socket_like(bound, SocketType::STREAM)?;
        sockopt::set_socket_reuseaddr(&probe, true)?;
        match Self::bind(probe, bound.addr, bound.port) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(true),
            Err(error) => Err(error),
        }
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

    /// Sets SO_REUSEADDR of the reservation to `shared`. If `shared` is true, other sockets with
    /// SO_REUSEADDR can be bound to the port. Linux lets TCP sockets share a port in this way only
    /// while no socket of the port listens.
    pub fn set_shared(&self, shared: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseaddr(&self.socket, shared)?)
    }

    /// Returns the reserved address (IPv4 as `::ffff:a.b.c.d`).
    pub fn addr(&self) -> [u8; 16] {
        self.addr
    }

    /// Returns the reserved port, also if the kernel chose the port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Opens an unbound socket with the IP version, IPV6_V6ONLY and interface of `bound`.
fn socket_like(bound: &BoundSocket, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = new_socket(bound.addr, kind)?;
    if Ipv6Addr::from(bound.addr).is_unspecified() {
        sockopt::set_ipv6_v6only(&socket, bound.v6_only)?;
    }
    if bound.ifindex != 0 {
        sys::bind_to_interface(socket.as_fd(), bound.ifindex)?;
    }
    Ok(socket)
}

/// Opens a TCP or UDP socket for the IP version of `addr`.
fn new_socket(addr: [u8; 16], kind: SocketType) -> io::Result<OwnedFd> {
    let family = if Ipv6Addr::from(addr).to_canonical().is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let protocol = match kind {
        SocketType::DGRAM => ipproto::UDP,
        _ => ipproto::TCP,
    };
    Ok(socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        Some(protocol),
    )?)
}

impl AsFd for PortReservation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
