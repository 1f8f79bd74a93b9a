//! Connections on their way to another program: in a message over a unix socket, or over `exec`.
//!
//! Neither is carried: the descriptor behind a connection is a placeholder, which means nothing to
//! whoever has it without this library's tables. That must not be found out by bytes that never
//! come, so it is said here. See `docs/socket-calls.md`.

use std::os::fd::RawFd;

use crate::{
    service::{exceptions, session},
    socket::{Socket, registry, state::State},
    sys::{self, Errno},
};

/// Descriptors that a program hands to another one on purpose: standard input, output and error.
const STANDARD: std::ops::RangeInclusive<RawFd> = 0..=2;

/// A message with these descriptors is about to be sent: EOPNOTSUPP if one is a connection.
pub fn check_rights(descriptors: impl Iterator<Item = RawFd>) -> Result<(), Errno> {
    for fd in descriptors {
        if registry::of(fd).is_some_and(is_connection) {
            sys::line(format_args!(
                "descriptor {fd} is an accelerated connection, which cannot be sent to another \
                 process: sendmsg fails"
            ));
            return Err(Errno(libc::EOPNOTSUPP));
        }
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
            sys::line(format_args!(
                "descriptor {fd} is an accelerated connection, which ends at exec: from now on \
                 the kernel has the connections that this program accepts"
            ));
            exceptions::note_handing_over();
            return if session::settings().strict {
                Err(Errno(libc::EOPNOTSUPP))
            } else {
                Ok(())
            };
        }
    }
    Ok(())
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
