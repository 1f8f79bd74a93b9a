//! The registrations of one epoll instance, and which of them may be ready.

use std::os::fd::RawFd;

use tidelane_client::ClientEvent;

use super::watch::{EDGE, ONE_SHOT, Report, Watch};
use crate::socket::{Socket, sharing};

/// The registrations of one epoll instance and its ready list.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    watches: Vec<Watch>,
    free: Vec<u32>,
    ready: Vec<u32>,
    /// Empty; kept for its memory.
    spare: Vec<u32>,
    /// Events taken off the ring, not yet looked at. Empty between calls; kept for its memory.
    pub(crate) arrivals: Vec<ClientEvent>,
    /// Sockets with news that are registered elsewhere.
    pub(crate) foreign: Vec<&'static Socket>,
    /// A socket that some thread sleeps for has news.
    pub(crate) wake: bool,
    /// Descriptors that refer to this epoll instance.
    pub(crate) descriptors: u32,
    /// Calls since the kernel's epoll instance was looked at.
    pub(crate) calls_without_kernel: u32,
    /// Counts what came into the ready list.
    pub(crate) fresh_news: u32,
    /// Times that a thread was about to sleep here.
    pub(crate) sleeps: u32,
    /// When memory is looked after again.
    pub(crate) trim_at_ns: u64,
    /// The session whose end was told to all registered sockets, 0 if none.
    pub(crate) death_told: u32,
}

impl Interest {
    /// Registers `socket` under `fd`; it is looked at by the next wait.
    pub(crate) fn add(
        &mut self,
        socket: &'static Socket,
        fd: RawFd,
        events: u32,
        data: u64,
    ) -> u32 {
        let watch = Watch {
            socket: Some(socket),
            fd,
            events,
            data,
            queued: false,
            disabled: false,
            fresh: true,
            in_kernel: false,
            seen_received: 0,
            seen_bits: 0,
        };
        match self.free.pop() {
            Some(index) => {
                // A place that is still in the ready list stays there: its watch is looked at.
                let queued = self.watches[index as usize].queued;
                self.watches[index as usize] = Watch { queued, ..watch };
                index
            }
            None => {
                self.watches.push(watch);
                self.watches.len() as u32 - 1
            }
        }
    }

    /// The watch of `socket` under `fd`.
    pub(crate) fn find(&mut self, index: u32, socket: &'static Socket) -> Option<&mut Watch> {
        let watch = self.watches.get_mut(index as usize)?;
        watch
            .socket
            .is_some_and(|other| std::ptr::eq(other, socket))
            .then_some(watch)
    }

    /// Removes a registration. Returns whether the kernel has it too.
    pub(crate) fn remove(&mut self, index: u32, socket: &'static Socket) -> bool {
        let Some(watch) = self.find(index, socket) else {
            return false;
        };
        let in_kernel = watch.in_kernel;
        watch.socket = None;
        self.free.push(index);
        in_kernel
    }

    /// The kernel reported `data`: registrations with it that are the kernel's, too, and are to be
    /// reported once, are disabled, if `was_it` says so of their descriptor.
    pub(crate) fn disable_one_shots(&mut self, data: u64, was_it: impl Fn(RawFd) -> bool) {
        for watch in &mut self.watches {
            let once = watch.in_kernel && watch.events & ONE_SHOT != 0 && watch.socket.is_some();
            if once && !watch.disabled && watch.data == data && was_it(watch.fd) {
                watch.disabled = true;
            }
        }
    }

    /// All registered sockets with their descriptors.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (u32, &'static Socket)> {
        let with_index = self.watches.iter().enumerate();
        with_index.filter_map(|(index, watch)| Some((index as u32, watch.socket?)))
    }

    /// Puts a registration into the ready list: the next wait looks at it.
    #[inline]
    pub(crate) fn push_ready(&mut self, index: u32) {
        let Some(watch) = self.watches.get_mut(index as usize) else {
            return;
        };
        if let Some(socket) = watch.socket {
            socket.note_news();
        }
        self.fresh_news = self.fresh_news.wrapping_add(1);
        if !watch.queued {
            watch.queued = true;
            self.ready.push(index);
        }
    }

    /// As `push_ready`, and reports it even if nothing else changed.
    pub(crate) fn push_fresh(&mut self, index: u32) {
        if let Some(watch) = self.watches.get_mut(index as usize) {
            watch.fresh = true;
        }
        self.push_ready(index);
    }

    /// Whether a wait would have something to look at.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns true if a wait would report something. What it would not report leaves the list.
    pub(crate) fn has_due(&mut self) -> bool {
        let mut list = std::mem::take(&mut self.ready);
        let mut due = false;
        list.retain(|&index| {
            let watch = &mut self.watches[index as usize];
            // One that is due is enough.
            due || {
                due = watch.is_reported();
                watch.queued = due;
                due
            }
        });
        self.ready = list;
        due
    }

    /// Looks at each registration of the ready list once, until `max` are reported. Those that are
    /// level-triggered and ready go to the end of the list: round robin. Returns true if some were
    /// not looked at.
    #[inline(never)]
    pub(crate) fn harvest(&mut self, mut report: impl FnMut(Report), max: usize) -> bool {
        let mut list = std::mem::take(&mut self.ready);
        let mut kept = std::mem::take(&mut self.spare);
        let mut reported = 0;
        let mut looked = 0;
        for &index in &list {
            if reported == max {
                break;
            }
            looked += 1;
            let watch = &mut self.watches[index as usize];
            watch.queued = false;
            let Some(socket) = watch.socket else { continue };
            if watch.disabled || watch.is_drained(socket) {
                continue;
            }
            let mut inner = socket.lock();
            if inner.shared {
                sharing::bring_news(socket, &mut inner);
            }
            let bits = watch.due(&mut inner);
            drop(inner);
            if bits == 0 {
                continue;
            }
            watch.disabled = watch.events & ONE_SHOT != 0;
            report(Report {
                bits,
                data: watch.data,
                fd: watch.fd,
                socket,
                disarm_kernel: watch.disabled && watch.in_kernel,
                in_kernel: watch.in_kernel,
            });
            reported += 1;
            if watch.events & (EDGE | ONE_SHOT) == 0 {
                watch.queued = true;
                kept.push(index);
            }
        }
        let left = looked < list.len();
        if left {
            list.drain(..looked);
            list.append(&mut kept);
            self.ready = list;
            self.spare = kept;
        } else {
            list.clear();
            self.ready = kept;
            self.spare = list;
        }
        left
    }
}
