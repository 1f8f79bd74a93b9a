//! What happens to descriptors: duplicates, flags, closing.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use crate::{
    readiness::{
        Instance, instance,
        wait::{self, Deadline},
        wake,
    },
    service::{Connection, Lane, session},
    socket::{Inner, Socket, registrations::WatchRef, registry, state::State},
    sys::{self, Errno, Handled, Section, TO_KERNEL},
    table::{self, Piece},
};

/// The socket behind a descriptor, if it is ours.
#[inline]
pub fn socket(fd: RawFd) -> Option<&'static Socket> {
    registry::of(fd)
}

/// The epoll instance behind a descriptor, if it was made under our eyes.
#[inline]
pub fn epoll(epfd: RawFd) -> Option<&'static Instance> {
    instance::of(epfd)
}

/// Returns true if the library has no interest in the descriptor.
#[inline]
pub fn is_foreign(fd: RawFd) -> bool {
    socket(fd).is_none() && epoll(fd).is_none() && !table::is_internal(fd)
}

/// `close`, for a descriptor that is not foreign.
pub fn close(fd: RawFd) -> Handled {
    if !session::owns_tables() {
        return TO_KERNEL;
    }
    if table::is_internal(fd) {
        return Some(Err(Errno(libc::EBADF)));
    }
    forget(fd);
    TO_KERNEL
}

/// The descriptor is about to be closed, or to be replaced: what it referred to loses a reference.
pub(crate) fn forget(fd: RawFd) {
    let _section = Section::enter();
    if let Some(socket) = registry::take(fd) {
        release(socket, fd);
    }
    if let Some(instance) = instance::take(fd) {
        instance.release(fd);
    }
}

/// A descriptor of the socket is gone.
fn release(socket: &'static Socket, fd: RawFd) {
    let mut inner = socket.lock();
    inner.descriptors = inner.descriptors.saturating_sub(1);
    if inner.descriptors > 0 {
        drop(inner);
        instance::forget_descriptor(socket, fd);
        return;
    }
    // A fresh socket's registrations go with the kernel's own.
    let linger = inner.lingers().then_some(inner.options.linger).flatten();
    if let Some(seconds) = linger
        && socket.blocks()
    {
        drop(inner);
        linger_out(socket, seconds);
        inner = socket.lock();
    }
    let watches: Vec<WatchRef> = inner.watches(socket).collect();
    let lane = inner.lane;
    let linger = inner.options.linger;
    let generation = inner.generation;
    let state = std::mem::replace(&mut *inner, Inner::free(generation)).state;
    socket.watch.store(0, Ordering::Release);
    drop(inner);
    instance::forget_watches(socket, watches);
    end(socket, state, lane, linger);
    wake::tell_waiters(socket, lane);
    registry::free(socket);
}

/// What the last close does to the connection or listener.
fn end(socket: &'static Socket, state: State, lane: Option<&'static Lane>, linger: Option<u32>) {
    let connection = match state {
        State::Stream(connection) => Some(connection),
        State::Connecting(connecting) => connecting.connection,
        State::Listening(listening) => {
            listening.close();
            None
        }
        State::Inherited(connection) => {
            session::disown(connection);
            None
        }
        State::Forked => None,
        State::Free | State::Fresh | State::Failed | State::Kernel => None,
    };
    if let Some(connection) = connection {
        end_connection(socket, connection, lane, linger);
    }
}

fn end_connection(
    socket: &'static Socket,
    mut connection: Connection,
    lane: Option<&'static Lane>,
    linger: Option<u32>,
) {
    registry::clear_slot(connection.stream.slot(), socket);
    let abort = linger == Some(0) || !connection.stream.established();
    connection.stream.close(abort, linger);
    if let Some(lane) = lane {
        lane.submit(&socket.member, &mut connection);
    }
}

impl Inner {
    /// Whether closing waits until the peer has everything.
    fn lingers(&self) -> bool {
        // Not if the connection goes on in another process.
        !self.is_shared()
            && matches!(self.options.linger, Some(1..))
            && matches!(self.state, State::Stream(_))
    }
}

/// SO_LINGER: waits until the peer acknowledged our FIN.
fn linger_out(socket: &'static Socket, seconds: u32) {
    let deadline = Deadline::after(Some(u64::from(seconds) * 1_000_000_000));
    wait::lingering(socket, deadline, |inner| {
        inner.refresh();
        let over = inner.cause_seen;
        let lane = inner.lane;
        let State::Stream(connection) = &mut inner.state else {
            return true;
        };
        if !inner.shut_write {
            inner.shut_write = true;
            connection.stream.shutdown_write();
            if let Some(lane) = lane {
                lane.submit_now(connection);
            }
        }
        over || connection.stream.fin_acked()
    });
}

/// The socket stays with the kernel: it is not ours to watch any more.
pub(crate) fn demote(socket: &'static Socket, fd: RawFd) {
    let _section = Section::enter();
    let Some(mut inner) = socket.enter(fd) else {
        return;
    };
    let watches: Vec<WatchRef> = inner.watches(socket).collect();
    inner.state = State::Kernel;
    inner.more_watches.clear();
    socket.watched_more.store(false, Ordering::Release);
    socket.watch.store(0, Ordering::Release);
    drop(inner);
    // The kernel keeps its registrations.
    instance::forget_watches(socket, watches);
    // Other descriptors of the same socket find `State::Kernel`.
    if registry::take(fd).is_some() {
        release(socket, fd);
    }
}

/// The kernel made `to` a duplicate of `from`.
pub fn duplicated(from: RawFd, to: RawFd) {
    if let Some(socket) = registry::of(from) {
        let Some(mut inner) = socket.find(from) else {
            return;
        };
        if registry::set(to, socket) {
            inner.descriptors += 1;
        }
    } else if let Some(instance) = instance::of(from)
        && instance::set(to, instance)
    {
        instance.state().descriptors += 1;
    }
}

/// `dup2` and `dup3`: `to` is closed first, unless the call is going to fail.
pub fn duplicate_to(from: RawFd, to: RawFd, flags: Option<i32>) -> Handled {
    if !session::owns_tables() {
        return TO_KERNEL;
    }
    if table::is_internal(to) || table::is_internal(from) {
        return Some(Err(Errno(libc::EBADF)));
    }
    if from == to {
        return TO_KERNEL;
    }
    if let Err(error) = sys::fcntl(from, libc::F_GETFD, 0) {
        return Some(Err(error));
    }
    forget(to);
    let result = sys::dup3(from, to, flags.unwrap_or(0));
    if result.is_ok() {
        duplicated(from, to);
    }
    Some(result)
}

/// `fcntl` F_SETFL: O_NONBLOCK is ours, and the kernel's where the kernel socket has a life too.
pub fn set_status_flags(socket: &'static Socket, fd: RawFd, flags: usize) -> Handled {
    let nonblocking = flags & libc::O_NONBLOCK as usize != 0;
    let inner = socket.enter(fd)?;
    let result = match inner.state {
        // The kernel side of a listener never blocks.
        State::Listening(_) => sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize),
        State::Fresh | State::Failed | State::Connecting(_) => sys::fcntl(fd, libc::F_SETFL, flags),
        // Accepted connections share one kernel socket.
        State::Stream(_) | State::Inherited(_) | State::Forked => Ok(0),
        State::Free | State::Kernel => return TO_KERNEL,
    };
    if result.is_ok() {
        socket.nonblocking.store(nonblocking, Ordering::Relaxed);
    }
    Some(result)
}

/// `fcntl` F_GETFL.
pub fn status_flags(socket: &'static Socket, fd: RawFd) -> Handled {
    let inner = socket.enter(fd)?;
    if matches!(inner.state, State::Kernel | State::Free) {
        return TO_KERNEL;
    }
    drop(inner);
    let nonblocking = libc::O_NONBLOCK as usize;
    Some(sys::fcntl(fd, libc::F_GETFL, 0).map(|flags| {
        if socket.blocks() {
            flags & !nonblocking
        } else {
            flags | nonblocking
        }
    }))
}

/// `ioctl` FIONBIO.
pub fn set_nonblocking(socket: &'static Socket, fd: RawFd, nonblocking: bool) -> Handled {
    let flags = match status_flags(socket, fd)? {
        Ok(flags) => flags,
        Err(error) => return Some(Err(error)),
    };
    let bit = libc::O_NONBLOCK as usize;
    let flags = if nonblocking {
        flags | bit
    } else {
        flags & !bit
    };
    set_status_flags(socket, fd, flags)
}

/// `close_range` that closes (without CLOSE_RANGE_CLOEXEC), in a process that has descriptors of
/// ours: closes all but the library's own.
pub fn close_range(first: u32, last: u32, flags: i32) -> Handled {
    if !session::owns_tables() {
        return TO_KERNEL;
    }
    if first > last {
        return Some(Err(Errno(libc::EINVAL)));
    }
    table::pieces(first, last, |piece| match piece {
        Piece::Forget(fd) => forget(fd),
        Piece::Close(first, last) => sys::close_range(first, last, flags),
    });
    Some(Ok(0))
}
