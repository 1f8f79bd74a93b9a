//! Connections that a program passes to another program, by SCM_RIGHTS over a unix socket or by
//! `exec`.
//!
//! An accelerated connection, which the service (the process `tidelaned`) carries, cannot be passed
//! on in either way. In the kernel, the descriptor of the connection refers to an unconnected
//! socket, and the receiver would only get this socket. Only tables in the memory of this process
//! lead from the descriptor to the connection. The library (`libtidelane.so`, which contains this
//! crate) therefore reports two kinds of attempts to pass on a connection: in an SCM_RIGHTS
//! message, and over `exec` as standard input, output or error (see `docs/socket-calls.md`).
//!
//! With the environment variable TIDELANE_STRICT, a reported call fails.

use std::os::fd::RawFd;

use tidelane_abi::not_accelerated;

use crate::{
    service::{exceptions, session},
    socket::{Socket, registry, state::State},
    sys::{self, Errno},
    table,
};

/// Descriptors that are checked at `exec`: standard input, output and error.
const STDIO: std::ops::RangeInclusive<RawFd> = 0..=2;

/// Checks the descriptors in an SCM_RIGHTS message before the message is sent.
///
/// If a descriptor is an accelerated connection, reports the attempt, and leaves the program's
/// future connections to the kernel. With TIDELANE_STRICT, then returns EOPNOTSUPP, and the caller
/// does not send the message. Without TIDELANE_STRICT, the connection in the message is lost: the
/// receiver sees no data, and the peer gets a RST at the last close.
pub fn check_rights(descriptors: impl Iterator<Item = RawFd>) -> Result<(), Errno> {
    for fd in descriptors {
        let Some(socket) = registry::of(fd).filter(|socket| is_connection(socket)) else {
            continue;
        };
        sys::line(format_args!(
            "descriptor {fd} is an accelerated connection, which cannot be sent to another \
             process: from now on the kernel has this program's connections"
        ));
        if session::owns_tables() {
            exceptions::note_message();
            leave_listeners();
        }
        if session::settings().strict {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if let Some(mut inner) = socket.try_enter() {
            inner.options.linger = Some(0);
        }
    }
    Ok(())
}

/// Leaves the listeners of this process to the kernel. Each other process of the program leaves its
/// listeners to the kernel at its next `accept`.
fn leave_listeners() {
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd)
            && let Some(mut inner) = socket.enter(fd)
            && let State::Listening(listening) = &mut inner.state
            && listening.handle.is_some()
        {
            listening.leave_to_kernel();
            drop(inner);
            session::report_not_accelerated(fd, not_accelerated::PASSED_ON);
        }
    }
}

/// Checks one descriptor for `posix_spawn`, as [`check_exec`] does for `exec`. The spawned program
/// gets the descriptor `fd` of this process as its descriptor `to`.
pub fn check_spawned(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    if STDIO.contains(&to) && registry::of(fd).is_some_and(is_connection) {
        return report_exec(fd);
    }
    Ok(())
}

/// Reports the first accelerated connection among the standard descriptors that `exec` keeps open.
/// With TIDELANE_STRICT, also returns EOPNOTSUPP. Does not check other descriptors: most programs
/// pass on other descriptors only because they have not set FD_CLOEXEC.
pub fn check_exec() -> Result<(), Errno> {
    for fd in STDIO {
        let stays_open = sys::fcntl(fd, libc::F_GETFD, 0)
            .is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
        if stays_open && registry::of(fd).is_some_and(is_connection) {
            return report_exec(fd);
        }
    }
    Ok(())
}

/// Reports that `exec` passes on `fd`, an accelerated connection. With TIDELANE_STRICT, also
/// returns EOPNOTSUPP.
fn report_exec(fd: RawFd) -> Result<(), Errno> {
    sys::line(format_args!(
        "descriptor {fd} is an accelerated connection, which ends at exec: from now on the kernel \
         has the connections that this program accepts"
    ));
    exceptions::note_exec();
    if session::settings().strict {
        Err(Errno(libc::EOPNOTSUPP))
    } else {
        Ok(())
    }
}

/// Returns true if the socket is an accelerated connection. Returns false if a thread holds the
/// socket's lock.
fn is_connection(socket: &'static Socket) -> bool {
    // A child between vfork and exec must not wait for the lock, because the thread that holds the
    // lock may never run.
    socket.try_lock().is_some_and(|inner| {
        matches!(
            inner.state,
            State::Stream(_) | State::Connecting(_) | State::Inherited(_) | State::LostByFork
        )
    })
}
