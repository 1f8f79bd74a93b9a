//! Tests of reservations of ports, most of them on loopback: reservations of free ports, and of
//! ports to which a program's socket is bound.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::net::{Shutdown, listen, shutdown};

use super::*;
use crate::bpf::check_permission;

const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
const ANY_V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];

fn may_reserve() -> bool {
    let may = check_permission().is_ok();
    if !may {
        eprintln!("SKIPPED: reservations beside sockets need CAP_NET_ADMIN (run as root)");
    }
    may
}

fn bound(addr: [u8; 16], port: u16) -> BoundSocket {
    BoundSocket {
        addr,
        port,
        v6_only: false,
        ifindex: 0,
        reuse_port: None,
    }
}

/// Binds a new TCP socket of user `owner` to the port on loopback. The last two arguments are the
/// socket's SO_REUSEADDR and SO_REUSEPORT.
fn bind_as(owner: u32, port: u16, reuse_addr: bool, reuse_port: bool) -> io::Result<OwnedFd> {
    let socket = new_socket(LOOPBACK, SocketType::STREAM)?;
    fchown(&socket, Some(Uid::from_raw(owner)), None::<Gid>)?;
    sockopt::set_socket_reuseaddr(&socket, reuse_addr)?;
    sockopt::set_socket_reuseport(&socket, reuse_port)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    Ok(socket)
}

fn is_in_use(outcome: &io::Result<OwnedFd>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

#[test]
fn a_reserved_port_is_taken_until_dropped() {
    let held = PortReservation::new(LOOPBACK, 0).unwrap();
    assert_ne!(held.port(), 0);
    let again = PortReservation::new(LOOPBACK, held.port()).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    assert!(TcpStream::connect(("127.0.0.1", held.port())).is_err());
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

/// A UDP reservation keeps other UDP sockets from its port.
#[test]
fn a_reserved_udp_port_is_taken_until_dropped() {
    let reserved = PortReservation::new_datagram(LOOPBACK, 0).unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, reserved.port()));
    let taken = std::net::UdpSocket::bind(address).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    let taken = PortReservation::new_datagram(LOOPBACK, address.port()).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(reserved);
    std::net::UdpSocket::bind(address).unwrap();
}

/// A program's listener has a reservation beside it, and the kernel still serves the listener. The
/// reservation holds the port when the program calls `shutdown` and `close` on the listener. While
/// the reservation is shared, only sockets with SO_REUSEADDR can be bound.
#[test]
fn a_reservation_holds_the_port_through_any_call_on_the_listener() {
    if !may_reserve() {
        return;
    }
    for addr in [LOOPBACK, ANY_V4] {
        let listener = new_socket(addr, SocketType::STREAM).unwrap();
        let ip = Ipv6Addr::from(addr).to_canonical();
        sockopt::set_socket_reuseaddr(&listener, true).unwrap();
        bind(&listener, &SocketAddr::new(ip, 0)).unwrap();
        listen(&listener, 1).unwrap();
        let port = SocketAddr::try_from(getsockname(&listener).unwrap())
            .unwrap()
            .port();
        let held = PortReservation::beside(&bound(addr, port)).unwrap();
        assert_eq!(held.port(), port);
        drop(TcpStream::connect(("127.0.0.1", port)).expect("the kernel's listener takes it"));
        // Without the reservation, the kernel would let other sockets bind the port after this
        // `shutdown`.
        shutdown(&listener, Shutdown::Both).unwrap();
        for reuse_addr in [false, true] {
            assert!(is_in_use(&bind_as(0, port, reuse_addr, false)));
        }
        drop(listener);
        assert!(is_in_use(&bind_as(0, port, true, false)));
        held.set_shared(true).unwrap();
        assert!(is_in_use(&bind_as(0, port, false, false)));
        bind_as(0, port, true, false).expect("the port is shared");
        held.set_shared(false).unwrap();
        assert!(is_in_use(&bind_as(0, port, true, false)));
    }
}

#[test]
fn a_reservation_admits_the_group_of_its_owner_alone() {
    if !may_reserve() {
        return;
    }
    let first = bind_as(4711, 0, false, true).unwrap();
    let port = SocketAddr::try_from(getsockname(&first).unwrap())
        .unwrap()
        .port();
    let of_4711 = BoundSocket {
        reuse_port: Some(4711),
        ..bound(LOOPBACK, port)
    };
    let _held = PortReservation::beside(&of_4711).unwrap();
    bind_as(4711, port, false, true).expect("a socket of the same group");
    assert!(is_in_use(&bind_as(4712, port, false, true)));
    assert!(is_in_use(&bind_as(4711, port, true, false)));
}

#[test]
fn a_dual_stack_reservation_holds_both_versions() {
    if !may_reserve() {
        return;
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let any = [0; 16];
    let v6_alone = BoundSocket {
        v6_only: true,
        ..bound(any, port)
    };
    {
        let _held = PortReservation::beside(&v6_alone).unwrap();
        bind_as(0, port, false, false).expect("the IPv4 port is free");
    }
    let _held = PortReservation::beside(&bound(any, port)).unwrap();
    assert!(is_in_use(&bind_as(0, port, true, false)));
}

#[test]
fn a_reserved_udp_port_stays_when_its_program_leaves() {
    for reuse in [false, true] {
        let program = new_socket(LOOPBACK, SocketType::DGRAM).unwrap();
        sockopt::set_socket_reuseaddr(&program, reuse).unwrap();
        bind(&program, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = SocketAddr::try_from(getsockname(&program).unwrap()).unwrap();
        let of_port = bound(LOOPBACK, port.port());
        let held = PortReservation::beside_datagram(&of_port, program.as_fd()).unwrap();
        assert_eq!(held.port(), port.port());
        assert_eq!(sockopt::socket_reuseaddr(&program).unwrap(), reuse);
        let again = PortReservation::beside_datagram(&of_port, program.as_fd());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(program);
        let taken = std::net::UdpSocket::bind(port).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(held);
        std::net::UdpSocket::bind(port).unwrap();
    }
}

#[test]
fn a_port_is_exclusive_if_no_socket_can_be_bound_beside() {
    if !may_reserve() {
        return;
    }
    for reuse in [false, true] {
        let program = bind_as(0, 0, reuse, false).unwrap();
        // Some kernels still apply the SO_REUSEADDR that the socket had at its `bind`.
        sockopt::set_socket_reuseaddr(&program, false).unwrap();
        let port = SocketAddr::try_from(getsockname(&program).unwrap()).unwrap();
        let of_port = bound(LOOPBACK, port.port());
        let _held = PortReservation::beside(&of_port).unwrap();
        let is_exclusive = PortReservation::is_exclusive(&of_port).unwrap();
        assert!(is_exclusive || reuse);
        let second = bind_as(0, port.port(), true, false);
        assert_eq!(is_in_use(&second), is_exclusive);
        // A second socket cannot listen beside the reservation.
        assert!(second.is_err() || listen(second.unwrap(), 1).is_err());
    }
}
