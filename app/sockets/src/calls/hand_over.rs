//! Connections that a program passes to another program, by SCM_RIGHTS over a unix socket or by
//! `exec`.
//!
//! An accelerated connection, which the service (the process `tidelaned`) carries, cannot be passed
//! on in either way. In the kernel, the descriptor of the connection refers to an unconnected
//! socket, and the receiver would only get this socket. Only the tables of the library
//! (`libtidelane.so`, which contains this crate) in this process lead from the descriptor to the
//! connection. The library therefore reports an attempt to pass on a connection by SCM_RIGHTS, or
//! by `exec` as standard input, output or error (see `docs/socket-calls.md`).
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
/// future connections to the kernel. The connection in the message is lost: the receiver sees no
/// data, and the peer gets a RST at the last close. With TIDELANE_STRICT, returns EOPNOTSUPP, and
/// the caller does not send the message.
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

/// Leaves the listeners of this process to the kernel. Other processes of the program do the same
/// at their next `accept`.
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

/// Does the check of [`check_exec`] for `posix_spawn`, whose program gets `fd` as its descriptor
/// `to`.
pub fn check_spawned(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    if STDIO.contains(&to) && registry::of(fd).is_some_and(is_connection) {
        return report_exec(fd);
    }
    Ok(())
}

/// Reports an accelerated connection among the standard descriptors that `exec` keeps open. With
/// TIDELANE_STRICT, returns EOPNOTSUPP. Does not check other descriptors, because most programs
/// pass them on only for lack of FD_CLOEXEC.
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

/// Reports that `exec` passes on `fd`, an accelerated connection. With TIDELANE_STRICT, returns
/// EOPNOTSUPP.
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
