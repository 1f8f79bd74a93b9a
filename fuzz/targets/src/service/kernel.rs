//! Requests of a scene (one input of the fuzzer) to the kernel.

use std::{
    fs,
    net::{Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tidelane_attacker::{protocol::Service, sockets::Bound};
use tidelane_steering::Claim;

/// IP protocol number of UDP.
const UDP: u8 = 17;

/// Returns both ends of a registration socket. Both ends are nonblocking.
pub fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("descriptors")
}

/// Returns a registration socket whose other end is closed. While the victim registers, and
/// after the victim's end, a `FuzzProgram` with this socket takes the victim's place in the scene.
pub fn spare() -> Service {
    Service::over(pair().0).expect("a socket")
}

/// Returns true if the kernel would refuse the claim's port to a new socket.
pub fn is_held(claim: &Claim) -> bool {
    let ip = Ipv6Addr::from(claim.addr).to_canonical();
    if claim.proto == UDP {
        return UdpSocket::bind((ip, claim.port)).is_err();
    }
    let probe = Bound {
        bind: SocketAddr::new(ip, claim.port),
        device: None,
        reuse_address: false,
        reuse_port: false,
    };
    probe.make().is_err()
}

/// Returns the number of open sockets, pipes, anonymous inodes (such as eventfds) and memfds of
/// this process. Files on disk do not count, because another thread may be reading a file.
pub fn open_descriptors() -> usize {
    let listed = fs::read_dir("/proc/self/fd").expect("a list of descriptors");
    let links = listed.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let kinds = ["socket:", "pipe:", "anon_inode:", "/memfd:"];
    let counted = links.filter(|link| {
        let name = link.to_string_lossy();
        kinds.iter().any(|kind| name.starts_with(kind))
    });
    counted.count()
}
