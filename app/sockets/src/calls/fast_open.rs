//! TCP Fast Open (RFC 7413), with the semantics of Linux: payload in the SYN.
//!
//! The service's CONNECT_STARTED says how many bytes the SYN can carry; the SYN then waits for
//! them. With MSG_FASTOPEN the call provides the bytes. After `connect` with TCP_FASTOPEN_CONNECT,
//! the first write of any kind provides them; until then the socket is writable, and no SYN is
//! sent.

use std::os::fd::RawFd;

use super::connect;
use crate::{
    socket::{Inner, Socket, option_values::client_fast_open_enabled, state::State},
    sys::{Address, Errno, Handled, fail},
};

/// Begins a `send` with MSG_FASTOPEN: opens the connection with the bytes that are sent now, unless
/// it is open already.
pub fn open(socket: &'static Socket, fd: RawFd, peer: Option<Address>, flags: i32) -> Handled<()> {
    let waits = socket.blocks() && flags & libc::MSG_DONTWAIT == 0;
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    let was_pending = inner.connect_pending;
    match &inner.state {
        State::Fresh | State::Failed => {}
        State::Connecting(connecting) if connecting.syn_room > 0 || waits => return Some(Ok(())),
        State::Connecting(_) => return fail(libc::EALREADY),
        // Only the first such call: later calls find an established connection and fail.
        State::Stream(_) if was_pending => {
            inner.connect_pending = false;
            return Some(Ok(()));
        }
        State::Stream(_) | State::Inherited(_) | State::Forked => return fail(libc::EISCONN),
        State::Free | State::Listening(_) | State::Kernel => return None,
    }
    // The kernel returns the right error for a missing address, and for another family.
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
        State::Connecting(connecting) if connecting.syn_room == 0 && !waits => {
            inner.connect_pending = true;
            fail(libc::EINPROGRESS)
        }
        State::Failed => Some(Err(inner.take_error().unwrap_or(Errno(libc::ECONNREFUSED)))),
        _ => Some(Ok(())),
    }
}

/// Sends the SYN with the first bytes of a write. Returns their number, which ends a call that does
/// not wait.
pub(crate) fn send_with_syn(
    socket: &'static Socket,
    fd: RawFd,
    waits: bool,
    write: &mut dyn FnMut(&mut Inner, usize) -> usize,
) -> Handled {
    let mut inner = socket.enter(fd)?;
    let count = inner.send_with_syn(socket, write);
    inner.connect_pending = !waits;
    match count {
        0 if !waits => fail(libc::EINPROGRESS),
        count => Some(Ok(count)),
    }
}

/// Handles MSG_FASTOPEN of a `send` before its payload. Without the flag there is nothing to do.
pub fn prepare(socket: &'static Socket, fd: RawFd, name: Option<&[u8]>, flags: i32) -> Handled<()> {
    if flags & libc::MSG_FASTOPEN == 0 {
        return Some(Ok(()));
    }
    open(socket, fd, name.and_then(Address::read), flags)
}
