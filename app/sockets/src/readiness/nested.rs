//! Epoll instances within another one.
//!
//! The kernel's outer instance has the kernel's inner one, and so sees what the kernel's
//! descriptors in there do, and the inner lane's doorbell. The doorbell rings only if somebody
//! announced a sleep, and says nothing of what is ready. A wait in the outer instance therefore
//! announces its sleep to the lanes within, and looks there itself.

use std::os::fd::RawFd;

use libc::epoll_event;

use super::{
    instance::{Instance, Nested},
    watch::{EDGE, EXISTS, MISSING, ONE_SHOT},
};
use crate::{
    service::Lane,
    sys::{self, Errno, Few},
};

/// Linux nests no deeper.
const DEPTH_MAX: u32 = 5;
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// The result of a look into an instance.
#[derive(Clone, Copy)]
struct Look {
    ready: bool,
    news: u32,
}

impl Nested {
    /// Returns true if it is to be reported, as far as descriptors of ours are concerned.
    fn is_due(&self, look: Look) -> bool {
        let is_new = self.events & EDGE == 0 || self.fresh || self.seen != look.news;
        look.ready && is_new && self.events & IN != 0 && !self.disabled
    }
}

impl Instance {
    /// `epoll_ctl` on the instance `inner`, after the kernel did it.
    pub(crate) fn change_nested(
        &self,
        operation: i32,
        (inner, fd): (&'static Instance, RawFd),
        event: epoll_event,
    ) -> Result<(), Errno> {
        let mut nested = self.nested.lock();
        let at = nested
            .iter()
            .position(|n| n.fd == fd && std::ptr::eq(n.inner, inner));
        if operation == libc::EPOLL_CTL_DEL {
            nested.remove(at.ok_or(MISSING)?);
            return Ok(());
        }
        let new = Nested {
            inner,
            fd,
            events: event.events,
            data: event.u64,
            disabled: false,
            fresh: true,
            seen: 0,
        };
        match at {
            Some(at) if operation == libc::EPOLL_CTL_MOD => nested[at] = new,
            Some(_) => return Err(EXISTS),
            None => nested.push(new),
        }
        drop(nested);
        self.has_nested
            .store(true, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Returns true if other instances are, or were, within this one.
    #[inline]
    pub(crate) fn has_nested(&self) -> bool {
        self.has_nested.load(std::sync::atomic::Ordering::Acquire)
    }

    fn nested(&self) -> Vec<Nested> {
        self.nested.lock().clone()
    }

    /// The lanes of all instances within this one, with those beside them.
    pub(crate) fn lanes_within(&self) -> Few<&'static Lane> {
        let mut lanes = Few::new();
        self.add_lanes_within(&mut lanes, DEPTH_MAX);
        lanes
    }

    fn add_lanes_within(&self, lanes: &mut Few<&'static Lane>, depth: u32) {
        if depth == 0 || !self.has_nested() {
            return;
        }
        for nested in self.nested() {
            lanes.push(nested.inner.lane());
            nested.inner.add_lanes_within(lanes, depth - 1);
        }
    }

    /// Returns true if a wait on this instance would report a descriptor of ours, here or within.
    pub(crate) fn has_due_within(&self) -> bool {
        self.look(DEPTH_MAX).ready
    }

    /// Without what only the kernel knows of this instance's own descriptors.
    fn look(&self, depth: u32) -> Look {
        self.pump_beside();
        self.pump();
        let mut state = self.state();
        let mut look = Look {
            ready: state.has_due(),
            news: state.fresh_news,
        };
        drop(state);
        if depth > 0 && self.has_nested() {
            for nested in self.nested() {
                let within = nested.inner.look(depth - 1);
                look.ready |= within.ready && nested.events & IN != 0 && !nested.disabled;
                look.news = look.news.wrapping_add(within.news);
            }
        }
        look
    }

    /// Events of the instances within this one, into `events`; the first `count` are the kernel's,
    /// of which those are taken out that only a doorbell caused. Returns how many there are.
    pub(crate) fn nested_events(&self, events: &mut [epoll_event], mut count: usize) -> usize {
        for nested in self.nested() {
            if nested.disabled {
                continue;
            }
            let look = nested.inner.look(DEPTH_MAX);
            let from_kernel = events[..count]
                .iter()
                .position(|event| event.u64 == nested.data);
            if let Some(at) = from_kernel {
                if !look.ready && !nested.inner.is_ready_in_kernel() {
                    events.copy_within(at + 1..count, at);
                    count -= 1;
                } else {
                    self.note_reported(nested, look.news);
                }
                continue;
            }
            if nested.is_due(look) && count < events.len() {
                events[count] = epoll_event {
                    events: nested.events & IN,
                    u64: nested.data,
                };
                count += 1;
                self.note_reported(nested, look.news);
            }
        }
        count
    }

    /// Returns true if `nested_events` would add something.
    pub(crate) fn has_nested_events(&self) -> bool {
        let nested = self.nested();
        nested.iter().any(|n| n.is_due(n.inner.look(DEPTH_MAX)))
    }

    fn note_reported(&self, reported: Nested, news: u32) {
        let mut all = self.nested.lock();
        let mut same = all.iter_mut().filter(|n| n.fd == reported.fd);
        let Some(nested) = same.find(|n| std::ptr::eq(n.inner, reported.inner)) else {
            return;
        };
        nested.fresh = false;
        nested.seen = news;
        nested.disabled = nested.events & ONE_SHOT != 0;
        let disabled = nested.disabled;
        drop(all);
        if disabled {
            let none = epoll_event {
                events: 0,
                u64: reported.data,
            };
            let epfd = self.lane().epfd();
            let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reported.fd, Some(none));
        }
    }

    /// Returns true if the kernel's instance is ready for another reason than doorbells, of which
    /// the rings are taken away: nothing of ours is due.
    pub(crate) fn is_ready_in_kernel(&self) -> bool {
        let mut lanes = self.lanes_within();
        lanes.push(self.lane());
        for lane in lanes.iter() {
            lane.silence();
            if let Some(beside) = lane.beside() {
                beside.silence();
            }
        }
        let mut fds = [libc::pollfd {
            fd: self.lane().epfd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        sys::ppoll(&mut fds, Some(0), None).is_ok_and(|ready| ready > 0)
    }
}
