//! Moving a connection's events to the channel of the thread that waits for them.
//!
//! A channel is a set of rings and a doorbell (an eventfd) that this process shares with the
//! service (the process `tidelaned`). The service reports the events of a connection over one
//! channel, and rings that channel's doorbell. If several threads sleep on one channel, each event
//! wakes all of them. A thread that waits for a connection in a blocking call therefore moves the
//! connection's events to its own channel.

use std::sync::atomic::Ordering;

use super::{Inner, Socket, state::State};
use crate::{service::thread_channels, sys};

/// Moves the events of the locked socket to the channel of the calling thread, which is about to
/// wait for them. Does nothing in these cases:
///
/// * The socket has no established connection or no channel, or several processes share the
///   connection.
/// * The events already arrive at the thread's own channel.
/// * The thread has no channel of its own, and either needs none or cannot get one. A thread needs
///   its own channel if another thread sleeps on the socket's channel.
/// * The thread's own channel cannot take over the connection.
/// * The socket is registered with an epoll instance, or its events arrive at the channel of an
///   epoll instance. The program may soon wait for the socket in that instance again: the web
///   server Puma moves each connection between an instance and its threads.
/// * A thread already waits for the socket. Two threads would take the events from each other
///   forever.
/// * The previous thread that waited for the socket was not the calling thread. A move costs a
///   request and an event, which would slow down the threads of a pool that take turns.
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
