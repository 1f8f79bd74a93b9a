//! The events of the kernel's epoll instance, without the events of the library's own descriptors.
//!
//! The library (`libtidelane.so`, which contains this crate) adds three kinds of descriptors to the
//! program's epoll instances:
//!
//! * Doorbells are eventfds by which the service (the process `tidelaned`) wakes a sleeping thread.
//! * The control socket is the Unix socket over which this process registered with the service.
//! * The template is an unconnected socket that wakes a thread of an instance without a doorbell.

use libc::epoll_event;

use super::{Instance, wake};
use crate::{
    service::internal_events,
    sys::{self, Errno, SignalMask},
};

/// Merges events with equal user data among the first `count` events, because a listener that is
/// ready in the kernel and in the service has two events. Returns the new number of events.
pub(crate) fn merge_same(events: &mut [epoll_event], count: usize) -> usize {
    let mut kept = 0;
    for at in 0..count {
        let event = events[at];
        let (bits, data) = (event.events, event.u64);
        match events[..kept].iter().position(|other| other.u64 == data) {
            Some(same) => events[same].events |= bits,
            None => {
                events[kept] = event;
                kept += 1;
            }
        }
    }
    kept
}

/// Polls the kernel's epoll instance, and appends its events after the first `count`. Returns the
/// new number of events.
pub(crate) fn kernel_events(
    instance: &Instance,
    events: &mut [epoll_event],
    count: usize,
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let found = sys::epoll_wait(
        instance.channel().epfd(),
        &mut events[count..],
        timeout_ns,
        mask,
    )?;
    let kept = remove_internal(instance, events, count, found);
    if kept < count + found {
        // This call may have consumed a doorbell's edge, which was meant to wake a sleeping thread.
        wake::on_edge_consumed(instance);
    }
    Ok(kept)
}

/// Removes the library's own events from the `found` events that follow the first `count` events.
/// In the events of inner epoll instances, replaces the library's data with the program's data.
/// Returns the new number of events.
pub(crate) fn remove_internal(
    instance: &Instance,
    events: &mut [epoll_event],
    count: usize,
    found: usize,
) -> usize {
    let mut kept = count;
    for at in count..count + found {
        let event = events[at];
        if internal_events::is_internal_event(&event) {
            continue;
        }
        if let Some(event) = instance.program_event(event) {
            events[kept] = event;
            kept += 1;
        }
    }
    if kept > count && instance.has_kernel_one_shots() {
        note_one_shots(instance, &events[count..kept]);
    }
    kept
}

/// Disables the EPOLLONESHOT registrations that the kernel has reported in `events`, because the
/// kernel has disabled them, too. Several registrations may have the user data of one event. Of
/// these registrations, the kernel has reported the ones whose kernel sockets are ready (POLLIN,
/// POLLERR or POLLHUP), for example listeners with a pending connection.
fn note_one_shots(instance: &Instance, events: &[epoll_event]) {
    let mut state = instance.lock_interest();
    for event in events {
        let data = event.u64;
        state.disable_one_shots(data, |fd| {
            let mut fds = [libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            }];
            sys::ppoll(&mut fds, Some(0), None).is_ok_and(|count| count > 0)
        });
    }
}
