//! The child after `fork`: what it has of its parent's sockets.
//!
//! Listeners are inherited and taken up again when the child shows interest. Connections stay the
//! parent's: rings have one owner. Their descriptors can be closed here; using one gives
//! ECONNRESET.

use crate::{
    exit, file, session,
    socket::{Listening, Socket, State},
    table,
};

/// Runs in the child, which has this one thread.
pub(crate) extern "C" fn in_child() {
    session::reset_after_fork();
    exit::reset_after_fork();
    file::reset_after_fork();
    table::reset_after_fork();
    for lane in table::lanes() {
        lane.reset_after_fork();
    }
    for fd in table::descriptors() {
        if let Some(socket) = table::socket(fd) {
            inherit(socket);
        }
    }
}

fn inherit(socket: &'static Socket) {
    let mut inner = socket.unlock_after_fork();
    inner.lane = None;
    let state = std::mem::take(&mut inner.state);
    inner.state = match state {
        State::Listening(listening) => {
            let backlog = listening.backlog;
            // Its queue holds connections of the parent's.
            std::mem::forget(listening);
            State::Listening(Listening::inherited(backlog))
        }
        State::Stream(_) | State::Connecting(_) => {
            std::mem::forget(state);
            State::Forked
        }
        other => other,
    };
}
