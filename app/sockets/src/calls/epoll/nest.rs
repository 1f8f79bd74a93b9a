//! `epoll_wait` on an epoll instance that contains other epoll instances.
//!
//! The outer instance is the argument of `epoll_wait`. An inner instance is registered with the
//! outer instance, directly or through another inner instance. Each instance has a channel, which
//! consists of rings and a doorbell (an eventfd). Over the channel, the service (the process
//! `tidelaned`) reports events of accelerated sockets, whose connections the service carries.
//! Sockets that are in no epoll instance use the default channel. The channel of an instance may
//! also have to poll the default channel, because connections of its listeners may arrive there.

use libc::epoll_event;

use super::collect;
use crate::{
    readiness::{
        Instance,
        kernel_events::{kernel_events, merge_same, remove_internal},
        wait::Deadline,
    },
    service::{Channel, outage::BoundedSleep, outer_channels::Announcement},
    socket::listening,
    sys::{self, Errno, SignalMask},
};

/// Waits like [`super::wait`], and also checks the inner instances. Each iteration polls the
/// kernel's epoll instance, so this function is slower than `super::wait`.
pub(super) fn wait(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    instance.channel().end_batch();
    loop {
        instance.pump_default();
        instance.report_service_death(&mut instance.lock_interest());
        let count = collect_all(instance, events)?;
        if count > 0 || deadline.is_now() {
            return Ok(count);
        }
        listening::seek_service();
        let sleep = AnnouncedSleep::begin(instance);
        let ready = instance.lock_interest().has_ready() || instance.has_nested_events();
        let found = if sleep.may_sleep && !ready {
            let bound = BoundedSleep::begin();
            let left_ns = bound.limit(deadline.left_ns());
            Some(sys::epoll_wait(
                instance.channel().epfd(),
                events,
                left_ns,
                mask,
            ))
        } else {
            None
        };
        drop(sleep);
        let Some(found) = found else {
            if deadline.passed() {
                return collect_all(instance, events);
            }
            continue;
        };
        let count = remove_internal(instance, events, 0, found?);
        let count = instance.nested_events(events, count);
        if count > 0 {
            return Ok(merge_same(events, count));
        }
        if deadline.passed() {
            return collect_all(instance, events);
        }
    }
}

/// Collects the events of accelerated sockets, of kernel descriptors and of inner instances,
/// without sleeping. Returns the number of events.
fn collect_all(instance: &'static Instance, events: &mut [epoll_event]) -> Result<usize, Errno> {
    let count = collect(instance, events);
    if count == events.len() {
        return Ok(count);
    }
    let from_kernel = kernel_events(instance, events, count, Some(0), None)? - count;
    let more = instance.nested_events(&mut events[count..], from_kernel);
    Ok(merge_same(events, count + more))
}

/// A sleep of this thread that is announced to the channels of the outer and of the inner
/// instances, so that events on these channels wake the thread. Dropping the value ends the
/// announcement.
///
/// An inner channel without a doorbell needs no announcement: when the channel gets its rings and
/// its doorbell, it wakes the threads that sleep in an outer instance.
struct AnnouncedSleep {
    /// The channel of the outer instance.
    own: &'static Channel,
    /// True if the doorbell of `own` was armed, so that the service rings it at the next event.
    /// False if `own` has no doorbell yet.
    own_armed: bool,
    /// The default channel, if `own` polls it.
    own_default: Option<&'static Channel>,
    /// The channels of the inner instances that have a doorbell, and the default channel once for
    /// each of these channels that polls the default channel.
    within: Vec<&'static Channel>,
    announcement: Announcement,
    /// True if no channel had pending events when its doorbell was armed, and no channel was added
    /// within an instance meanwhile.
    may_sleep: bool,
}

impl AnnouncedSleep {
    fn begin(instance: &Instance) -> Self {
        let own = instance.channel();
        own.stale().give_way();
        let (announcement, (own_armed, may_sleep)) = Announcement::begin(|| {
            let own_armed = own.is_active() || !own.begin_kernel_sleep();
            (own_armed, !own_armed || own.arm())
        });
        let mut sleep = Self {
            own,
            own_armed,
            own_default: None,
            within: Vec::new(),
            announcement,
            may_sleep,
        };
        if sleep.own_armed {
            sleep.own_default = own.default_to_poll();
            if let Some(default) = sleep.own_default {
                sleep.may_sleep &= own.arm_default(default);
            }
        }
        for channel in instance.channels_within().iter() {
            sleep.announce_within(channel);
        }
        // If an inner instance was added before the announcement to `own`, the addition may not
        // have woken this thread.
        sleep.may_sleep &= announcement.is_current();
        sleep
    }

    fn announce_within(&mut self, channel: &'static Channel) {
        if !channel.is_active() {
            return;
        }
        self.may_sleep &= channel.arm_from_outer();
        self.within.push(channel);
        if let Some(default) = channel.default_to_poll() {
            self.may_sleep &= channel.arm_default_from_outer(default);
            self.within.push(default);
        }
    }
}

impl Drop for AnnouncedSleep {
    fn drop(&mut self) {
        self.announcement.end(self.own.stale());
        if self.own_armed {
            self.own.disarm();
        } else {
            self.own.end_kernel_sleep();
        }
        if let Some(default) = self.own_default {
            default.disarm();
        }
        for channel in &self.within {
            channel.disarm_from_outer();
        }
    }
}
