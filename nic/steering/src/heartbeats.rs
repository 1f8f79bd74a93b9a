//! Heartbeats of the cores for the demux: see `docs/design/watchdog.md`.
//!
//! A core is a polling thread of the service. The demux is the XDP program that redirects frames to
//! the core's AF_XDP socket. The heartbeat of a core is the time of a recent step (round of the
//! core's loop). The core writes the heartbeat to memory that the demux reads before it redirects a
//! frame. A core that sleeps without a waiting frame needs no heartbeat.
//!
//! If a core's last heartbeat is older than 800 ms, the demux does not redirect the TCP packets for
//! which the kernel has a socket: SYNs for the kernel's listeners, and segments of the kernel's
//! connections. The kernel then receives these packets. After 30 s, the kernel receives all frames
//! of the core's queues, except later IP fragments (offset above 0) of the service's datagrams. The
//! mechanism also works while the service is stopped, or hangs in the kernel.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::shared_words_unsafe::SharedWords;

/// Number of receive queues that have a heartbeat. `QUEUES_MAX` of the eBPF program is equal.
const QUEUES_MAX: usize = 64;
/// Number of 64-bit words of `struct heartbeat`: the heartbeat, and the rest of its cache line.
const WORDS_PER_QUEUE: usize = 8;
/// Heartbeat of a sleeping core. The demux replaces this value by the arrival time of the next
/// frame for the service.
const ASLEEP: u64 = 1;
/// Heartbeat of each core after the service has decided to take no more frames. The demux treats
/// the core like a core whose heartbeat is older than 30 s.
const GIVEN_UP: u64 = 2;

/// The heartbeats of all queues.
#[derive(Debug)]
pub struct Heartbeats(SharedWords);

impl Heartbeats {
    /// Number of 64-bit words of all heartbeats.
    pub(crate) const LEN: usize = QUEUES_MAX * WORDS_PER_QUEUE;

    pub(crate) fn new(words: SharedWords) -> Self {
        Self(words)
    }

    /// Creates heartbeats without a demux, for tests of the code that writes heartbeats.
    pub fn without_demux() -> std::io::Result<Self> {
        SharedWords::private(Self::LEN).map(Self)
    }

    /// Returns the heartbeat of a queue's core. The demux does not watch the core before the first
    /// [`beat`](Heartbeat::beat) or [`sleep`](Heartbeat::sleep).
    pub fn of_queue(self: &Arc<Self>, queue: u32) -> Heartbeat {
        assert!((queue as usize) < QUEUES_MAX, "queue {queue}");
        Heartbeat {
            all: self.clone(),
            word: queue as usize * WORDS_PER_QUEUE,
        }
    }

    /// Stores `GIVEN_UP` for all queues, so that the demux leaves their frames to the kernel. The
    /// caller must end the service immediately, because the next heartbeat of a core would replace
    /// `GIVEN_UP`.
    pub fn give_up(&self) {
        for queue in 0..QUEUES_MAX {
            self.0
                .word(queue * WORDS_PER_QUEUE)
                .store(GIVEN_UP, Ordering::Release);
        }
    }
}

/// The heartbeat of one queue's core.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    all: Arc<Heartbeats>,
    /// Index of the queue's word in `all`.
    word: usize,
}

impl Heartbeat {
    /// Records a step of the core at `now_ns`, a time of CLOCK_MONOTONIC in nanoseconds.
    pub fn beat(&self, now_ns: u64) {
        self.word().store(now_ns, Ordering::Release);
    }

    /// Records that the core is about to wait for a frame.
    pub fn sleep(&self) {
        self.word().store(ASLEEP, Ordering::Release);
    }

    /// Returns true if the demux expects the next heartbeat of the core: the core is awake, or the
    /// demux has redirected a frame since the core went to sleep. Returns false for a core that
    /// sleeps without a frame, before the core's first heartbeat, and after
    /// [`give_up`](Heartbeats::give_up).
    pub fn is_awaited(&self) -> bool {
        self.word().load(Ordering::Acquire) > GIVEN_UP
    }

    fn word(&self) -> &AtomicU64 {
        self.all.0.word(self.word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_own_line() {
        let all = Arc::new(Heartbeats::without_demux().expect("memory"));
        let (one, last) = (all.of_queue(0), all.of_queue(63));
        assert!(!one.is_awaited(), "watched before the first heartbeat");
        one.beat(1_000_000_000);
        assert!(one.is_awaited());
        assert!(!last.is_awaited());
        one.sleep();
        assert!(!one.is_awaited());
        // `beat` stands in for the demux, which would write the arrival time of a frame.
        one.beat(2_000_000_000);
        assert!(one.is_awaited());
        all.give_up();
        assert!(!one.is_awaited());
        assert!(!last.is_awaited());
    }
}
