//! The calls `getsockname` and `getpeername` on connections that the service (the process
//! `tidelaned`) carries. The kernel does not know the addresses of these connections.

use std::os::fd::RawFd;

use super::connect::{ANSWER_WAIT_NS, WOULD_BLOCK};
use crate::{
    readiness::wait::{self, Deadline},
    socket::{Socket, state::State},
    sys::{Address, Handled, fail},
};

/// Carries out `getsockname`. Returns `None` if the kernel knows the socket's local address.
pub fn local_name(socket: &'static Socket, fd: RawFd) -> Handled<Address> {
    name(socket, fd, |ids| (ids.local_addr, ids.local_port))
}

/// Carries out `getpeername`.
pub fn peer_name(socket: &'static Socket, fd: RawFd) -> Handled<Address> {
    {
        let mut inner = socket.enter(fd)?;
        inner.refresh();
        let connected = matches!(inner.state, State::Stream(_)) && !inner.cause_reported;
        if !inner.state.is_in_kernel() && !connected {
            return fail(libc::ENOTCONN);
        }
    }
    name(socket, fd, |ids| (ids.peer_addr, ids.peer_port))
}

/// Returns the address and the port that `pick` selects. During an active open, waits until the
/// service has chosen the local address.
fn name(
    socket: &'static Socket,
    fd: RawFd,
    pick: impl Fn(tidelane_abi::ConnectionIds) -> ([u8; 16], u16),
) -> Handled<Address> {
    let needs_wait = {
        let mut inner = socket.enter(fd)?;
        match &inner.state {
            State::Stream(_) | State::Connecting(_) => inner.connection().is_none(),
            // The kernel socket has the local address: the address from `bind`, or the wildcard.
            _ => return None,
        }
    };
    if needs_wait {
        let deadline = Deadline::after(Some(ANSWER_WAIT_NS));
        let _ = wait::blocking(socket, fd, deadline, None, |inner| {
            inner.refresh();
            match &inner.state {
                State::Connecting(connecting) if connecting.connection.is_none() => {
                    Err(WOULD_BLOCK)
                }
                _ => Ok(0),
            }
        });
    }
    let mut inner = socket.enter(fd)?;
    let inet6 = inner.inet6;
    let connection = inner.connection()?;
    let (addr, port) = pick(connection.stream.ids());
    Some(Ok(Address { addr, port, inet6 }))
}
