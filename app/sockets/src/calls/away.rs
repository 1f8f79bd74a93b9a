//! Connections on their way to another program: in a message over a unix socket, or over `exec`.
//!
//! Neither is carried: the descriptor behind a connection is a placeholder, which means nothing to
//! whoever has it without this library's tables. That must not be found out by bytes that never
//! come, so it is said here. See `docs/socket-calls.md`.

use std::os::fd::RawFd;

use tidelane_abi::not_accelerated;

use crate::{
    service::{exceptions, session},
    socket::{Socket, registry, state::State},
    sys::{self, Errno},
    table,
};

/// Descriptors that a program hands to another one on purpose: standard input, output and error.
const STANDARD: std::ops::RangeInclusive<RawFd> = 0..=2;

/// A message with these descriptors is about to be sent. If one is a connection, the program is one
/// that hands connections over: the kernel has those to come. This one is lost for the receiver,
/// as if its peer had gone, and its peer gets a reset at the last close. Under TIDELANE_STRICT the
/// message is not sent: EOPNOTSUPP.
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
        if let Some(mut inner) = socket.visit() {
            inner.options.linger = Some(0);
        }
    }
    Ok(())
}

/// The listeners of this process are the kernel's from now on. (Those of others that it forked
/// follow when they accept.)
fn leave_listeners() {
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd)
            && let Some(mut inner) = socket.enter(fd)
            && let State::Listening(listening) = &mut inner.state
            && listening.handle.is_some()
        {
            listening.leave_to_kernel();
            drop(inner);
            session::note(fd, not_accelerated::HANDED_OVER);
        }
    }
}

/// A spawned program is to get `fd` as `to`: as `check_exec`, before there is a child.
pub fn check_spawned(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    if STANDARD.contains(&to) && registry::of(fd).is_some_and(is_connection) {
        return tell_exec(fd);
    }
    Ok(())
}

/// The program is about to be replaced: says so if it hands a connection to the new one. Under
/// TIDELANE_STRICT that is EOPNOTSUPP. (The other descriptors are hardly ever meant.)
pub fn check_exec() -> Result<(), Errno> {
    for fd in STANDARD {
        let stays = sys::fcntl(fd, libc::F_GETFD, 0)
            .is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
        if stays && registry::of(fd).is_some_and(is_connection) {
            return tell_exec(fd);
        }
    }
    Ok(())
}

/// A program that is executed gets the connection of `fd`.
fn tell_exec(fd: RawFd) -> Result<(), Errno> {
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

fn is_connection(socket: &'static Socket) -> bool {
    // Between vfork and exec the lock may be another thread's for ever.
    socket.try_lock().is_some_and(|inner| {
        matches!(
            inner.state,
            State::Stream(_) | State::Connecting(_) | State::Inherited(_) | State::Forked
        )
    })
}
