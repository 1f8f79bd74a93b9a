//! Waiting in an epoll instance with which other instances are registered.

use libc::epoll_event;

use super::collect;
use crate::{
    readiness::{
        Instance,
        kernel_events::{kernel_events, merge_same, without_internal},
        wait::Deadline,
    },
    service::{Channel, outage::BoundedSleep},
    socket::listening,
    sys::{self, Errno, SignalMask},
};

/// Like `wait`, but checks the inner instances, too. Slower, because each round asks the kernel.
pub(super) fn wait(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    instance.channel().end_batch();
    loop {
        instance.pump_second();
        let count = collect_all(instance, events)?;
        if count > 0 || deadline.is_now() {
            return Ok(count);
        }
        listening::look_for_service();
        let asleep = Asleep::begin(instance);
        let ready = instance.state().has_ready() || instance.has_nested_events();
        let found = if asleep.quiet && !ready {
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
        drop(asleep);
        let Some(found) = found else { continue };
        let count = without_internal(instance, events, 0, found?);
        let count = instance.nested_events(events, count);
        if count > 0 {
            return Ok(count);
        }
        if deadline.passed() {
            return collect_all(instance, events);
        }
    }
}

/// Collects the ready descriptors of both stacks, of this instance and the inner ones.
fn collect_all(instance: &'static Instance, events: &mut [epoll_event]) -> Result<usize, Errno> {
    let count = collect(instance, events);
    if count == events.len() {
        return Ok(count);
    }
    let from_kernel = kernel_events(instance, events, count, Some(0), None)? - count;
    let more = instance.nested_events(&mut events[count..], from_kernel);
    Ok(merge_same(events, count + more))
}

/// A sleep that was announced to the channels of this instance and of the inner ones.
struct Asleep {
    channels: Vec<(&'static Channel, bool)>,
    quiet: bool,
}

impl Asleep {
    fn begin(instance: &Instance) -> Self {
        let own = instance.channel();
        let mut asleep = Self {
            channels: Vec::new(),
            quiet: true,
        };
        asleep.announce(own);
        for channel in instance.channels_within().iter() {
            asleep.announce(channel);
        }
        asleep
    }

    /// Announces the sleep to a channel, and to its second channel.
    fn announce(&mut self, channel: &'static Channel) {
        if !channel.is_active() && channel.begin_kernel_sleep() {
            self.channels.push((channel, false));
            return;
        }
        self.quiet &= channel.arm();
        self.channels.push((channel, true));
        if let Some(second) = channel.second() {
            self.quiet &= channel.arm_second(second);
            self.channels.push((second, true));
        }
    }
}

impl Drop for Asleep {
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
