//! Watchdogs: threads that each watch another thread of the Tidelane service. The watchdog of the
//! control thread is here. The watchdog of a core (a polling thread) is in [`crate::core`], and
//! uses the types and functions of this module.
//!
//! A thread hangs if it has work, makes no progress, and does not just wait for a CPU: the thread
//! loops, or one of its calls does not return. No other thread can do the work of the hanging
//! thread, so the service leaves all frames to the kernel and ends. If the whole process is
//! stopped, its watchdogs are stopped, too. The demux (the service's XDP program) detects a stopped
//! process: see [`tidelane_steering::Heartbeats`] and `docs/design/watchdog.md`.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration as StdDuration,
};

use tidelane_steering::{Heartbeat, Heartbeats};
use tidelane_time::{Duration, Instant};

use crate::{boost::CpuWaits, clock, sys};

/// Time without progress after which a core with work counts as hanging.
const CORE_HUNG: Duration = Duration::from_millis(500);
/// Time without progress after which the control thread counts as hanging. The time is long,
/// because the control thread may wait for the cores and the kernel.
const CONTROL_HUNG: Duration = Duration::from_millis(30_000);
/// Interval of checks of the control thread.
const CONTROL_INTERVAL: StdDuration = StdDuration::from_secs(1);
/// Shortest interval between two writes of a core's heartbeat. Rare writes keep the heartbeat's
/// cache line in the cache of the CPU that runs the demux.
const BEAT_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of intervals that the watchdog counts at one check. If more time has passed, the
/// watchdog itself had to wait for a CPU, and does not know how the watched thread has spent the
/// time.
const LATE_MAX: u32 = 2;

/// The heartbeats of one core, one for each of the core's NIC queues. A heartbeat is the time of a
/// recent step (a round of the core's loop, or a call for another thread). The core writes the
/// heartbeat, and the demux reads it. The demux leaves the frames of a queue to the kernel when the
/// heartbeat of the queue is too old.
pub struct Pulse {
    queues: Vec<Heartbeat>,
    /// Time of the last written heartbeat. `None` before the first heartbeat and during a sleep.
    last: Option<Instant>,
}

impl Pulse {
    /// Makes the heartbeats of a core with these queues.
    pub fn new(queues: Vec<Heartbeat>) -> Self {
        Self { queues, last: None }
    }

    /// Records a step of the core. Writes the heartbeats if the last written heartbeat is at least
    /// `BEAT_INTERVAL` old.
    pub fn beat(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now - last < BEAT_INTERVAL) {
            return;
        }
        self.last = Some(now);
        for queue in &self.queues {
            queue.beat(now.0);
        }
    }

    /// Announces that the core sleeps until a frame or another event wakes it.
    pub fn sleep(&mut self) {
        self.last = None;
        for queue in &self.queues {
            queue.sleep();
        }
    }
}

/// The time during which a thread has made no progress although it did not wait for a CPU.
pub struct StallClock {
    /// Id of the thread.
    thread: i32,
    /// Time without progress, excluding the time in which the thread waited for a CPU.
    silent: Duration,
    /// CPU time of the thread at the previous check, in nanoseconds.
    ran_ns: u64,
}

impl StallClock {
    /// Begins to watch `thread`, with a `silent` time of zero.
    pub fn of(thread: i32) -> Self {
        Self {
            thread,
            silent: Duration(0),
            ran_ns: ThreadTime::of(thread).map_or(0, |time| time.ran_ns),
        }
    }

    /// Adds an `interval` without progress. Does not add the interval if the thread is runnable but
    /// has run for less than half of the interval: the thread then waited for a CPU. Returns the
    /// sum of the added intervals.
    pub fn grow(&mut self, interval: Duration) -> Duration {
        let time = ThreadTime::of(self.thread);
        let starved = time.as_ref().is_ok_and(|time| {
            let ran = time.ran_ns.saturating_sub(self.ran_ns);
            time.is_runnable && ran < interval.0 / 2
        });
        if let Ok(time) = time {
            self.ran_ns = time.ran_ns;
        }
        if !starved {
            self.silent += interval;
        }
        self.silent
    }
}

/// The scheduler's data about a thread of this process.
#[derive(Debug)]
pub struct ThreadTime {
    /// CPU time of the thread in nanoseconds.
    ran_ns: u64,
    /// Completed waits for a CPU.
    pub waits: CpuWaits,
    /// True if the thread runs or waits for a CPU.
    is_runnable: bool,
}

impl ThreadTime {
    /// Reads the data of `thread`.
    pub fn of(thread: i32) -> io::Result<Self> {
        let of_thread = |name| fs::read_to_string(format!("/proc/self/task/{thread}/{name}"));
        let (times, stat) = (of_thread("schedstat")?, of_thread("stat")?);
        Self::parse(&times, &stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the text of `schedstat` (`times`) and the text of `stat`. `schedstat` has three
    /// numbers: the CPU time of the thread, the time of its waits for a CPU, and the number of
    /// times that the thread got a CPU. In `stat`, the state follows the name in parentheses.
    fn parse(times: &str, stat: &str) -> Option<Self> {
        let state = stat.rsplit_once(')')?.1.split_whitespace().next()?;
        let mut times = times.split_whitespace().map(str::parse);
        let mut next = || times.next()?.ok();
        Some(Self {
            ran_ns: next()?,
            waits: CpuWaits {
                time: Duration(next()?),
                count: next()?,
            },
            is_runnable: state == "R",
        })
    }
}

/// Returns the part of the time from check `since` to check `now` that the watchdog counts: at most
/// `LATE_MAX` intervals.
pub fn answerable(since: Instant, now: Instant, interval: StdDuration) -> Duration {
    let most = Duration((interval * LATE_MAX).as_nanos() as u64);
    (now - since).min(most)
}

/// Returns true if a core that made no progress for `silent` counts as hanging.
pub fn is_hung(silent: Duration) -> bool {
    silent >= CORE_HUNG
}

/// Leaves all frames to the kernel and ends the service. `who` is the name of the hanging thread,
/// and `silent` is its time without progress.
pub fn give_up(heartbeats: &Heartbeats, who: &str, silent: Duration) -> ! {
    heartbeats.give_up();
    let ms = silent.0 / 1_000_000;
    let line = format!(
        "tidelaned: {who} has made no progress for {ms} ms; the kernel gets all packets, and the \
         service ends\n"
    );
    // Write to the descriptor directly, because the hanging thread may hold the lock of the
    // standard library's stderr.
    let _ = rustix::io::write(io::stderr(), line.as_bytes());
    std::process::abort();
}

/// The control thread's progress, for its watchdog.
#[derive(Debug, Default)]
pub struct Progress {
    /// Start of the work on the control thread's current event, in nanoseconds of the monotonic
    /// clock. Zero while the thread waits for events.
    busy_since: AtomicU64,
    /// Id of the control thread. Zero before the work on its first event.
    thread: std::sync::atomic::AtomicI32,
}

impl Progress {
    /// Marks the start of the work on an event, by the calling thread.
    pub fn begin(&self) {
        self.thread.store(sys::thread_id(), Ordering::Relaxed);
        self.busy_since.store(clock::now().0, Ordering::Release);
    }

    /// Marks the end of the work, before the thread waits for further events.
    pub fn end(&self) {
        self.busy_since.store(0, Ordering::Release);
    }
}

/// Starts the watchdog of the control thread.
pub fn watch_control(progress: Arc<Progress>, heartbeats: Arc<Heartbeats>) -> io::Result<()> {
    let watch = move || {
        let mut stall: Option<(u64, StallClock)> = None;
        let mut last_check = clock::now();
        loop {
            std::thread::sleep(CONTROL_INTERVAL);
            let now = clock::now();
            let interval = answerable(last_check, now, CONTROL_INTERVAL);
            last_check = now;
            let since = progress.busy_since.load(Ordering::Acquire);
            stall = stall.filter(|(known, _)| *known == since);
            if since == 0 {
                continue;
            }
            let thread = progress.thread.load(Ordering::Relaxed);
            let (_, known) = stall.get_or_insert_with(|| (since, StallClock::of(thread)));
            let silent = known.grow(interval);
            if silent >= CONTROL_HUNG {
                give_up(&heartbeats, "the control thread", silent);
            }
        }
    };
    let thread = std::thread::Builder::new().name("tdl-watchdog".to_owned());
    thread.spawn(watch).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_times_are_found_after_any_thread_name() {
        let stat = "7 (a) R (b)) S 1 7 7 0";
        let time = ThreadTime::parse("123456789 42 7\n", stat).expect("a time");
        assert_eq!((time.ran_ns, time.is_runnable), (123_456_789, false));
        let waits = CpuWaits {
            time: Duration(42),
            count: 7,
        };
        assert_eq!(time.waits, waits);
        assert!(
            ThreadTime::parse("1 2 3", "7 (core) R 1")
                .expect("a time")
                .is_runnable
        );
        for (times, stat) in [
            ("", stat),
            ("x 1 2", stat),
            ("1 2", stat),
            ("1 2 3", "7 core"),
            ("1 2 3", "7 (core)"),
        ] {
            assert!(ThreadTime::parse(times, stat).is_none(), "{times} {stat}");
        }
    }

    #[test]
    fn a_blocked_or_looping_thread_hangs_but_a_starved_thread_does_not() {
        let interval = StdDuration::from_millis(20);
        let spent = Duration(interval.as_nanos() as u64);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (circles, waits) = (sender.clone(), sender);
        std::thread::spawn(move || {
            circles.send(sys::thread_id()).expect("a listener");
            loop {
                std::hint::spin_loop();
            }
        });
        let circling = receiver.recv().expect("a thread");
        std::thread::spawn(move || {
            waits.send(sys::thread_id()).expect("a listener");
            std::thread::sleep(StdDuration::from_secs(3600));
        });
        let waiting = receiver.recv().expect("a thread");
        // On a busy machine, the thread waits for a CPU before it sleeps.
        while ThreadTime::of(waiting).is_ok_and(|time| time.is_runnable) {
            std::thread::sleep(interval);
        }
        let mut waiting = StallClock::of(waiting);
        std::thread::sleep(interval);
        for checks in 1..=3 {
            assert_eq!(waiting.grow(spent), Duration(spent.0 * checks));
        }
        // Even on a busy machine, the looping thread runs for half of an interval at some time.
        let mut circling = StallClock::of(circling);
        let mut silent = Duration(0);
        for _ in 0..1000 {
            std::thread::sleep(interval);
            silent = circling.grow(spent);
            if silent > Duration(0) {
                break;
            }
        }
        assert!(silent > Duration(0));
        // The thread cannot have run for half of the interval of one hour, so the thread counts as
        // waiting for a CPU.
        let before = circling.grow(Duration(0));
        assert_eq!(circling.grow(Duration(3_600_000_000_000)), before);
    }

    #[test]
    fn a_late_watchdog_counts_at_most_two_intervals_of_silence() {
        let interval = StdDuration::from_millis(4);
        let from = Instant(1_000_000_000);
        let after = |ms: u64| Instant(from.0 + ms * 1_000_000);
        assert_eq!(
            answerable(from, after(5), interval),
            Duration::from_millis(5)
        );
        assert_eq!(
            answerable(from, after(5000), interval),
            Duration::from_millis(8)
        );
    }
}
