//! The end of the process: connections are closed, so that the service sends what is left and FIN.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    session,
    socket::{Socket, State},
    table,
};

/// There is something to close.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// It was closed.
static DONE: AtomicBool = AtomicBool::new(false);

/// There is a session from now on.
pub(crate) fn watch() {
    WATCHING.store(true, Ordering::Relaxed);
}

/// The process is about to end (`exit`, `_exit`, return from `main`). Closes every connection.
pub fn at_exit() {
    if !WATCHING.load(Ordering::Relaxed)
        || !session::owns_tables()
        || DONE.swap(true, Ordering::Relaxed)
    {
        return;
    }
    for fd in table::descriptors() {
        if let Some(socket) = table::socket(fd) {
            close(socket);
        }
    }
}

/// For the child after fork: it has its own end.
pub(crate) fn reset_after_fork() {
    WATCHING.store(false, Ordering::Relaxed);
    DONE.store(false, Ordering::Relaxed);
}

fn close(socket: &'static Socket) {
    // A thread that works on the socket at this moment keeps it: the service resets what is left.
    let Some(mut inner) = socket.try_lock() else {
        return;
    };
    let lane = inner.lane;
    let abort = inner.options.linger == Some(0);
    match std::mem::replace(&mut inner.state, State::Forked) {
        State::Stream(mut connection) => {
            connection.stream.close(abort, None);
            if let Some(lane) = lane {
                lane.submit_now(&mut connection);
            }
        }
        State::Listening(listening) => listening.close(),
        other => inner.state = other,
    }
}
