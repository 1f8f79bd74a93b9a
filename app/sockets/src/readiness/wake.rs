//! Wake-ups of waiters, the threads that sleep until a socket is ready. Each change of a socket's
//! readiness leads to a call of this module.
//!
//! The service (the process `tidelaned`) reports events over channels. A channel consists of rings
//! and a doorbell, an eventfd. A thread waits either in an epoll instance with which the socket is
//! registered, or for the socket itself (`recv`, `accept`, `poll`). In the second case, the thread
//! sleeps on the doorbells of the channels on which the socket's events arrive.
//!
//! | cause | registrations of the socket | threads that wait for the socket |
//! |---|---|---|
//! | events of a channel ([`finish`]) | put into ready lists | woken if they sleep on the channel |
//! | a call of this process ([`on_readiness_change`]) | put into ready lists | woken |
//! | `epoll_ctl` ([`on_armed`]) | one is put into its ready list | not woken |
//!
//! A doorbell wakes only one of the threads that wait in the same epoll instance, because the
//! kernel reports the doorbell's edge there only once. A woken thread that leaves work undone
//! therefore wakes the next thread ([`Channel::wake_sleepers`]). A thread that consumes the edge
//! without having slept has to wake a sleeping thread, too.

use std::sync::atomic::Ordering;

use super::{
    instance::{self, Instance},
    interest::Interest,
};
use crate::{
    service::Channel,
    socket::{Socket, registration_ref::RegistrationRef},
    sys::{Guard, SmallVec},
};

/// Records an event of `socket` that arrived at `channel`. `state` is the locked interest list of
/// the channel's epoll instance.
#[inline]
pub(super) fn record_event(state: &mut Interest, channel: &Channel, socket: &'static Socket) {
    if socket.waiters.load(Ordering::Relaxed) != 0 {
        state.wake = true;
    }
    let Some(registration) = socket.first_registration() else {
        // The socket is in no epoll instance. `note_event` increments the socket's event count. A
        // call that waits for a shared connection notices the event by the changed count.
        return socket.note_event();
    };
    if registration.channel == channel.number() && !socket.has_more_registrations() {
        state.push_ready(registration.index);
    } else {
        state.other_registrations.push(socket);
    }
}

/// Unlocks `state`, puts the recorded sockets into the ready lists of other epoll instances, and
/// wakes the threads that sleep on `channel` if `state.wake` was true.
#[inline]
pub(super) fn finish(mut state: Guard<'_, Interest>, channel: &Channel) {
    if state.other_registrations.is_empty() && !state.wake {
        return;
    }
    let others = std::mem::take(&mut state.other_registrations);
    let wake = std::mem::take(&mut state.wake);
    drop(state);
    for socket in others {
        notify_registrations(socket);
    }
    if wake {
        channel.wake_sleepers();
    }
}

/// Wakes the waiters after a call of this process changed the socket's readiness. The socket's
/// events arrive at `channel`.
pub(crate) fn on_readiness_change(socket: &'static Socket, channel: Option<&'static Channel>) {
    notify_registrations(socket);
    wake_waiters(socket, channel);
}

/// Wakes a waiter of the instance, because the next wait has to check a registration: the program
/// has added or changed the registration, or the registration was put into the ready list.
pub(crate) fn on_armed(instance: &Instance) {
    instance.channel().wake_sleepers();
}

/// Wakes the next waiter. The program's array of events was full before a wait had checked all
/// registrations in the ready list.
pub(crate) fn on_unchecked_left(instance: &Instance) {
    instance.channel().wake_sleepers();
}

/// Wakes a waiter because a thread consumed the doorbell's edge without processing the events that
/// the doorbell announced.
pub(crate) fn on_edge_consumed(instance: &Instance) {
    instance.channel().wake_sleepers();
}

/// Wakes the threads that wait for the socket on `channel`, so that they check the socket again:
/// the socket was closed, its readiness has changed, or its events arrive at another channel from
/// now on.
pub(crate) fn wake_waiters(socket: &Socket, channel: Option<&'static Channel>) {
    if socket.waiters.load(Ordering::SeqCst) > 0
        && let Some(channel) = channel
    {
        channel.wake_sleepers();
    }
}

/// Wakes the threads that wait for a listener on the channels `before`. Another channel has joined
/// the listener: the service delivers connections to this channel, too, so the threads also have to
/// wait on this channel.
pub(crate) fn on_channel_joined(socket: &Socket, before: &SmallVec<&'static Channel>) {
    before
        .iter()
        .for_each(|channel| wake_waiters(socket, Some(channel)));
}

/// Puts all registrations of a socket into the ready lists of their epoll instances, and wakes a
/// waiter of each of these instances.
pub(crate) fn notify_registrations(socket: &'static Socket) {
    let registrations: Vec<RegistrationRef> = socket.lock().registrations(socket).collect();
    for registration in registrations {
        if let Some(instance) = instance::numbered(registration.channel) {
            instance.lock_interest().push_ready(registration.index);
            on_armed(instance);
        }
    }
}
