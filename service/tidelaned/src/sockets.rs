//! The kernel's description of a socket that a program sent.
//!
//! The Tidelane service takes the packets of a port for a program only if the program has the port
//! in the kernel. [`Entitlement`] checks this condition: see `docs/design/claims.md`.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::BorrowedFd,
};

use rustix::{
    fs::fstat,
    io::Errno,
    net::{AddressFamily, SocketType, bind, getpeername, getsockname, ipproto, sockopt},
};
use tidelane_steering::{BoundSocket, Lookup};
use tidelane_wire::{Endpoint, IpAddress, protocol};

use crate::{netns::NetNs, sys};

/// `TCP_ESTABLISHED`, `TCP_CLOSE` and `TCP_LISTEN` in the kernel.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// Index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

/// A kernel TCP or UDP socket with a local address.
#[derive(Clone, Copy, Debug)]
pub struct KernelSocket {
    /// IP protocol of the socket: TCP or UDP.
    pub protocol: u8,
    /// Identity of the socket (SO_COOKIE), which is the same for all of its descriptors.
    pub cookie: u64,
    /// Local address and port. The address is `0.0.0.0` or `::` for a wildcard.
    pub local: Endpoint,
    /// True for an AF_INET6 socket without IPv4 (IPV6_V6ONLY).
    pub v6_only: bool,
    /// True if other sockets may bind the port while the socket's connections exist
    /// (SO_REUSEADDR).
    pub reuse_address: bool,
    /// True if other sockets of the owner may share the port (SO_REUSEPORT).
    reuse_port: bool,
    /// TCP state, with the kernel's number. A UDP socket is in CLOSE unless it is connected.
    state: u8,
    /// Index of the interface to which the socket is bound, or 0.
    ifindex: u32,
    /// Inode number of the socket.
    inode: u64,
    /// Uid of the socket's owner.
    owner: u32,
}

impl KernelSocket {
    /// Returns true if the socket listens.
    pub fn listens(&self) -> bool {
        self.state == LISTEN
    }

    /// Returns the socket's local endpoints, one for each IP version.
    pub fn ends(&self) -> impl Iterator<Item = Endpoint> {
        let dual = self.local.addr == IpAddress::UNSPECIFIED_V6 && !self.v6_only;
        let v4 = Endpoint::new(IpAddress::UNSPECIFIED_V4, self.local.port);
        std::iter::once(self.local).chain(dual.then_some(v4))
    }

    /// Returns the inode number of the socket.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the parameters of a second socket, which the service binds beside the program's
    /// socket to reserve the port.
    pub fn bound_socket(&self) -> BoundSocket {
        BoundSocket {
            addr: self.local.addr.0,
            port: self.local.port,
            v6_only: self.v6_only,
            ifindex: self.ifindex,
            reuse_port: self.group(),
        }
    }

    /// Returns the uid of the owner of the socket's SO_REUSEPORT group. Returns `None` if the
    /// socket is in no group.
    pub fn group(&self) -> Option<u32> {
        self.reuse_port.then_some(self.owner)
    }
}

/// Returns the kernel's description of the socket `fd`. Returns `None` if the socket is not a TCP
/// or UDP socket, or if it has no local port, or if its local address is IPv6 link-local. Returns
/// an error if `fd` is no socket.
pub fn examine(fd: BorrowedFd<'_>) -> io::Result<Option<KernelSocket>> {
    let family = sockopt::socket_domain(fd)?;
    let protocol = match (sockopt::socket_type(fd)?, sockopt::socket_protocol(fd)?) {
        (SocketType::STREAM, Some(ipproto::TCP)) => protocol::TCP,
        (SocketType::DGRAM, Some(ipproto::UDP)) => protocol::UDP,
        _ => return Ok(None),
    };
    if !matches!(family, AddressFamily::INET | AddressFamily::INET6) {
        return Ok(None);
    }
    let Ok(local) = SocketAddr::try_from(getsockname(fd)?) else {
        return Ok(None);
    };
    let addr = IpAddress::from(local.ip());
    if addr.is_link_local_v6() || local.port() == 0 {
        return Ok(None);
    }
    let file = fstat(fd)?;
    Ok(Some(KernelSocket {
        protocol,
        cookie: sockopt::socket_cookie(fd)?,
        local: Endpoint::new(addr, local.port()),
        v6_only: family == AddressFamily::INET6 && sockopt::ipv6_v6only(fd)?,
        reuse_address: sockopt::socket_reuseaddr(fd)?,
        reuse_port: sockopt::socket_reuseport(fd)?,
        state: state_of(fd, protocol)?,
        ifindex: sys::bound_interface(fd)?,
        inode: file.st_ino,
        owner: file.st_uid,
    }))
}

/// Returns the cookie (SO_COOKIE) of a TCP socket. The boolean of the result is true if the socket
/// listens. The cookie is unique among the sockets of all network namespaces. Returns `None` for
/// other descriptors.
pub fn listening_state(fd: BorrowedFd<'_>) -> Option<(u64, bool)> {
    if sockopt::socket_protocol(fd).ok()?? != ipproto::TCP {
        return None;
    }
    let listens = state_of(fd, protocol::TCP).ok()? == LISTEN;
    Some((sockopt::socket_cookie(fd).ok()?, listens))
}

/// Returns the state of a TCP socket, or the corresponding state of a UDP socket.
fn state_of(fd: BorrowedFd<'_>, protocol: u8) -> io::Result<u8> {
    if protocol == protocol::UDP {
        let is_connected = getpeername(fd).is_ok_and(|peer| peer.is_some());
        return Ok(if is_connected { ESTABLISHED } else { CLOSE });
    }
    let mut state = [0];
    sys::tcp_option(fd, libc::TCP_INFO, &mut state)?;
    Ok(state[0])
}

/// Decides whether a program's socket entitles the program to the socket's port: whether the
/// program has the port in the kernel.
pub struct Entitlement {
    /// Network namespace of the service.
    namespace: NetNs,
    /// Index of the served interface.
    ifindex: u32,
    /// Queries the kernel for the socket that gets a SYN. `None` on a kernel without
    /// CONFIG_INET_DIAG.
    lookup: Option<Lookup>,
}

impl Entitlement {
    /// Creates the check for the interface `ifindex` in `namespace`, which must be the calling
    /// thread's network namespace. If `asks` is true, the check queries the kernel for the socket
    /// that gets a SYN. `asks` is the result of [`can_ask`](Self::can_ask).
    pub fn new(namespace: NetNs, ifindex: u32, asks: bool) -> io::Result<Self> {
        Ok(Self {
            namespace,
            ifindex,
            lookup: asks.then(Lookup::open).transpose()?,
        })
    }

    /// Returns true if the kernel can be queried for the socket that gets a SYN. Otherwise logs the
    /// error. Without queries, every listening socket of the right namespace and interface entitles
    /// its program.
    pub fn can_ask() -> bool {
        let tried = Lookup::open().and_then(|mut lookup| lookup.self_test());
        if let Err(error) = &tried {
            eprintln!("tidelaned: cannot query the kernel's sockets (CONFIG_INET_DIAG): {error}");
        }
        tried.is_ok()
    }

    /// Returns the kernel's description of the TCP socket `fd`. Returns `None` for a socket of
    /// another network namespace, for a socket that is bound to an interface other than the served
    /// interface, and for other descriptors.
    pub fn examine(&self, fd: BorrowedFd<'_>) -> Option<KernelSocket> {
        let socket = self.examine_any(fd)?;
        (socket.protocol == protocol::TCP).then_some(socket)
    }

    /// Does the same as [`examine`](Self::examine), but for TCP and UDP sockets.
    pub fn examine_any(&self, fd: BorrowedFd<'_>) -> Option<KernelSocket> {
        let socket = examine(fd).ok().flatten()?;
        let here = NetNs::of_socket(fd).is_ok_and(|namespace| namespace == self.namespace);
        let served = socket.ifindex == 0 || socket.ifindex == self.ifindex;
        (here && served).then_some(socket)
    }

    /// Returns true if the kernel delivers SYNs from programs of the same host to this listening
    /// socket. Returns false for a socket that is bound to an interface, and for a socket of an
    /// SO_REUSEPORT group, because another member may get the SYN. Also returns false if the kernel
    /// cannot be queried.
    pub fn is_delivered_within_host(&mut self, socket: &KernelSocket) -> bool {
        let Some(lookup) = &mut self.lookup else {
            return false;
        };
        if socket.ifindex != 0 || socket.reuse_port {
            return false;
        }
        socket.ends().all(|end| {
            let addr = match (end.addr.is_unspecified(), end.addr.is_v4()) {
                (false, _) => end.addr.0,
                (true, true) => Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
                (true, false) => Ipv6Addr::LOCALHOST.octets(),
            };
            let found = lookup.listener(addr, end.port, LOOPBACK).ok().flatten();
            found.is_some_and(|found| found.cookie == socket.cookie)
        })
    }

    /// Returns true if the kernel has a listening socket for the port of `socket` at one of
    /// `addresses`. Also returns true if a query fails. Returns false if the kernel cannot be
    /// queried.
    pub fn has_listener(&mut self, socket: &KernelSocket, addresses: &[IpAddress]) -> bool {
        let Some(lookup) = &mut self.lookup else {
            return false;
        };
        addresses.iter().any(|addr| {
            let found = lookup.listener(addr.0, socket.local.port, self.ifindex);
            !matches!(found, Ok(None))
        })
    }

    /// Returns true if the socket listens, and the kernel delivers SYNs for all of `addresses` to
    /// the socket or its SO_REUSEPORT group, whose sockets have one owner. If the kernel cannot be
    /// queried, returns true for every listening socket.
    pub fn is_delivered_to(&mut self, socket: &KernelSocket, addresses: &[IpAddress]) -> bool {
        if !socket.listens() {
            return false;
        }
        let Some(lookup) = &mut self.lookup else {
            return true;
        };
        addresses.iter().all(|addr| {
            let found = lookup.listener(addr.0, socket.local.port, self.ifindex);
            found.ok().flatten().is_some_and(|found| {
                let of_group = socket.reuse_port
                    && found.uid == socket.owner
                    && found.addr == socket.local.addr.0;
                found.cookie == socket.cookie || of_group
            })
        })
    }
}

/// Returns true if the socket is bound to its port, does not listen and is not connected.
/// After the end of a connection, `getsockname` still returns the port, although the socket may
/// have lost the port. `bind` fails with EINVAL only on a bound socket, and therefore shows whether
/// the socket still has the port.
pub fn is_bound_only(fd: BorrowedFd<'_>, socket: &KernelSocket) -> bool {
    let family = sockopt::socket_domain(fd);
    let any = match family {
        Ok(AddressFamily::INET) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        _ => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let holds_port = matches!(bind(fd, &any), Err(Errno::INVAL));
    let now = examine(fd).ok().flatten();
    let unchanged = now.is_some_and(|now| {
        (now.cookie, now.local, now.ifindex) == (socket.cookie, socket.local, socket.ifindex)
            && now.state == CLOSE
    });
    holds_port && unchanged
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use rustix::net::{Shutdown, connect, listen, shutdown, socket};
    use tidelane_steering::PortReservation;

    use super::*;

    fn bound(addr: &str) -> std::os::fd::OwnedFd {
        let fresh = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let addr: SocketAddr = addr.parse().expect("an address");
        bind(&fresh, &addr).expect("a port");
        fresh
    }

    fn entitlement() -> Option<Entitlement> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let here = NetNs::current().expect("a namespace");
        let entitlement = Entitlement::new(here, LOOPBACK, Entitlement::can_ask());
        Some(entitlement.expect("a look-up"))
    }

    #[test]
    fn a_listener_of_another_namespace_or_interface_gives_no_entitlement() {
        let Some(mut entitlement) = entitlement() else {
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let here = IpAddress::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
        let examined = entitlement.examine(listener.as_fd()).expect("it counts");
        assert!(entitlement.is_delivered_to(&examined, &[here]));
        let elsewhere = std::thread::spawn(|| {
            sys::enter_new_network_namespace().expect("a new namespace");
            let there = bound("0.0.0.0:0");
            listen(&there, 1).expect("it listens");
            there
        });
        let elsewhere = elsewhere.join().expect("the thread ends");
        assert!(entitlement.examine(elsewhere.as_fd()).is_none());
        let served = entitlement.ifindex;
        entitlement.ifindex = served + 1;
        let restricted = PortReservation::beside(&BoundSocket {
            ifindex: LOOPBACK,
            ..examined.bound_socket()
        });
        let restricted = restricted.expect("root may");
        assert!(entitlement.examine(restricted.as_fd()).is_none());
        entitlement.ifindex = served;
        assert!(entitlement.examine(restricted.as_fd()).is_some());
    }

    #[test]
    fn a_listener_that_the_kernel_does_not_deliver_to_gives_no_entitlement() {
        let Some(mut entitlement) = entitlement() else {
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let examined = entitlement.examine(listener.as_fd()).expect("it counts");
        let other = IpAddress::from(std::net::IpAddr::from(Ipv4Addr::new(127, 0, 0, 2)));
        assert!(!entitlement.is_delivered_to(&examined, &[other]));
        shutdown(&listener, Shutdown::Both).expect("it listens no more");
        assert!(
            !examine(listener.as_fd())
                .expect("a socket")
                .is_some_and(|s| s.listens())
        );
        let impostor = KernelSocket {
            cookie: examined.cookie + 1,
            ..examined
        };
        let here = examined.local.addr;
        assert!(!entitlement.is_delivered_to(&impostor, &[here]));
    }

    #[test]
    fn only_a_socket_that_is_bound_and_no_more_reserves_its_port() {
        let fresh = bound("127.0.0.1:0");
        let check = |fd: BorrowedFd<'_>| {
            let examined = examine(fd).expect("a socket").expect("with a name");
            is_bound_only(fd, &examined)
        };
        assert!(check(fresh.as_fd()));
        let port = SocketAddr::try_from(getsockname(&fresh).expect("a name")).expect("IP");
        assert!(check(fresh.as_fd()), "the first check has unbound {port}");
        listen(&fresh, 1).expect("it listens");
        assert!(!check(fresh.as_fd()));
        // `getsockname` still returns the listener's port for a reset connection.
        let client = TcpStream::connect(port).expect("a connection");
        let accepted = rustix::net::accept(&fresh).expect("it is there");
        assert!(!check(accepted.as_fd()));
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO))
            .expect("allowed");
        drop(client);
        let _ = rustix::io::read(&accepted, &mut [0; 1]);
        let examined = examine(accepted.as_fd()).expect("a socket");
        assert!(examined.is_none_or(|socket| !is_bound_only(accepted.as_fd(), &socket)));
        // A failed connect releases a port that the kernel has chosen.
        let closed = bound("127.0.0.1:0");
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        assert!(connect(&closed, &nobody).is_err());
        let examined = examine(closed.as_fd()).expect("a socket");
        assert!(examined.is_none_or(|socket| !is_bound_only(closed.as_fd(), &socket)));
    }
}
