//! Waiting in an epoll instance that has others within.

use libc::epoll_event;

use super::collect;
use crate::{
    readiness::{
        Instance,
        kernel_events::{kernel_events, merge_same, without_internal},
        wait::Deadline,
    },
    service::{Lane, outage::Nap},
    socket::listening,
    sys::{self, Errno, SignalMask},
};

/// As `wait`, with a look at what is within. Slower: each round asks the kernel.
pub(super) fn wait(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    instance.lane().end_batch();
    loop {
        instance.pump_beside();
        let count = look(instance, events)?;
        if count > 0 || deadline.is_now() {
            return Ok(count);
        }
        listening::look_for_service();
        let asleep = Asleep::begin(instance);
        let ready = instance.state().has_ready() || instance.has_nested_events();
        let found = if asleep.quiet && !ready {
            let nap = Nap::begin();
            let left_ns = nap.limit(deadline.left_ns());
            Some(sys::epoll_wait(
                instance.lane().epfd(),
                events,
                left_ns,
                mask,
            ))
        } else {
            None
        };
        drop(asleep);
        let Some(found) = found else { continue };
        let count = without_internal(instance, events, 0, found?);
        let count = instance.nested_events(events, count);
        if count > 0 {
            return Ok(count);
        }
        if deadline.passed() {
            return look(instance, events);
        }
    }
}

/// Collects the ready descriptors of both stacks, of this instance and of those within it.
fn look(instance: &'static Instance, events: &mut [epoll_event]) -> Result<usize, Errno> {
    let count = collect(instance, events);
    if count == events.len() {
        return Ok(count);
    }
    let from_kernel = kernel_events(instance, events, count, Some(0), None)? - count;
    let more = instance.nested_events(&mut events[count..], from_kernel);
    Ok(merge_same(events, count + more))
}

/// A sleep that all lanes here and within know of.
struct Asleep {
    lanes: Vec<(&'static Lane, bool)>,
    quiet: bool,
}

impl Asleep {
    fn begin(instance: &Instance) -> Self {
        let own = instance.lane();
        let mut asleep = Self {
            lanes: Vec::new(),
            quiet: true,
        };
        asleep.announce(own);
        for lane in instance.lanes_within().iter() {
            asleep.announce(lane);
        }
        asleep
    }

    fn announce(&mut self, lane: &'static Lane) {
        if !lane.is_active() && lane.begin_kernel_sleep() {
            self.lanes.push((lane, false));
            return;
        }
        self.quiet &= lane.arm();
        self.lanes.push((lane, true));
        if let Some(beside) = lane.beside() {
            self.quiet &= lane.arm_beside(beside);
            self.lanes.push((beside, true));
        }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        for (lane, armed) in &self.lanes {
            if *armed {
                lane.disarm();
            } else {
                lane.end_kernel_sleep();
            }
        }
    }
}
