//! Moving a connection's events to the channel of the thread that waits for them.
//!
//! The service (the process `tidelaned`) reports the events of a connection over one channel, and
//! rings that channel's doorbell. If several threads sleep on one channel, each event wakes all of
//! them. A thread that waits for a connection in a blocking call therefore moves the connection's
//! events to its own channel.

use std::sync::atomic::Ordering;

use super::{Inner, Socket, state::State};
use crate::{service::thread_channels, sys};

/// Moves the events of the locked socket to the channel of the calling thread, which is about to
/// wait for them. Does nothing in these cases:
///
/// * The socket has no connection or no channel, or several processes share the connection.
/// * The thread has no channel of its own and needs or gets none, or its channel cannot take over
///   the connection.
/// * The socket is registered with an epoll instance, or its present channel is that of an epoll
///   instance, which may soon report the socket again. The web server Puma moves each connection
///   between an instance and its threads.
/// * A thread already waits for the socket. Two threads would take the events from each other
///   forever.
/// * The calling thread was not the last to wait for the socket. Moving costs a request and an
///   event, which would slow down the threads of a pool that take turns.
pub(crate) fn move_events_here(socket: &'static Socket, inner: &mut Inner) {
    let (State::Stream(connection), Some(before)) = (&inner.state, inner.channel) else {
        return;
    };
    if inner.shared
        || before.epfd() >= 0
        || socket.waiters.load(Ordering::SeqCst) != 0
        || socket.first_registration().is_some()
    {
        return;
    }
    let thread = sys::thread_identity();
    if std::mem::replace(&mut inner.last_waiter, thread) != thread {
        return;
    }
    let Some(own) = thread_channels::of_this_thread(before) else {
        return;
    };
    if !std::ptr::eq(own, before) && own.take_over(connection) {
        socket.member.leave_batch();
        inner.channel = Some(own);
    }
}
