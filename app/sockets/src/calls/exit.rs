//! The end of this process, which closes its accelerated connections. These are the connections
//! that the service (the process `tidelaned`) carries. For each closed connection, the service
//! sends the unsent payload and a FIN. If SO_LINGER is 0 seconds, the service sends a RST instead.
//! Without this module, the service would reset all connections of a process that has ended.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    service::session,
    socket::{Socket, registry, state::State},
    sys::Section,
    table,
};

/// True after a call of `at_exit` has begun to close the connections.
static DONE: AtomicBool = AtomicBool::new(false);

/// Closes the established connections and the listeners, because the process is about to end
/// (`exit`, `_exit`, return from `main`).
pub fn at_exit() {
    if session::last().is_none() || !session::owns_tables() || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let _section = Section::enter();
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd) {
            close(socket);
        }
    }
}

/// Resets [`DONE`] in a child after fork, so that `at_exit` closes the child's connections when the
/// child ends.
pub(crate) fn reset_after_fork() {
    DONE.store(false, Ordering::Relaxed);
}

/// Closes a connection or a listener at the end of the process.
fn close(socket: &'static Socket) {
    // If a thread holds the socket's lock, the socket stays open. The service then resets the
    // connection after the process has ended.
    let Some(mut inner) = socket.try_lock() else {
        return;
    };
    let channel = inner.channel;
    let abort = inner.options.linger == Some(0);
    // In the state `LostByFork`, later calls on the connection fail.
    match std::mem::replace(&mut inner.state, State::LostByFork) {
        State::Stream(mut connection) => {
            connection.stream.close(abort, None);
            if let Some(channel) = channel {
                channel.submit_now(&mut connection);
            }
        }
        State::Listening(listening) => listening.close(),
        other => inner.state = other,
    }
}
