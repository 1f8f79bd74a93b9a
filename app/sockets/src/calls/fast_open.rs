//! TCP Fast Open (RFC 7413), by which a SYN carries payload. The semantics are those of Linux.
//!
//! The service (the process `tidelaned`) reports the number of bytes that the SYN can carry, and
//! holds the SYN back until this process has written the bytes. With MSG_FASTOPEN, the bytes come
//! from the `send` call that has this flag. After a `connect` with TCP_FASTOPEN_CONNECT, the bytes
//! come from the first write of any kind. Before this first write, the socket is writable and the
//! service sends no SYN.

use std::os::fd::RawFd;

use super::connect;
use crate::{
    socket::{Inner, Socket, option_values::client_fast_open_enabled, state::State},
    sys::{Address, Errno, Handled, fail},
};

/// Begins a `send` with MSG_FASTOPEN: opens the connection, whose SYN can carry the first bytes of
/// this `send`. Fails with EISCONN on a connected socket, with one exception: if the call that
/// opened the connection returned EINPROGRESS, the first `send` with MSG_FASTOPEN after that call
/// succeeds.
pub fn open(socket: &'static Socket, fd: RawFd, peer: Option<Address>, flags: i32) -> Handled<()> {
    let blocking = socket.blocks() && flags & libc::MSG_DONTWAIT == 0;
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    let was_pending = inner.connect_pending;
    match &inner.state {
        State::Fresh | State::Failed => {}
        State::Connecting(connecting) if connecting.syn_room > 0 || blocking => {
            return Some(Ok(()));
        }
        State::Connecting(_) => return fail(libc::EALREADY),
        // The first `send` with MSG_FASTOPEN after EINPROGRESS sends on the connection. Each later
        // `send` with MSG_FASTOPEN fails with EISCONN.
        State::Stream(_) if was_pending => {
            inner.connect_pending = false;
            return Some(Ok(()));
        }
        State::Stream(_) | State::Inherited(_) | State::LostByFork => return fail(libc::EISCONN),
        State::Free | State::Listening(_) | State::Kernel => return None,
    }
    // The kernel returns the error for a missing address, and for an address of another family.
    let peer = peer.filter(|peer| peer.inet6 == inner.inet6)?;
    if !client_fast_open_enabled() {
        return fail(libc::EOPNOTSUPP);
    }
    if let Err(error) = connect::begin(socket, inner, fd, peer, true)? {
        return Some(Err(error));
    }
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    match &inner.state {
        State::Connecting(connecting) if connecting.syn_room == 0 && !blocking => {
            inner.connect_pending = true;
            fail(libc::EINPROGRESS)
        }
        State::Failed => Some(Err(inner.take_error().unwrap_or(Errno(libc::ECONNREFUSED)))),
        _ => Some(Ok(())),
    }
}

/// Sends the SYN with the first bytes of a write, and returns the number of these bytes. `write`
/// copies the bytes to the send buffer. If the SYN carries no bytes, a non-blocking call fails with
/// EINPROGRESS.
pub(crate) fn send_with_syn(
    socket: &'static Socket,
    fd: RawFd,
    blocking: bool,
    write: &mut dyn FnMut(&mut Inner, usize) -> usize,
) -> Handled {
    let mut inner = socket.enter(fd)?;
    let count = inner.send_with_syn(socket, write);
    inner.connect_pending = !blocking;
    match count {
        0 if !blocking => fail(libc::EINPROGRESS),
        count => Some(Ok(count)),
    }
}

/// Calls [`open`] if `flags` contains MSG_FASTOPEN. The caller sends the payload afterwards.
/// `name` is the `sockaddr` of the peer.
pub fn prepare(socket: &'static Socket, fd: RawFd, name: Option<&[u8]>, flags: i32) -> Handled<()> {
    if flags & libc::MSG_FASTOPEN == 0 {
        return Some(Ok(()));
    }
    open(socket, fd, name.and_then(Address::read), flags)
}
