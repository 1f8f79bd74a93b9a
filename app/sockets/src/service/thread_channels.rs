//! The channels of threads that wait in blocking calls (`recv`, `poll`, ...).
//!
//! A channel consists of rings and a doorbell that this process shares with the service (the
//! process `tidelaned`). The default channel is the channel for sockets in no epoll instance. In a
//! program without epoll, sockets begin on the default channel. If several threads slept there,
//! each event would wake all of them. A thread therefore gets a channel of its own if another
//! thread already sleeps on the channel of the socket for which the thread waits. The thread keeps
//! its own channel until the thread ends. In this way, a program with one thread for each
//! connection gets one channel for each thread. A program with one waiting thread needs only the
//! default channel.
//!
//! The number of these channels is limited ([`CHANNELS_MAX`]). Further threads share the channels
//! of other threads.

use std::sync::atomic::Ordering;

use super::{channel::Channel, channels};
use crate::sys::{self, Lock};

/// Largest number of channels for threads. Each channel has a context, that is, rings in shared
/// memory. The service limits the number of contexts of a user, and epoll instances need contexts,
/// too. In addition, each context costs time in each step of a core (a polling thread of the
/// service).
const CHANNELS_MAX: usize = 16;
/// Largest number of channels that one call of `Owners::reuse` checks. A check finds out whether
/// the channel's thread has ended, and costs one system call.
const CHECKS_MAX: usize = 4;

/// The channels of threads, with the thread that each belongs to.
static OWNERS: Lock<Owners> = Lock::new(Owners {
    owners: Vec::new(),
    next: 0,
});

#[derive(Debug)]
struct Owners {
    owners: Vec<Owner>,
    /// Index in `owners` at which the previous search for the channel of an ended thread stopped.
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
    /// Looks for the channel of an ended thread, and gives the channel to `thread`. If the search
    /// finds none and there are already [`CHANNELS_MAX`] channels, returns one of the checked
    /// channels, which `thread` then shares. Otherwise returns `None`, and the caller takes a
    /// channel from the pool.
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
/// arrive at `channel`. If the thread has no channel of its own, and another thread sleeps on
/// `channel`, first assigns a channel to the calling thread. Returns `None` if the thread has no
/// channel and no other thread sleeps on `channel`, or if the process has no free channel.
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

/// Gives all channels of threads back to the pool in a child after fork, and clears the record of
/// the calling thread's own channel. The calling thread is the only thread of the child. The caller
/// has reset the pool.
pub(crate) fn reset_after_fork() {
    OWNERS.unlock_after_fork();
    let owners = std::mem::take(&mut OWNERS.lock().owners);
    for owner in owners {
        channels::free(owner.channel);
    }
    sys::channel_word().store(0, Ordering::Relaxed);
}
