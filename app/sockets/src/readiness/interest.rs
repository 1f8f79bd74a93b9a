//! The interest list of an epoll instance, and its ready list.
//!
//! The ready list is for events that the service (the process `tidelaned`) reports. The kernel has
//! its own ready list for its own events.

use std::os::fd::RawFd;

use tidelane_client::ClientEvent;

use super::registration::{EDGE, ONE_SHOT, Registration, Report};
use crate::socket::{Socket, sharing};

/// The interest list of an epoll instance: its registrations, and those of them that may be ready.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    /// The registrations. The index of a registration stays the same until its removal.
    registrations: Vec<Registration>,
    /// Indices of free entries of `registrations`.
    free: Vec<u32>,
    /// The ready list: indices of registrations that the next wait checks.
    ready: Vec<u32>,
    /// An empty list whose allocation the next wait reuses for the registrations that stay ready.
    spare: Vec<u32>,
    /// Events about new connections that were taken off the ring and not processed yet. The list is
    /// empty between two calls of `Instance::drain`, and is a field only to reuse its allocation.
    pub(crate) control_events: Vec<ClientEvent>,
    /// Sockets with new events that are registered with another epoll instance, perhaps besides
    /// this instance.
    pub(crate) other_registrations: Vec<&'static Socket>,
    /// True if sleeping threads must be woken, because a socket that a thread waits for has a new
    /// event, or because the service died.
    pub(crate) wake: bool,
    /// Number of descriptors that refer to this epoll instance.
    pub(crate) descriptors: u32,
    /// Counts the waits that found registrations in the ready list. Reset to 0 when one of these
    /// waits also polls the kernel's epoll instance.
    pub(crate) calls_without_kernel: u32,
    /// Counts the events of all registrations, modulo 2^32. An event counts even if its
    /// registration is already in the ready list.
    pub(crate) registration_events: u32,
    /// Counts how often a thread was about to sleep in a wait on this epoll instance, modulo 2^32.
    pub(crate) sleeps: u32,
    /// Time of the next trim, in nanoseconds of CLOCK_MONOTONIC. A trim frees the send buffers of
    /// idle connections.
    pub(crate) trim_at_ns: u64,
    /// Number of the last ended session whose end was reported, or 0. A session is a registration
    /// of this process with a service. The report puts all registered sockets into the ready list.
    pub(crate) reported_death: u32,
}

impl Interest {
    /// Registers `socket` under `fd`. Returns the index of the registration.
    pub(crate) fn add(
        &mut self,
        socket: &'static Socket,
        fd: RawFd,
        events: u32,
        data: u64,
    ) -> u32 {
        let registration = Registration {
            socket: Some(socket),
            fd,
            events,
            data,
            queued: false,
            disabled: false,
            report_without_edge: true,
            in_kernel_epoll: false,
            seen_received: 0,
            seen_bits: 0,
        };
        match self.free.pop() {
            Some(index) => {
                // If the ready list still contains the index of the reused entry, the index stays
                // there, and the next wait checks the new registration.
                let queued = self.registrations[index as usize].queued;
                self.registrations[index as usize] = Registration {
                    queued,
                    ..registration
                };
                index
            }
            None => {
                self.registrations.push(registration);
                self.registrations.len() as u32 - 1
            }
        }
    }

    /// Returns the registration at `index` if it still belongs to `socket`.
    pub(crate) fn find(
        &mut self,
        index: u32,
        socket: &'static Socket,
    ) -> Option<&mut Registration> {
        let registration = self.registrations.get_mut(index as usize)?;
        registration
            .socket
            .is_some_and(|other| std::ptr::eq(other, socket))
            .then_some(registration)
    }

    /// Removes a registration. Returns true if the kernel's epoll instance also has the
    /// registration.
    pub(crate) fn remove(&mut self, index: u32, socket: &'static Socket) -> bool {
        let Some(registration) = self.find(index, socket) else {
            return false;
        };
        let in_kernel_epoll = registration.in_kernel_epoll;
        registration.socket = None;
        self.free.push(index);
        in_kernel_epoll
    }

    /// Disables each one-shot registration that the kernel has reported in an event with the user
    /// data `data`. Several registrations may have the same user data, so `was_reported` gets
    /// the descriptor of a registration, and returns true if the kernel has reported this
    /// registration.
    pub(crate) fn disable_one_shots(&mut self, data: u64, was_reported: impl Fn(RawFd) -> bool) {
        for registration in &mut self.registrations {
            let once = registration.in_kernel_epoll
                && registration.events & ONE_SHOT != 0
                && registration.socket.is_some();
            if once
                && !registration.disabled
                && registration.data == data
                && was_reported(registration.fd)
            {
                registration.disabled = true;
            }
        }
    }

    /// Returns all registered sockets with the indices of their registrations.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (u32, &'static Socket)> {
        let with_index = self.registrations.iter().enumerate();
        with_index.filter_map(|(index, registration)| Some((index as u32, registration.socket?)))
    }

    /// Puts a registration into the ready list, so that the next wait checks it.
    #[inline]
    pub(crate) fn push_ready(&mut self, index: u32) {
        let Some(registration) = self.registrations.get_mut(index as usize) else {
            return;
        };
        if let Some(socket) = registration.socket {
            socket.note_event();
        }
        self.registration_events = self.registration_events.wrapping_add(1);
        if !registration.queued {
            registration.queued = true;
            self.ready.push(index);
        }
    }

    /// Puts a registration into the ready list, so that the next wait reports it even without a new
    /// edge.
    pub(crate) fn push_rearmed(&mut self, index: u32) {
        if let Some(registration) = self.registrations.get_mut(index as usize) {
            registration.report_without_edge = true;
        }
        self.push_ready(index);
    }

    /// Returns true if the next wait has to check a registration.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns true if a wait would report an event. Checks the ready list up to the first
    /// registration that a wait would report, and removes from the list the checked registrations
    /// that a wait would not report.
    pub(crate) fn has_due(&mut self) -> bool {
        let mut list = std::mem::take(&mut self.ready);
        let mut due = false;
        list.retain(|&index| {
            let registration = &mut self.registrations[index as usize];
            // Stop checking after the first registration that a wait would report.
            due || {
                due = registration.is_reported();
                registration.queued = due;
                due
            }
        });
        self.ready = list;
        due
    }

    /// Checks the registrations of the ready list in order, and calls `report` for each ready
    /// registration, at most `max` times. A reported registration with neither EPOLLET nor
    /// EPOLLONESHOT goes to the end of the list (round robin). Returns true if some registrations
    /// were not checked.
    #[inline(never)]
    pub(crate) fn take_ready(&mut self, mut report: impl FnMut(Report), max: usize) -> bool {
        let mut list = std::mem::take(&mut self.ready);
        let mut kept = std::mem::take(&mut self.spare);
        let mut reported = 0;
        let mut checked = 0;
        for &index in &list {
            if reported == max {
                break;
            }
            checked += 1;
            let registration = &mut self.registrations[index as usize];
            registration.queued = false;
            let Some(socket) = registration.socket else {
                continue;
            };
            if registration.disabled || registration.is_drained(socket) {
                continue;
            }
            let mut inner = socket.lock();
            if inner.shared {
                sharing::migrate_if_pending(socket, &mut inner);
            }
            let bits = registration.due(&mut inner);
            drop(inner);
            if bits == 0 {
                continue;
            }
            registration.disabled = registration.events & ONE_SHOT != 0;
            report(Report {
                bits,
                data: registration.data,
                fd: registration.fd,
                socket,
                disarm_kernel: registration.disabled && registration.in_kernel_epoll,
                in_kernel_epoll: registration.in_kernel_epoll,
            });
            reported += 1;
            if registration.events & (EDGE | ONE_SHOT) == 0 {
                registration.queued = true;
                kept.push(index);
            }
        }
        let left = checked < list.len();
        if left {
            list.drain(..checked);
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
