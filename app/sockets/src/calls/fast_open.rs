//! TCP Fast Open (RFC 7413) as Linux' sockets have it: text that goes with SYN.
//!
//! The service says with CONNECT_STARTED whether SYN may carry text, and how much; then it waits
//! for it. With MSG_FASTOPEN it is there at once. After `connect` with TCP_FASTOPEN_CONNECT it
//! comes with the first write, whichever call that is; until then the socket is writable, and
//! nothing was sent.

use std::os::fd::RawFd;

use super::connect;
use crate::{
    socket::{Inner, Socket, option_values::may_open_with_text, state::State},
    sys::{Address, Errno, Handled, fail},
};

/// The first half of a `send` with MSG_FASTOPEN: the connection is open, or opens with the bytes
/// that are sent now.
pub fn open(socket: &'static Socket, fd: RawFd, peer: Option<Address>, flags: i32) -> Handled<()> {
    let waits = socket.blocks() && flags & libc::MSG_DONTWAIT == 0;
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    let asked_before = inner.connect_pending;
    match &inner.state {
        State::Fresh | State::Failed => {}
        State::Connecting(connecting) if connecting.syn_room > 0 || waits => return Some(Ok(())),
        State::Connecting(_) => return fail(libc::EALREADY),
        // The first one only: later ones find a connection that this socket knows of.
        State::Stream(_) if asked_before => {
            inner.connect_pending = false;
            return Some(Ok(()));
        }
        State::Stream(_) | State::Inherited(_) | State::Forked => return fail(libc::EISCONN),
        State::Free | State::Listening(_) | State::Kernel => return None,
    }
    // The kernel has the right error for no address, and for one of another family.
    let peer = peer.filter(|peer| peer.inet6 == inner.inet6)?;
    if !may_open_with_text() {
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

/// The first bytes of a call go with SYN: how many. One that does not wait ends with that.
pub(crate) fn give(
    socket: &'static Socket,
    fd: RawFd,
    waits: bool,
    give: &mut dyn FnMut(&mut Inner, usize) -> usize,
) -> Handled {
    let mut inner = socket.enter(fd)?;
    let count = inner.give_to_syn(socket, give);
    inner.connect_pending = !waits;
    match count {
        0 if !waits => fail(libc::EINPROGRESS),
        count => Some(Ok(count)),
    }
}

/// Calls with MSG_FASTOPEN on what is no socket of ours yet are the kernel's.
pub fn prepare(socket: &'static Socket, fd: RawFd, name: Option<&[u8]>, flags: i32) -> Handled<()> {
    if flags & libc::MSG_FASTOPEN == 0 {
        return Some(Ok(()));
    }
    open(socket, fd, name.and_then(Address::read), flags)
}
