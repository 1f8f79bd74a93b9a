//! The channels of threads that wait in blocking calls (`recv`, `poll`, ...).
//!
//! A channel consists of rings and a doorbell that this process shares with the service (the
//! process `tidelaned`). In a program without epoll, sockets begin on the default channel. If
//! several threads slept there, each event would wake all of them. A thread therefore gets a
//! channel of its own when it waits for a socket while another thread sleeps on the socket's
//! channel, and keeps that channel until the thread ends. Programs with one thread for each
//! connection get one channel for each thread in this way. A program with one waiting thread needs
//! only the default channel.
//!
//! The number of these channels is limited ([`CHANNELS_MAX`]). Further threads share the channels
//! of other threads.

use std::sync::atomic::Ordering;

use super::{channel::Channel, channels};
use crate::sys::{self, Lock};

/// Largest number of channels for threads. Each channel has a context, that is, rings in shared
/// memory. The service limits the number of contexts of a user, and epoll instances need contexts,
/// too. In each step, a core of the service spends time on each context.
const CHANNELS_MAX: usize = 16;
/// Largest number of channels for which `of_this_thread` checks whether the channel's thread has
/// ended. Each check costs one system call.
const CHECKS_MAX: usize = 4;

/// The channels of threads, with the thread that each belongs to.
static OWNERS: Lock<Owners> = Lock::new(Owners {
    owners: Vec::new(),
    next: 0,
});

#[derive(Debug)]
struct Owners {
    owners: Vec<Owner>,
    /// Index of the channel that the last search for the channel of an ended thread checked last.
    /// The next search begins after this index.
    next: usize,
}

#[derive(Debug)]
struct Owner {
    /// Id of the thread that owns the channel. The threads that share the channel are not recorded.
    thread: i32,
    channel: &'static Channel,
}

impl Owners {
    /// Gives the channel of an ended thread to `thread`. If there are already [`CHANNELS_MAX`]
    /// channels, and the checked channels belong to living threads, `thread` shares one of these
    /// channels. Returns `None` if `thread` has to get another channel.
    fn reuse(&mut self, thread: i32) -> Option<&'static Channel> {
        let count = self.owners.len();
        for _ in 0..CHECKS_MAX.min(count) {
            self.next = (self.next + 1) % count;
            let owner = &mut self.owners[self.next];
            if owner.thread == thread || !sys::thread_exists(owner.thread) {
                owner.thread = thread;
                return Some(owner.channel);
            }
        }
        (count >= CHANNELS_MAX).then(|| self.owners[self.next].channel)
    }
}

/// Returns the own channel of the calling thread, which is about to wait for a socket whose events
/// arrive at `channel`. A thread without an own channel gets a channel if another thread sleeps on
/// `channel`. Otherwise, or if no channel is left, returns `None`.
pub(crate) fn of_this_thread(channel: &'static Channel) -> Option<&'static Channel> {
    let word = sys::channel_word();
    if let Some(number) = word.load(Ordering::Relaxed).checked_sub(1) {
        return channels::numbered(number);
    }
    if !channel.has_sleepers() {
        return None;
    }
    let own = assign()?;
    word.store(own.number() + 1, Ordering::Relaxed);
    Some(own)
}

/// Chooses a channel for the calling thread.
#[cold]
fn assign() -> Option<&'static Channel> {
    let thread = sys::thread_id();
    let reused = OWNERS.lock().reuse(thread);
    if reused.is_some() {
        return reused;
    }
    // The pool of channels has a lock of its own, so the lock of `OWNERS` must not be held here.
    let channel = channels::take_free()?;
    OWNERS.lock().owners.push(Owner { thread, channel });
    Some(channel)
}

/// Returns all channels of threads to the pool in a child after fork, and forgets the own channel
/// of the calling thread, which is the only thread of the child. The caller has reset the pool.
pub(crate) fn reset_after_fork() {
    OWNERS.unlock_after_fork();
    let owners = std::mem::take(&mut OWNERS.lock().owners);
    for owner in owners {
        channels::free(owner.channel);
    }
    sys::channel_word().store(0, Ordering::Relaxed);
}
