//! Connections that a program passes to another program, in a message over a unix socket or by
//! `exec`.
//!
//! Neither works: the descriptor of an accelerated connection is a placeholder, which is useless
//! without this library's tables. The library reports that, because otherwise the receiver would
//! only see a connection on which no data arrives. See `docs/socket-calls.md`.

use std::os::fd::RawFd;

use tidelane_abi::not_accelerated;

use crate::{
    service::{exceptions, session},
    socket::{Socket, registry, state::State},
    sys::{self, Errno},
    table,
};

/// Descriptors that a program passes to a program that it executes: standard input, output and
/// error.
const STANDARD: std::ops::RangeInclusive<RawFd> = 0..=2;

/// Checks the descriptors of a message that is about to be sent.
///
/// If one of them is an accelerated connection, the program's future connections are left to the
/// kernel. This connection is lost: the receiver sees no data, and the peer gets a reset at the
/// last close. With TIDELANE_STRICT the message is not sent, and the call fails with EOPNOTSUPP.
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

/// Leaves the listeners of this process to the kernel. (Forked processes follow when they accept.)
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

/// Like `check_exec`, for a program that is about to be spawned with `fd` as its descriptor `to`.
pub fn check_spawned(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    if STANDARD.contains(&to) && registry::of(fd).is_some_and(is_connection) {
        return report_exec(fd);
    }
    Ok(())
}

/// Reports a connection that the program passes to a program that it is about to execute. With
/// TIDELANE_STRICT the call fails with EOPNOTSUPP. Descriptors other than the standard ones are
/// mostly inherited by accident and not checked.
pub fn check_exec() -> Result<(), Errno> {
    for fd in STANDARD {
        let stays = sys::fcntl(fd, libc::F_GETFD, 0)
            .is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0);
        if stays && registry::of(fd).is_some_and(is_connection) {
            return report_exec(fd);
        }
    }
    Ok(())
}

/// Reports that a program to be executed gets the connection of `fd`.
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

fn is_connection(socket: &'static Socket) -> bool {
    // Between vfork and exec, the lock's owner may be a thread that never runs.
    socket.try_lock().is_some_and(|inner| {
        matches!(
            inner.state,
            State::Stream(_) | State::Connecting(_) | State::Inherited(_) | State::Forked
        )
    })
}
