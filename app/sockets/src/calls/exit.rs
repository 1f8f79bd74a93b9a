//! The end of the process: connections are closed, so that the service sends what is left and FIN.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    service::session,
    socket::{Socket, registry, state::State},
    sys::Section,
    table,
};

/// The connections were closed.
static DONE: AtomicBool = AtomicBool::new(false);

/// The process is about to end (`exit`, `_exit`, return from `main`). Closes every connection.
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

/// For the child after fork: it has its own end.
pub(crate) fn reset_after_fork() {
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
