//! `epoll_wait` on an epoll instance that contains other epoll instances.
//!
//! The outer instance is the argument of `epoll_wait`. An inner instance is registered with the
//! outer instance, directly or through another inner instance. Each instance has a channel, which
//! consists of rings and a doorbell (an eventfd). Over the channel, the service (the process
//! `tidelaned`) reports events of accelerated sockets. Sockets that are in no epoll instance use
//! the default channel.

use libc::epoll_event;

use super::collect;
use crate::{
    readiness::{
        Instance,
        kernel_events::{kernel_events, merge_same, remove_internal},
        wait::Deadline,
    },
    service::{Channel, outage::BoundedSleep},
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
        let Some(found) = found else { continue };
        let count = remove_internal(instance, events, 0, found?);
        let count = instance.nested_events(events, count);
        if count > 0 {
            return Ok(count);
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
struct AnnouncedSleep {
    /// The channels to which the sleep was announced. The flag is true if the channel's doorbell
    /// was armed, and false if the channel has no rings and no doorbell yet.
    channels: Vec<(&'static Channel, bool)>,
    /// True if no channel had pending events when its doorbell was armed.
    may_sleep: bool,
}

impl AnnouncedSleep {
    fn begin(instance: &Instance) -> Self {
        let own = instance.channel();
        let mut sleep = Self {
            channels: Vec::new(),
            may_sleep: true,
        };
        sleep.announce(own);
        for channel in instance.channels_within().iter() {
            sleep.announce(channel);
        }
        sleep
    }

    /// Announces the sleep to `channel`. If `channel` also polls the default channel, announces the
    /// sleep to the default channel, too.
    fn announce(&mut self, channel: &'static Channel) {
        if !channel.is_active() && channel.begin_kernel_sleep() {
            self.channels.push((channel, false));
            return;
        }
        self.may_sleep &= channel.arm();
        self.channels.push((channel, true));
        if let Some(default) = channel.default_to_poll() {
            self.may_sleep &= channel.arm_default(default);
            self.channels.push((default, true));
        }
    }
}

impl Drop for AnnouncedSleep {
    fn drop(&mut self) {
        for (channel, armed) in &self.channels {
            if *armed {
                channel.disarm();
            } else {
                channel.end_kernel_sleep();
            }
        }
    }
}
