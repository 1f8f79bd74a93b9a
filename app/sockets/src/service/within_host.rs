//! Connections within the host: over loopback, or to an address of the host's other interfaces. The
//! service (the process `tidelaned`) carries these connections only if the user of the program asks
//! for this, or if the user made no choice and the configuration of the service asks for this.

use std::os::fd::{AsRawFd, RawFd};

use tidelane_client::Program;

use super::session;
use crate::sys::{self, Address, Errno};

/// `127.0.0.1` as an IPv4-mapped IPv6 address.
const LOCALHOST_V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

/// `SO_NETNS_COOKIE` (Linux 5.14), which libc does not define yet.
const SO_NETNS_COOKIE: i32 = 71;

/// Returns true if connections within the host are to be accelerated. The choice of the program's
/// user (TIDELANE_LOOPBACK) decides. Without a choice, the configuration of the service decides.
pub(crate) fn is_chosen(program: &Program) -> bool {
    let choice = session::settings().within_host;
    choice.unwrap_or_else(|| program.wants_within_host())
}

/// Returns true if the service is to carry a connection within the host that the socket `fd` opens.
/// For this, [`is_chosen`] has to return true, and the socket has to be in the network namespace in
/// which the program registered. Another namespace has another loopback interface.
pub(crate) fn is_wanted(program: &Program, fd: RawFd) -> bool {
    if !is_chosen(program) {
        return false;
    }
    let home = program.control_fd();
    let home = home.and_then(|home| namespace_of(home.as_raw_fd()).ok());
    home.is_some() && home == namespace_of(fd).ok()
}

/// Returns the cookie by which the kernel identifies a socket's network namespace.
fn namespace_of(fd: RawFd) -> Result<u64, Errno> {
    let mut cookie = [0; 8];
    sys::socket_option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Returns the source address of a connection within the host: `local`, the address to which the
/// program bound the socket. If `local` is unspecified, returns the address that the kernel would
/// select: 127.0.0.1 for a peer in 127.0.0.0/8, or else the address of the peer.
pub(crate) fn source(local: &Address, peer: &Address) -> [u8; 16] {
    if !local.is_unspecified() {
        return local.addr;
    }
    match peer.is_v4() && peer.addr[12] == 127 {
        true => LOCALHOST_V4,
        false => peer.addr,
    }
}
