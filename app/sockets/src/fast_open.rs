//! TCP Fast Open (RFC 7413) as Linux' sockets have it: text that goes with SYN.
//!
//! The service says with CONNECT_STARTED whether SYN may carry text, and how much; then it waits
//! for it. With MSG_FASTOPEN it is there at once. After `connect` with TCP_FASTOPEN_CONNECT it
//! comes with the first write, whichever call that is; until then the socket is writable, and
//! nothing was sent.

use std::os::fd::RawFd;

use tidelane_abi::{fast_open, program_flags};
use tidelane_client::SendLimits;

use crate::{
    Address, connect,
    errno::{Errno, Handled, fail},
    socket::{Inner, Socket, State},
    sys,
};

/// What a CONNECT asks for, on a socket with TCP_FASTOPEN_CONNECT or for MSG_FASTOPEN.
pub(crate) fn wish(inner: &Inner, with_text: bool) -> u32 {
    if !with_text && !inner.options.opens_with_text() {
        return 0;
    }
    match inner.options.without_cookie() {
        true => fast_open::ASK | fast_open::WITHOUT_COOKIE,
        false => fast_open::ASK,
    }
}

/// Whether the sysctl lets clients use it. The kernel knows best: it is asked on a socket that
/// nobody else sees.
pub(crate) fn is_allowed() -> bool {
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);
    let Ok(fd) = sys::tcp_socket() else {
        return false;
    };
    let set = sys::set_socket_option(fd, level, name, &1i32.to_ne_bytes());
    let _ = sys::close(fd);
    set.is_ok()
}

/// TCP_FASTOPEN_KEY of a connection: the namespace's, in the first bytes of `into`.
pub(crate) fn key(into: &mut [u8]) -> Result<usize, Errno> {
    let fd = sys::tcp_socket()?;
    let len = sys::socket_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY, into);
    let _ = sys::close(fd);
    len
}

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
    if !is_allowed() {
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

impl Inner {
    /// How much SYN will carry, if it waits for that.
    pub(crate) fn syn_room(&self) -> u32 {
        match &self.state {
            State::Connecting(connecting) => connecting.syn_room,
            _ => 0,
        }
    }

    /// Lets SYN go, with what `give` writes. It finds as much room as SYN has: what a call that
    /// does not wait has sent is what SYN carries, as on the kernel.
    fn give_to_syn(
        &mut self,
        socket: &Socket,
        give: &mut dyn FnMut(&mut Inner, usize) -> usize,
    ) -> usize {
        let (room, limits) = (self.syn_room(), self.options.sending());
        let bounded = SendLimits {
            unacked_max: room,
            unsent_max: 0,
        };
        self.limit_sending(bounded);
        let count = give(self, 0);
        self.limit_sending(limits);
        if let State::Connecting(connecting) = &mut self.state {
            connecting.syn_room = 0;
        }
        if let Some(connection) = self.connection()
            && count == 0
        {
            connection.stream.set_flag(program_flags::OPEN_NOW);
        }
        self.after_write(socket);
        count
    }

    fn limit_sending(&mut self, limits: SendLimits) {
        if let Some(connection) = self.connection() {
            connection.stream.limit_sending(limits);
        }
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

/// Whether `connect` leaves SYN to the first write.
pub(crate) fn is_deferred(socket: &'static Socket, fd: RawFd) -> Handled<bool> {
    let mut inner = socket.enter(fd)?;
    let deferred = inner.syn_room() > 0;
    inner.connect_pending |= deferred;
    Some(Ok(deferred))
}

/// Calls with MSG_FASTOPEN on what is no socket of ours yet are the kernel's.
pub fn prepare(socket: &'static Socket, fd: RawFd, name: Option<&[u8]>, flags: i32) -> Handled<()> {
    if flags & libc::MSG_FASTOPEN == 0 {
        return Some(Ok(()));
    }
    open(socket, fd, name.and_then(Address::read), flags)
}
