//! Calls that duplicate or close descriptors, or that get or set their status flags.
//!
//! The library (`libtidelane.so`, which contains this crate) tracks the program's TCP sockets and
//! epoll instances: tables map the program's descriptors to [`Socket`] and [`Instance`].
//!
//! An accelerated connection is a connection that the service (the process `tidelaned`) carries.
//! In the kernel, its descriptor refers to an unconnected socket. After `connect`, this is the
//! socket that the program created. After `accept`, it is a placeholder: a duplicate of a socket
//! that the library keeps for this purpose.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use crate::{
    readiness::{
        Instance, instance,
        wait::{self, Deadline},
        wake,
    },
    service::{Channel, Connection, session},
    socket::{Inner, Socket, registration_ref::RegistrationRef, registry, state::State},
    sys::{self, Errno, Handled, Section, TO_KERNEL},
    table::{self, CloseRangeStep},
};

/// Returns the tracked socket that a descriptor refers to.
#[inline]
pub fn socket(fd: RawFd) -> Option<&'static Socket> {
    registry::of(fd)
}

/// Returns the tracked epoll instance that a descriptor refers to.
#[inline]
pub fn epoll(epfd: RawFd) -> Option<&'static Instance> {
    instance::of(epfd)
}

/// Returns true if the descriptor is neither tracked nor one of the library's own descriptors.
#[inline]
pub fn is_foreign(fd: RawFd) -> bool {
    socket(fd).is_none() && epoll(fd).is_none() && !table::is_internal(fd)
}

/// Carries out `close` of a tracked descriptor or of one of the library's own descriptors. Stops
/// tracking a tracked descriptor, which the kernel then closes. A descriptor of the library stays
/// open, and the call fails with EBADF.
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

/// Drops a descriptor's reference to its socket or epoll instance, before the descriptor is closed
/// or replaced.
pub(crate) fn forget(fd: RawFd) {
    let _section = Section::enter();
    if let Some(socket) = registry::take(fd) {
        release(socket, fd);
    }
    if let Some(instance) = instance::take(fd) {
        instance.release(fd);
    }
}

/// Drops a descriptor's reference to the socket. The last reference closes the connection or the
/// listener.
fn release(socket: &'static Socket, fd: RawFd) {
    let mut inner = socket.lock();
    inner.descriptors = inner.descriptors.saturating_sub(1);
    if inner.descriptors > 0 {
        drop(inner);
        instance::forget_descriptor(socket, fd);
        return;
    }
    let linger = inner.lingers().then_some(inner.options.linger).flatten();
    if let Some(seconds) = linger
        && socket.blocks()
    {
        drop(inner);
        wait_lingering(socket, seconds);
        inner = socket.lock();
    }
    // If the socket is a listener, or if neither `connect` nor `listen` was called, the kernel's
    // epoll instances also have its registrations. The kernel drops these registrations when the
    // kernel closes the socket.
    let registrations: Vec<RegistrationRef> = inner.registrations(socket).collect();
    let channel = inner.channel;
    let linger = inner.options.linger;
    let generation = inner.generation;
    let state = std::mem::replace(&mut *inner, Inner::free(generation)).state;
    socket.registration.store(0, Ordering::Release);
    drop(inner);
    instance::forget_registrations(socket, registrations);
    end(socket, state, channel, linger);
    wake::wake_waiters(socket, channel);
    registry::free(socket);
}

/// Ends the connection or the listener of the socket when its last descriptor is closed.
fn end(
    socket: &'static Socket,
    state: State,
    channel: Option<&'static Channel>,
    linger: Option<u32>,
) {
    let connection = match state {
        State::Stream(connection) => Some(connection),
        State::Connecting(connecting) => connecting.connection,
        State::Listening(listening) => {
            listening.close();
            None
        }
        State::Inherited(connection) => {
            session::release_connection(connection);
            None
        }
        State::LostByFork => None,
        State::Free | State::Fresh | State::Failed | State::Kernel => None,
    };
    if let Some(connection) = connection {
        end_connection(socket, connection, channel, linger);
    }
}

fn end_connection(
    socket: &'static Socket,
    mut connection: Connection,
    channel: Option<&'static Channel>,
    linger: Option<u32>,
) {
    registry::clear_slot(connection.stream.slot(), socket);
    let abort = linger == Some(0) || !connection.stream.established();
    connection.stream.close(abort, linger);
    if let Some(channel) = channel {
        channel.submit(&socket.member, &mut connection);
    }
}

impl Inner {
    /// Returns true if SO_LINGER makes the close of a blocking socket wait until the peer has
    /// acknowledged the FIN.
    fn lingers(&self) -> bool {
        // Another process has a descriptor of a shared connection, so this close does not end the
        // connection.
        !self.is_shared()
            && matches!(self.options.linger, Some(1..))
            && matches!(self.state, State::Stream(_))
    }
}

/// Closes the sending direction, and waits until the peer has acknowledged the FIN, for at most
/// `seconds` (SO_LINGER). The end of the connection or a signal also ends the wait.
fn wait_lingering(socket: &'static Socket, seconds: u32) {
    let deadline = Deadline::after(Some(u64::from(seconds) * 1_000_000_000));
    wait::lingering(socket, deadline, |inner| {
        inner.refresh();
        let over = inner.cause_reported;
        let channel = inner.channel;
        let State::Stream(connection) = &mut inner.state else {
            return true;
        };
        if !inner.shut_write {
            inner.shut_write = true;
            connection.stream.shutdown_write();
            if let Some(channel) = channel {
                channel.submit_now(connection);
            }
        }
        over || connection.stream.fin_acked()
    });
}

/// Leaves the socket to the kernel, and stops tracking the descriptor `fd`.
pub(crate) fn leave_to_kernel(socket: &'static Socket, fd: RawFd) {
    let _section = Section::enter();
    let Some(mut inner) = socket.enter(fd) else {
        return;
    };
    let registrations: Vec<RegistrationRef> = inner.registrations(socket).collect();
    inner.state = State::Kernel;
    inner.more_registrations.clear();
    socket
        .has_more_registrations
        .store(false, Ordering::Release);
    socket.registration.store(0, Ordering::Release);
    drop(inner);
    // The kernel's epoll instances keep the registrations of the kernel socket.
    instance::forget_registrations(socket, registrations);
    // Calls on other descriptors of the socket see `State::Kernel` and go to the kernel.
    if registry::take(fd).is_some() {
        release(socket, fd);
    }
}

/// Records that the kernel made `to` a duplicate of `from`.
pub fn on_duplicated(from: RawFd, to: RawFd) {
    if let Some(socket) = registry::of(from) {
        let Some(mut inner) = socket.enter_without_migration(from) else {
            return;
        };
        if registry::set(to, socket) {
            inner.descriptors += 1;
        }
    } else if let Some(instance) = instance::of(from)
        && instance::set(to, instance)
    {
        instance.lock_interest().descriptors += 1;
    }
}

/// Carries out `dup2` (`flags` is `None`) or `dup3`. If `from` is open, first stops tracking `to`,
/// which `dup3` then closes in the kernel.
pub fn duplicate_to(from: RawFd, to: RawFd, flags: Option<i32>) -> Handled {
    if !session::owns_tables() {
        return TO_KERNEL;
    }
    if table::is_internal(to) || table::is_internal(from) {
        return Some(Err(Errno(libc::EBADF)));
    }
    // The kernel refuses unknown flags without closing `to`.
    let is_refused = flags.is_some_and(|flags| flags & !libc::O_CLOEXEC != 0);
    if from == to || is_refused {
        return TO_KERNEL;
    }
    // If `to` is RLIMIT_NOFILE or more, the kernel refuses the call without closing `to`. `to` may
    // nevertheless be open, because the program may have lowered the limit after the open.
    if u64::try_from(to).is_ok_and(|to| to >= sys::descriptor_limit()) {
        return Some(Err(Errno(libc::EBADF)));
    }
    if let Err(error) = sys::fcntl(from, libc::F_GETFD, 0) {
        return Some(Err(error));
    }
    forget(to);
    let result = sys::dup3(from, to, flags.unwrap_or(0));
    if result.is_ok() {
        on_duplicated(from, to);
    }
    Some(result)
}

/// Carries out `fcntl` F_SETFL. The library stores O_NONBLOCK. The kernel socket also gets the
/// flags as long as the socket has had no established accelerated connection, and no connection
/// that was inherited over `fork`.
pub fn set_status_flags(socket: &'static Socket, fd: RawFd, flags: usize) -> Handled {
    let nonblocking = flags & libc::O_NONBLOCK as usize != 0;
    let inner = socket.enter(fd)?;
    let result = match inner.state {
        // The kernel socket of a listener never blocks.
        State::Listening(_) => sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize),
        State::Fresh | State::Failed | State::Connecting(_) => sys::fcntl(fd, libc::F_SETFL, flags),
        // Do not set the kernel's flags: the kernel keeps flags per open file description, and the
        // placeholders of all accepted connections share one open file description.
        State::Stream(_) | State::Inherited(_) | State::LostByFork => Ok(0),
        State::Free | State::Kernel => return TO_KERNEL,
    };
    if result.is_ok() {
        socket.nonblocking.store(nonblocking, Ordering::Relaxed);
    }
    Some(result)
}

/// Carries out `fcntl` F_GETFL: returns the kernel's flags with the library's O_NONBLOCK.
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

/// Carries out `ioctl` FIONBIO.
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

/// Carries out a `close_range` whose flags lack CLOSE_RANGE_CLOEXEC. The library's own descriptors
/// stay open.
pub fn close_range(first: u32, last: u32, flags: i32) -> Handled {
    if !session::owns_tables() {
        return TO_KERNEL;
    }
    if first > last {
        return Some(Err(Errno(libc::EINVAL)));
    }
    table::close_range_steps(first, last, |step| match step {
        CloseRangeStep::Forget(fd) => forget(fd),
        CloseRangeStep::Close(first, last) => sys::close_range(first, last, flags),
    });
    Some(Ok(0))
}
