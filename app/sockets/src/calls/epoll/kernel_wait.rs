//! `epoll_wait` on an epoll instance whose channel has no context. A channel is the link of an
//! epoll instance to the service (the process `tidelaned`). A context consists of rings that this
//! process shares with the service, and of a doorbell (an eventfd by which the service wakes a
//! thread). The context is usually missing because no accelerated socket (whose connection the
//! service carries) was registered with the instance.

use libc::epoll_event;

use super::{collect, nest};
use crate::{
    readiness::{Instance, kernel_events::remove_internal, wait::Deadline, wake},
    service::{outage::BoundedSleep, outer_channels::Announcement},
    socket::listening,
    sys::{self, Handled, SignalMask},
};

/// Waits for the kernel's events while the channel has no context.
pub(super) fn wait(
    instance: &'static Instance,
    events: &mut [epoll_event],
    deadline: Deadline,
    mask: Option<&SignalMask>,
) -> Handled {
    let channel = instance.channel();
    // If the service has died, the ready list contains the connections that ended with the service.
    let count = collect(instance, events);
    if count > 0 {
        return Some(Ok(count));
    }
    loop {
        listening::seek_service();
        let (announcement, may_sleep) = Announcement::begin(|| channel.begin_kernel_sleep());
        if !may_sleep {
            return super::wait(instance, events, deadline.left_ns(), mask);
        }
        // An inner instance is an epoll instance that is registered with this instance. If an inner
        // instance is added from now on, the addition wakes this thread.
        if instance.has_nested() {
            announcement.end(channel.stale());
            channel.end_kernel_sleep();
            return Some(nest::wait(instance, events, deadline, mask));
        }
        let bound = BoundedSleep::begin();
        let left_ns = bound.limit(deadline.left_ns());
        let result = sys::epoll_wait(channel.epfd(), events, left_ns, mask);
        drop(bound);
        announcement.end(channel.stale());
        channel.end_kernel_sleep();
        let Ok(found) = result else {
            return Some(result);
        };
        let count = remove_internal(instance, events, 0, found);
        if count > 0 && count < found {
            wake::on_edge_consumed(instance);
        }
        if count > 0 || (found == 0 && deadline.passed()) {
            return Some(Ok(count));
        }
        if found > 0 {
            let count = collect(instance, events);
            if count > 0 {
                return Some(Ok(count));
            }
        }
    }
}
