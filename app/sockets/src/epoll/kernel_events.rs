//! Events of the kernel's epoll instance, without the library's own.

use libc::epoll_event;

use crate::{
    errno::Errno,
    lane::{self, Lane},
    sys::{self, SignalMask},
};

/// A listener may be ready in both stacks: one report is enough.
pub(super) fn merge_same(events: &mut [epoll_event], count: usize) -> usize {
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

/// Asks the kernel for events behind the `count` that are there.
pub(super) fn kernel_events(
    lane: &'static Lane,
    events: &mut [epoll_event],
    count: usize,
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let found = sys::epoll_wait(lane.epfd(), &mut events[count..], timeout_ns, mask)?;
    let kept = without_internal(lane, events, count, found);
    if kept < count + found {
        // This look took the doorbell's edge away from a thread that sleeps.
        lane.wake_sleepers();
    }
    Ok(kept)
}

/// Takes the library's own out of the `found` events behind the first `count`.
pub(super) fn without_internal(
    lane: &Lane,
    events: &mut [epoll_event],
    count: usize,
    found: usize,
) -> usize {
    let mut kept = count;
    for at in count..count + found {
        let event = events[at];
        if !lane::is_internal_event(&event) {
            events[kept] = event;
            kept += 1;
        }
    }
    if kept > count && lane.has_kernel_one_shots() {
        note_one_shots(lane, &events[count..kept]);
    }
    kept
}

/// The kernel reported these, and disabled its registrations with EPOLLONESHOT: so are ours. Where
/// several registrations have the same data, it was that of a listener that has a connection.
fn note_one_shots(lane: &Lane, events: &[epoll_event]) {
    let mut state = lane.state();
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
