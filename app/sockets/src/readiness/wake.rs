//! Wake-ups: the waiters that a report about a socket wakes. Each change of readiness comes here.
//!
//! Threads sleep in two ways: in an epoll instance that has the socket, and for the socket itself
//! (`recv`, `accept`, `poll`), on the doorbells of the lanes where its events arrive.
//!
//! | what | the registrations | threads that wait for the socket |
//! |---|---|---|
//! | a lane's event ([`note`], [`settle`]) | into their ready lists | the lane's sleepers wake |
//! | a change by this process ([`changed`]) | into their ready lists | the lane's sleepers wake |
//! | `epoll_ctl` ([`armed`]) | into this ready list | none |
//!
//! A doorbell wakes one thread at a time. Whoever is woken and leaves something wakes the next one
//! ([`Lane::wake_sleepers`]), and whoever takes a doorbell's edge without looking passes it on.

use std::sync::atomic::Ordering;

use super::{
    instance::{self, Instance},
    interest::Interest,
};
use crate::{
    service::Lane,
    socket::{Socket, registrations::WatchRef},
    sys::{Few, Guard},
};

/// The service reported something about the socket to `lane`, whose registrations are locked:
/// whoever waits for it shall look.
#[inline]
pub(super) fn note(state: &mut Interest, lane: &Lane, socket: &'static Socket) {
    if socket.waiters.load(Ordering::Relaxed) != 0 {
        state.wake = true;
    }
    let Some(watch) = socket.first_watch() else {
        return;
    };
    if watch.lane == lane.number() && !socket.has_more_watches() {
        state.push_ready(watch.index);
    } else {
        state.foreign.push(socket);
    }
}

/// Ends work on the registrations of `lane`: wakes whom what was noted concerns.
#[inline]
pub(super) fn settle(mut state: Guard<'_, Interest>, lane: &Lane) {
    if state.foreign.is_empty() && !state.wake {
        return;
    }
    let foreign = std::mem::take(&mut state.foreign);
    let wake = std::mem::take(&mut state.wake);
    drop(state);
    for socket in foreign {
        notify_watches(socket);
    }
    if wake {
        lane.wake_sleepers();
    }
}

/// This process changed what the socket is ready for; its events arrive at `lane`.
pub(crate) fn changed(socket: &'static Socket, lane: Option<&'static Lane>) {
    notify_watches(socket);
    tell_waiters(socket, lane);
}

/// A registration of the instance was armed, and is in its ready list.
pub(crate) fn armed(instance: &Instance) {
    instance.lane().wake_sleepers();
}

/// A wait left registrations in the ready list that it did not look at: the next thread does.
pub(crate) fn left(instance: &Instance) {
    instance.lane().wake_sleepers();
}

/// A look that did not sleep took the edge of the instance's doorbell: it was another thread's.
pub(crate) fn edge_taken(instance: &Instance) {
    instance.lane().wake_sleepers();
}

/// Threads that wait for the socket look again: it is gone, or its events arrive elsewhere from now
/// on, and arrived at `lane` before.
pub(crate) fn tell_waiters(socket: &Socket, lane: Option<&'static Lane>) {
    if socket.waiters.load(Ordering::SeqCst) > 0
        && let Some(lane) = lane
    {
        lane.wake_sleepers();
    }
}

/// Connections of a listener come to a lane that joined after `before`: threads that wait there for
/// the listener look at that one, too.
pub(crate) fn joined(socket: &Socket, before: &Few<&'static Lane>) {
    before
        .iter()
        .for_each(|lane| tell_waiters(socket, Some(lane)));
}

/// Puts all registrations of a socket into their ready lists.
pub(crate) fn notify_watches(socket: &'static Socket) {
    let watches: Vec<WatchRef> = socket.lock().watches(socket).collect();
    for watch in watches {
        if let Some(instance) = instance::numbered(watch.lane) {
            instance.state().push_ready(watch.index);
            armed(instance);
        }
    }
}
