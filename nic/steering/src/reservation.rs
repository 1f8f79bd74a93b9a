//! A port held in the kernel.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with,
};

/// A kernel TCP socket that is bound and does nothing else, so that nobody else gets the port.
#[derive(Debug)]
pub struct PortReservation {
    socket: OwnedFd,
    addr: [u8; 16],
    port: u16,
}

impl PortReservation {
    /// Reserves `port` of `addr` (IPv4 as `::ffff:a.b.c.d`), or if it is 0, one of the kernel's
    /// choice. The error is the kernel's: EADDRINUSE, EACCES for a privileged port, EADDRNOTAVAIL.
    pub fn new(addr: [u8; 16], port: u16) -> io::Result<Self> {
        let ip = Ipv6Addr::from(addr).to_canonical();
        let family = if ip.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        bind(&socket, &SocketAddr::new(ip, port))?;
        let bound = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Self {
            socket,
            addr,
            port: bound.port(),
        })
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

impl AsFd for PortReservation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

    #[test]
    fn a_reserved_port_is_taken_until_dropped() {
        let held = PortReservation::new(LOOPBACK, 0).unwrap();
        assert_ne!(held.port(), 0);
        let again = PortReservation::new(LOOPBACK, held.port()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        assert!(std::net::TcpStream::connect(("127.0.0.1", held.port())).is_err());
        let port = held.port();
        drop(held);
        assert_eq!(PortReservation::new(LOOPBACK, port).unwrap().port(), port);
    }

    #[test]
    fn an_address_of_another_machine_is_refused() {
        let mut foreign = LOOPBACK;
        foreign[12..].copy_from_slice(&[192, 0, 2, 1]);
        let refused = PortReservation::new(foreign, 0).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
