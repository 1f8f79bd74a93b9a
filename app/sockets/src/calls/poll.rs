//! `poll` and `select` over accelerated sockets and kernel descriptors together.
//!
//! The service (the process `tidelaned`) carries the connections of accelerated sockets, and
//! reports their events over channels. A channel consists of rings and a doorbell, an eventfd that
//! wakes a sleeping thread. Each epoll instance has its own channel.
//!
//! A tracked socket is a TCP socket of the program that this crate may accelerate. A tracked
//! descriptor refers to a tracked socket or to an epoll instance.

use std::os::fd::RawFd;

use libc::pollfd;

use crate::{
    readiness::{
        Instance, instance,
        wait::{Deadline, Sleeper},
        wake,
    },
    service::channels,
    socket::{listening, registry, sharing, state::State},
    sys::{self, Errno, Handled, Section, SignalMask, TO_KERNEL},
};

/// Result of a wait whose deadline has passed.
const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
/// A `poll` of at most this many descriptors may move the events of its connections to the channel
/// of the calling thread. Moving costs one request to the service for each connection. With more
/// descriptors, the requests would slow down a program whose threads take turns in polling.
const MOVED_MAX: usize = 8;
/// Events that `poll` reports even if the program did not ask for them.
const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Returns true if one of the descriptors is a tracked socket, or an epoll instance that may have
/// events of accelerated sockets.
pub fn has_tracked(fds: &[pollfd]) -> bool {
    fds.iter().any(|entry| {
        registry::of(entry.fd).is_some() || instance::of(entry.fd).is_some_and(is_active)
    })
}

/// Returns true if the epoll instance, or an instance within it, may have events of accelerated
/// sockets.
fn is_active(instance: &'static Instance) -> bool {
    instance.channel().is_active() || instance.has_nested()
}

/// Carries out `poll`, `ppoll`, and `select`. For `select`, the caller has converted the descriptor
/// sets to `fds`. Returns `TO_KERNEL` if the kernel alone can report the events of all descriptors.
pub fn poll(fds: &mut [pollfd], timeout_ns: Option<u64>, mask: Option<SignalMask>) -> Handled {
    let _section = Section::enter();
    let deadline = match timeout_ns {
        Some(0) => Deadline::NOW,
        other => Deadline::after(other),
    };
    let mut kernel: Vec<pollfd> = fds.to_vec();
    for entry in &mut kernel {
        if has_no_kernel_events(entry.fd) {
            entry.fd = -1;
        }
    }
    let kernel_has_some = kernel.iter().any(|entry| entry.fd >= 0);
    if !kernel
        .iter()
        .zip(fds.iter())
        .any(|(k, f)| k.fd != f.fd || has_events_of_both_stacks(f.fd))
    {
        return TO_KERNEL;
    }
    request_connections(fds);
    let mut sleeper = Sleeper::new(deadline).with_mask(mask);
    let mut is_last_poll = false;
    loop {
        let mut count = 0;
        if kernel_has_some && let Err(error) = sys::ppoll(&mut kernel, Some(0), None) {
            return Some(Err(error));
        }
        for (entry, kernel) in fds.iter_mut().zip(&kernel) {
            let from_kernel = if kernel.fd >= 0 { kernel.revents } else { 0 };
            entry.revents = ready(entry);
            entry.revents |= without_doorbells(entry, from_kernel);
            count += usize::from(entry.revents != 0);
        }
        if count > 0 || is_last_poll {
            return Some(Ok(count));
        }
        if kernel_has_some {
            sleeper.watch_kernel_all(&kernel);
        }
        watch_all(&mut sleeper, fds);
        listening::seek_service();
        match sleeper.step() {
            Ok(()) => {}
            Err(WOULD_BLOCK) => is_last_poll = true,
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Returns true if the descriptor is a tracked socket for which the kernel has no events.
fn has_no_kernel_events(fd: RawFd) -> bool {
    let inner = registry::of(fd).and_then(|socket| socket.enter(fd));
    inner.is_some_and(|inner| !inner.state.is_in_kernel())
}

/// Returns true if the kernel and the service may both have events for the descriptor.
fn has_events_of_both_stacks(fd: RawFd) -> bool {
    if let Some(instance) = instance::of(fd) {
        return is_active(instance);
    }
    let inner = registry::of(fd).and_then(|socket| socket.enter(fd));
    inner.is_some_and(|inner| matches!(inner.state, State::Listening(_)))
}

/// Asks the service to deliver the connections of the listeners in `fds`, and processes the pending
/// events of the channels on which these connections arrive.
fn request_connections(fds: &[pollfd]) {
    for entry in fds {
        let Some(socket) = registry::of(entry.fd) else {
            continue;
        };
        let Some(mut inner) = socket.enter(entry.fd) else {
            continue;
        };
        let State::Listening(listening) = &inner.state else {
            continue;
        };
        if !listening.is_joined()
            && let Some(channel) = channels::default()
        {
            let before = listening::ensure_joined(socket, &mut inner, entry.fd, channel);
            wake::on_channel_joined(socket, &before);
        }
        let channels = inner.channels();
        drop(inner);
        for channel in channels.iter() {
            Instance::of(channel).pump();
        }
    }
}

/// Returns the service's events for the entry's descriptor: events that the entry asks for, and for
/// a socket also the events in [`ALWAYS`]. If several processes share the connection (after `fork`)
/// and the connection has pending events, first migrates the connection to this process.
fn ready(entry: &pollfd) -> i16 {
    if let Some(socket) = registry::of(entry.fd) {
        let Some(mut inner) = socket.enter_without_migration(entry.fd) else {
            return 0;
        };
        if inner.shared {
            sharing::migrate_if_pending(socket, &mut inner);
        }
        if matches!(inner.state, State::Fresh) {
            return 0;
        }
        return inner.readiness(entry.events as u32) as i16 & (entry.events | ALWAYS);
    }
    match instance::of(entry.fd) {
        Some(instance) if is_active(instance) => {
            let readable = if instance.has_due_within() {
                libc::POLLIN
            } else {
                0
            };
            readable & entry.events
        }
        _ => 0,
    }
}

/// Returns `from_kernel`, the kernel's events of the entry. If the entry is an epoll instance in
/// which only a doorbell is ready, returns 0 instead.
fn without_doorbells(entry: &pollfd, from_kernel: i16) -> i16 {
    match instance::of(entry.fd) {
        Some(instance)
            if from_kernel & libc::POLLIN != 0
                && entry.revents == 0
                && is_active(instance)
                && !instance.is_ready_in_kernel() =>
        {
            0
        }
        _ => from_kernel,
    }
}

/// Lets events of the tracked descriptors in `fds` end the sleep of `sleeper`.
fn watch_all(sleeper: &mut Sleeper, fds: &[pollfd]) {
    for entry in fds {
        if let Some(socket) = registry::of(entry.fd) {
            let Some(mut inner) = socket.enter_without_migration(entry.fd) else {
                continue;
            };
            if fds.len() <= MOVED_MAX {
                sleeper.watch_events(socket, &mut inner);
            } else {
                sleeper.watch(socket, inner.channels());
            }
        } else if let Some(instance) = instance::of(entry.fd)
            && is_active(instance)
        {
            let mut channels = instance.channels_within();
            channels.push(instance.channel());
            for channel in channels.iter() {
                sleeper.watch_channel(channel);
                if let Some(default) = channel.default_to_poll() {
                    sleeper.watch_channel(default);
                }
            }
        }
    }
}
