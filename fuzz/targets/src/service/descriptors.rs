//! The kinds of descriptors that an attacker may send to the service over its registration socket.
//! With some messages, the program sends a socket to claim the socket's port.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, memfd_create},
    net::{AddressFamily, SocketType, bind, socket},
};
use tidelane_abi::message;
use tidelane_attacker::sockets::Bound;

use super::test_namespace::{TestNamespace, bound};

/// A kind of descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Listener on 0.0.0.0:7000.
    Listens,
    /// Listener on `[::]:7002`, for both IP versions.
    ListensV6,
    /// TCP socket bound to 0.0.0.0:7003.
    Bound,
    /// TCP socket bound to the service's address and port 7004.
    BoundToAddress,
    /// Listener on 0.0.0.0:7005 with SO_REUSEPORT.
    ListensShared,
    /// Listener on 127.0.0.1:7006.
    ListensLoopback,
    /// TCP socket that is not bound.
    Unbound,
    /// TCP socket that was bound to the victim's port before the victim's socket. Both have
    /// SO_REUSEADDR.
    SharesVictim,
    /// Accepted end of a connection of the victim.
    Accepted,
    /// Connecting end of the same connection.
    Connected,
    /// Listener in another network namespace.
    Foreign,
    /// Listener on 0.0.0.0:7007 with SO_BINDTODEVICE (`lo`).
    OfDevice,
    /// UDP socket on 0.0.0.0:7008.
    Datagrams,
    /// Listening unix socket.
    Unix,
    /// An eventfd.
    Event,
    /// Write end of a full pipe.
    Pipe,
    /// A memfd.
    Memory,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 17] = [
        Kind::Listens,
        Kind::ListensV6,
        Kind::Bound,
        Kind::BoundToAddress,
        Kind::ListensShared,
        Kind::ListensLoopback,
        Kind::Unbound,
        Kind::SharesVictim,
        Kind::Accepted,
        Kind::Connected,
        Kind::Foreign,
        Kind::OfDevice,
        Kind::Datagrams,
        Kind::Unix,
        Kind::Event,
        Kind::Pipe,
        Kind::Memory,
    ];

    /// Returns true if this kind of descriptor permits the claim that a message of the kind
    /// `message` (LISTEN, CLAIM_TUPLE or RESERVE) asks for. Even a socket that shares the victim's
    /// port permits RESERVE, because the claim of RESERVE takes no packet for which the kernel has
    /// a connection or a listener.
    pub fn permits(self, message: u32) -> bool {
        match message {
            message::LISTEN => {
                matches!(self, Self::Listens | Self::ListensV6 | Self::ListensShared)
            }
            message::CLAIM_TUPLE => {
                matches!(self, Self::Bound | Self::BoundToAddress | Self::Datagrams)
            }
            _ => self < Self::ListensLoopback || self == Self::SharesVictim,
        }
    }
}

/// The attackers' descriptors. The scene (the service and the programs of one input) creates the
/// sockets of the victim's port and connection. Every other descriptor is created on first use.
#[derive(Default)]
pub struct Descriptors(Vec<(Kind, Vec<OwnedFd>)>);

impl Descriptors {
    /// Adds a descriptor that the caller has created.
    pub fn put(&mut self, kind: Kind, descriptor: OwnedFd) {
        self.0.push((kind, vec![descriptor]));
    }

    /// Returns the descriptor of this kind. Returns `None` if the kernel refuses to create the
    /// descriptor, or if the scene created the descriptor and [`close`](Self::close) closed it.
    pub fn get(&mut self, namespace: &TestNamespace, kind: Kind) -> Option<BorrowedFd<'_>> {
        let known = self.0.iter().position(|(known, _)| *known == kind);
        let at = match known {
            Some(at) => at,
            None => {
                self.0.push((kind, make(namespace, kind).ok()?));
                self.0.len() - 1
            }
        };
        self.0[at].1.first().map(AsFd::as_fd)
    }

    /// Closes the attackers' descriptor of this kind.
    pub fn close(&mut self, kind: Kind) {
        self.0.retain(|(known, _)| *known != kind);
    }
}

/// Creates a descriptor of this kind, and returns it as the first descriptor of the list. The rest
/// of the list (the read end of a pipe) must stay open as long as the first descriptor.
fn make(namespace: &TestNamespace, kind: Kind) -> io::Result<Vec<OwnedFd>> {
    let one = |fd: OwnedFd| Ok(vec![fd]);
    match kind {
        Kind::Listens => one(bound("0.0.0.0:7000").listening(8)?),
        Kind::ListensV6 => one(bound("[::]:7002").listening(8)?),
        Kind::Bound => one(bound("0.0.0.0:7003").make()?),
        Kind::BoundToAddress => one(bound("10.77.0.1:7004").make()?),
        Kind::ListensShared => {
            let shared = Bound {
                reuse_port: true,
                ..bound("0.0.0.0:7005")
            };
            one(shared.listening(8)?)
        }
        Kind::ListensLoopback => one(bound("127.0.0.1:7006").listening(8)?),
        Kind::Unbound => one(socket(AddressFamily::INET, SocketType::STREAM, None)?),
        Kind::Foreign => one(namespace.foreign.try_clone()?),
        Kind::OfDevice => {
            let of_device = Bound {
                device: Some("lo".to_owned()),
                ..bound("0.0.0.0:7007")
            };
            one(of_device.listening(8)?)
        }
        Kind::Datagrams => {
            let datagrams = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
            let address: SocketAddr = "0.0.0.0:7008".parse().map_err(io::Error::other)?;
            bind(&datagrams, &address)?;
            one(datagrams)
        }
        Kind::Unix => {
            use std::os::linux::net::SocketAddrExt;
            let name = format!("tidelane-fuzz-{}", std::process::id());
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            one(UnixListener::bind_addr(&address)?.into())
        }
        Kind::Event => one(eventfd(0, EventfdFlags::CLOEXEC)?),
        Kind::Pipe => {
            let (reader, mut writer) = io::pipe()?;
            writer.write_all(&[0; 1 << 16])?;
            Ok(vec![writer.into(), reader.into()])
        }
        Kind::Memory => one(memfd_create("tidelane-fuzz", MemfdFlags::CLOEXEC)?),
        // The scene creates these sockets. The function is called only after they were closed.
        Kind::SharesVictim | Kind::Accepted | Kind::Connected => {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

/// Connects to the listener over the kernel's loopback interface. Returns the connected end and the
/// accepted end.
pub fn connection(listener: &TcpListener, to: SocketAddr) -> io::Result<(OwnedFd, OwnedFd)> {
    let connected = TcpStream::connect(to)?;
    let (accepted, _) = listener.accept()?;
    // Reset the connection when it is closed: the next input needs the same ports, which TIME-WAIT
    // would keep in use.
    for end in [&connected, &accepted] {
        rustix::net::sockopt::set_socket_linger(end, Some(std::time::Duration::ZERO))?;
    }
    Ok((connected.into(), accepted.into()))
}
