//! Moving a connection's events to the channel of the thread that waits for them.
//!
//! The service (the process `tidelaned`) reports the events of a connection over one channel, and
//! rings that channel's doorbell. If several threads sleep on one channel, each event wakes all of
//! them. A thread that waits for a connection in a blocking call therefore moves the connection's
//! events to its own channel.

use std::sync::atomic::Ordering;

use super::{Inner, Socket, state::State};
use crate::service::thread_channels;

/// Moves the events of the locked socket to the channel of the calling thread, which is about to
/// wait for them. Does nothing if the thread has no channel of its own and needs none, if an epoll
/// instance reports the events, if several processes share the connection, or if another thread
/// waits for the socket. Two waiting threads would otherwise take the events from each other
/// forever.
pub(crate) fn move_events_here(socket: &'static Socket, inner: &mut Inner) {
    let (State::Stream(connection), Some(before)) = (&inner.state, inner.channel) else {
        return;
    };
    if inner.shared
        || socket.waiters.load(Ordering::SeqCst) != 0
        || socket.first_registration().is_some()
    {
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
