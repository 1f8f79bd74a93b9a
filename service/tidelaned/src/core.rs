//! A core: a polling thread of the Tidelane service that drives a TCP/IP host over the queues of an
//! interface, and decides when to sleep.
//!
//! Programs may run on the CPU of a polling thread. The thread must not take CPU time from these
//! programs, and therefore spins in the idle scheduling class. A program that wakes up runs at
//! once, and the thread continues when the program sleeps, without any system call. In the idle
//! class, the thread sleeps when it has had no work for a while.
//!
//! The thread must not wait long behind a program, either. In the idle class, a program that
//! computes without end would starve the thread. A watchdog therefore moves a starved thread to the
//! real-time class for a period ([`crate::boost`]). If the thread uses its CPU for more than half
//! of this period, the thread moves to the normal class for the next period, and shares the CPU
//! with the programs. In both kinds of period, the thread does not spin: if the thread has no work,
//! it sleeps until the NIC, a program's doorbell (an eventfd), or a timer wakes it.
//!
//! The demux is the XDP program that redirects frames to the cores. A core's heartbeat is the time
//! of a recent step, which the core writes and the demux reads.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration as StdDuration,
};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use tidelane_host::Host;
use tidelane_ring::{ServicePageMap, sleep};
use tidelane_steering::{Heartbeat, Heartbeats};
use tidelane_time::{Duration, Instant};

use crate::{
    boost::{Boost, CpuWaits},
    clock::now,
    core_link::{Call, CoreLink, NicPort},
    cores::ring,
    sys::{self, Class},
    watchdog::{self, Pulse, StallClock, ThreadTime},
};

/// Interval at which the watchdog checks a core that is awake. The interval for a sleeping core is
/// 16 times as long.
const WATCH_INTERVAL: StdDuration = StdDuration::from_millis(4);
/// Largest number of successive checks without progress at which a core counts as starved. From the
/// next check on, the core counts as stuck in a system call.
const STALLS_STARVED: u32 = 2;
/// Maximum number of wake-up events that one system call returns. The core ignores the content of
/// the events.
const EVENTS_MAX: usize = 64;
/// Epoll flags of doorbells. Doorbells are edge-triggered because no thread reads their counters: a
/// level-triggered doorbell would stay readable after its first ring.
const EDGE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// Returns the CPU time of the calling thread.
fn used_cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// State that the core shares with the control thread and the watchdog.
struct CoreState {
    /// True if calls (closures from other threads) may wait in the channel of [`CoreHandle`].
    calls_pending: AtomicBool,
    /// True if the core and its watchdog have to end.
    stop: AtomicBool,
    /// False while the core sleeps in epoll.
    awake: AtomicBool,
    /// Time at which a sleeping core wakes up for a timer, in nanoseconds of the monotonic clock.
    /// `u64::MAX` without a timer.
    wakes_at: AtomicU64,
    /// Id of the core's thread. Zero until the thread runs.
    tid: AtomicI32,
    /// The CPU on which the core last ran. Has no meaning for a core that is pinned to a CPU.
    ran_on: AtomicUsize,
    /// Number of steps and calls that the core has made. The watchdog regards an increase as
    /// progress.
    steps: AtomicU64,
    /// Number of times that the watchdog moved the core to the real-time class, or to the normal
    /// class because the kernel refused the real-time class.
    boosts: AtomicU32,
    /// True while the core has to share its CPU in the normal class.
    shares_cpu: AtomicBool,
    /// The eventfd that wakes the core.
    bell: Arc<OwnedFd>,
}

impl CoreState {
    /// If the core does not have to share its CPU, moves the core's thread `tid` to the real-time
    /// class. If the kernel refuses this class, the thread gets the normal class.
    fn boost(&self, tid: i32) {
        let shares_cpu = self.shares_cpu.load(Ordering::Acquire);
        if !shares_cpu && sys::set_class(tid, Class::RealTime).is_ok() {
            self.boosts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The connection from the control thread to a core's thread, made by [`start`].
pub struct CoreHandle<P: NicPort> {
    /// The channel of the calls: closures that the core's thread runs on its host.
    calls: mpsc::Sender<Call<P>>,
    shared: Arc<CoreState>,
    /// The epoll instance in which the core sleeps.
    epoll: Arc<OwnedFd>,
    /// The CPU to which the core is pinned, or `None`.
    cpu: Option<usize>,
}

impl<P: NicPort> CoreLink<P> for CoreHandle<P> {
    fn send(&self, call: Call<P>) {
        if self.calls.send(call).is_ok() {
            self.shared.calls_pending.store(true, Ordering::Release);
            ring(&*self.shared.bell);
        }
    }

    fn watch(&self, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(1);
        Ok(epoll::add(&*self.epoll, doorbell, data, EDGE)?)
    }

    fn unwatch(&self, doorbell: BorrowedFd<'_>) {
        let _ = epoll::delete(&*self.epoll, doorbell);
    }

    fn is_beside(&self) -> bool {
        let ran_on = || self.shared.ran_on.load(Ordering::Relaxed);
        let cpu = self.cpu.unwrap_or_else(ran_on);
        self.shared.awake.load(Ordering::Relaxed) && cpu == rustix::thread::sched_getcpu()
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        ring(&*self.shared.bell);
    }

    fn boosts(&self) -> u32 {
        self.shared.boosts.load(Ordering::Relaxed)
    }
}

/// Parameters of a core's thread, for [`start`].
pub struct CoreConfig {
    /// Number of the core.
    pub number: u32,
    /// The CPU to which the core is pinned. `None` if the core may run on any CPU.
    pub cpu: Option<usize>,
    /// Time for which the core spins without work before it sleeps.
    pub spin: Duration,
    /// The page that shows to programs whether the core sleeps.
    pub page: Arc<ServicePageMap>,
    /// Descriptors that become readable when there is work: the queues' sockets.
    pub wake_fds: Vec<OwnedFd>,
    /// The eventfd by which other threads wake the core.
    pub bell: Arc<OwnedFd>,
    /// Wakes the control thread. The core calls this function when its host has requests for the
    /// control thread.
    pub notify_control: Box<dyn Fn() + Send>,
    /// The heartbeats of all cores, which the demux reads.
    pub heartbeats: Arc<Heartbeats>,
    /// Numbers of the NIC queues that this core serves.
    pub queues: Vec<u32>,
}

impl CoreConfig {
    /// Returns the heartbeat of each of the core's queues.
    fn queues(&self) -> impl Iterator<Item = Heartbeat> {
        self.queues
            .iter()
            .map(|queue| self.heartbeats.of_queue(*queue))
    }
}

/// The data that a core's watchdog needs to end the service if the core hangs.
struct Guard {
    /// Name of the core's thread.
    name: String,
    /// The heartbeats of all cores. If the core hangs, the watchdog stops all heartbeats, so that
    /// the demux leaves all frames to the kernel.
    all: Arc<Heartbeats>,
    /// The heartbeats of the core's own queues.
    queues: Vec<Heartbeat>,
}

/// Starts the thread that drives `host`, and the watchdog thread of this thread.
pub fn start<P: NicPort>(
    host: Host<P>,
    config: CoreConfig,
) -> io::Result<(CoreHandle<P>, std::thread::JoinHandle<()>)> {
    let (sender, receiver) = mpsc::channel();
    let shared = Arc::new(CoreState {
        calls_pending: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        awake: AtomicBool::new(false),
        wakes_at: AtomicU64::new(u64::MAX),
        tid: AtomicI32::new(0),
        ran_on: AtomicUsize::new(0),
        steps: AtomicU64::new(0),
        boosts: AtomicU32::new(0),
        shares_cpu: AtomicBool::new(false),
        bell: config.bell.clone(),
    });
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    let handle = CoreHandle {
        calls: sender,
        shared: shared.clone(),
        epoll: epoll.clone(),
        cpu: config.cpu,
    };
    for fd in config.wake_fds.iter().map(|fd| fd.as_fd()) {
        epoll::add(
            &*epoll,
            fd,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
    }
    epoll::add(&*epoll, &*shared.bell, epoll::EventData::new_u64(2), EDGE)?;
    let watched = shared.clone();
    let watched_epoll = epoll.clone();
    let name = format!("tdl-core-{}", config.number);
    let guard = Guard {
        name: name.clone(),
        all: config.heartbeats.clone(),
        queues: config.queues().collect(),
    };
    std::thread::Builder::new()
        .name("tdl-watchdog".into())
        .spawn(move || watch(&watched, &watched_epoll, &guard))?;
    let thread = std::thread::Builder::new()
        .name(name)
        .spawn(move || Core::new(host, config, receiver, shared, epoll).run())?;
    Ok((handle, thread))
}

/// Watches a core's progress until the core stops, and moves a starved core to the real-time class.
/// The watchdog itself is in this class so that its checks are not late.
///
/// If the core makes no step even after this move, the core may be stuck in a system call: a
/// program can make the core's write to the program's doorbell block (see
/// [`tidelane_ring::Doorbell`]). The watchdog then interrupts the call by a signal. If the core
/// still makes no step, the core hangs, and the watchdog ends the service.
fn watch(shared: &CoreState, epoll: &OwnedFd, guard: &Guard) {
    let mut last = u64::MAX;
    let mut stalls = 0;
    let mut last_check = now();
    let mut stall: Option<StallClock> = None;
    let mut waits_before = None;
    let _ = sys::set_class(0, Class::RealTime);
    while !shared.stop.load(Ordering::Acquire) {
        let asleep = !shared.awake.load(Ordering::Acquire);
        if asleep && guard.queues.iter().any(Heartbeat::is_awaited) {
            // The demux has redirected a frame to the sleeping core, and waits for the core's
            // heartbeat. If the frame was lost before it reached the core's socket, only the bell
            // can wake the core.
            ring(&*shared.bell);
        }
        let interval = WATCH_INTERVAL * if asleep { 16 } else { 1 };
        std::thread::park_timeout(interval);
        let steps = shared.steps.load(Ordering::Relaxed);
        let stalled = steps == last && has_reason_to_run(shared, epoll);
        stalls = if stalled { stalls + 1 } else { 0 };
        last = steps;
        let now = now();
        let spent = watchdog::answerable(std::mem::replace(&mut last_check, now), now, interval);
        let tid = shared.tid.load(Ordering::Relaxed);
        if tid == 0 {
            continue;
        }
        let starved = !asleep && has_waited(tid, &mut waits_before, spent);
        if stalls == 0 {
            stall = None;
            if starved {
                shared.boost(tid);
            }
            continue;
        }
        if stalls > STALLS_STARVED {
            sys::interrupt(tid);
            let silent = stall.get_or_insert_with(|| StallClock::of(tid)).grow(spent);
            if watchdog::is_hung(silent) {
                watchdog::give_up(&guard.all, &guard.name, silent);
            }
        } else {
            shared.boost(tid);
        }
    }
}

/// Returns true if the thread `tid` was starved (waited long for its CPU) in the `interval` since
/// the previous check. `before` has the thread's waits at the previous check, and gets the present
/// waits.
fn has_waited(tid: i32, before: &mut Option<CpuWaits>, interval: Duration) -> bool {
    let waits = ThreadTime::of(tid).ok().map(|time| time.waits);
    match (std::mem::replace(before, waits), waits) {
        (Some(before), Some(waits)) => waits.show_starvation(before, interval),
        _ => false,
    }
}

/// Returns true if the core is awake, was woken, or has a timer that is due. A woken core in the
/// idle class may wait for a long time behind busy programs before it sets `awake`.
fn has_reason_to_run(shared: &CoreState, epoll: &OwnedFd) -> bool {
    if shared.awake.load(Ordering::Acquire) || shared.wakes_at.load(Ordering::Acquire) <= now().0 {
        return true;
    }
    let mut fds = [PollFd::new(epoll, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&at_once)), Ok(1..))
}

/// The state of a core's thread.
struct Core<P: NicPort> {
    host: Host<P>,
    config: CoreConfig,
    calls: mpsc::Receiver<Call<P>>,
    shared: Arc<CoreState>,
    /// The epoll instance in which the core sleeps.
    epoll: Arc<OwnedFd>,
    /// The value of `CoreState::boosts` that this thread last read.
    boosts_seen: u32,
    /// The periods in the real-time class and the normal class.
    boost: Boost,
    /// The heartbeats of the core's queues.
    pulse: Pulse,
}

impl<P: NicPort> Core<P> {
    fn new(
        host: Host<P>,
        config: CoreConfig,
        calls: mpsc::Receiver<Call<P>>,
        shared: Arc<CoreState>,
        epoll: Arc<OwnedFd>,
    ) -> Self {
        let pulse = Pulse::new(config.queues().collect());
        Self {
            host,
            config,
            calls,
            shared,
            epoll,
            boosts_seen: 0,
            boost: Boost::default(),
            pulse,
        }
    }

    fn run(mut self) {
        if let Some(cpu) = self.config.cpu {
            if let Some(line) = self.config.page.core(self.config.number) {
                line.cpu.store(cpu as u32 + 1, Ordering::Relaxed);
            }
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                eprintln!("tidelaned: cannot run on CPU {cpu}: {error}; not pinned");
            }
        }
        self.shared.tid.store(sys::thread_id(), Ordering::Relaxed);
        let _ = sys::set_class(0, Class::Idle);
        self.shared.awake.store(true, Ordering::Release);
        let mut last_work = now();
        while !self.shared.stop.load(Ordering::Acquire) {
            let now = now();
            if self.config.cpu.is_none() {
                let here = rustix::thread::sched_getcpu();
                self.shared.ran_on.store(here, Ordering::Relaxed);
            }
            let worked = self.run_calls(now) | self.host.step(now);
            self.shared.steps.fetch_add(1, Ordering::Relaxed);
            self.pulse.beat(now);
            if self.host.has_requests() {
                (self.config.notify_control)();
            }
            let in_period = self.update_class(now);
            if worked {
                last_work = now;
                continue;
            }
            if in_period || now - last_work >= self.config.spin {
                self.sleep(now);
            } else {
                std::hint::spin_loop();
            }
        }
        self.host.shut_down(now());
    }

    /// Runs the waiting calls of other threads. Returns true if a call ran.
    fn run_calls(&mut self, now: Instant) -> bool {
        if !self.shared.calls_pending.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut ran = false;
        while let Ok(call) = self.calls.try_recv() {
            call(&mut self.host, now);
            ran = true;
            // A core with many calls may need long before its next step, so each call counts as
            // progress.
            self.shared.steps.fetch_add(1, Ordering::Relaxed);
            self.pulse.beat(self::now());
        }
        ran
    }

    /// If the watchdog has boosted this thread, begins a period (see [`Boost`]). If a period is
    /// over, changes the class of this thread. Returns true if the thread is in a period
    /// afterwards: the thread then has precedence over programs, or shares its CPU because it had
    /// precedence before.
    fn update_class(&mut self, now: Instant) -> bool {
        let boosts = self.shared.boosts.load(Ordering::Relaxed);
        if boosts != self.boosts_seen {
            self.boosts_seen = boosts;
            if !self.boost.is_in_period() {
                self.boost.begin(now, used_cpu());
            }
        } else if let Some(class) = self.boost.next_class(now, used_cpu) {
            let shares = class == Class::Normal;
            self.shared.shares_cpu.store(shares, Ordering::Release);
            let _ = sys::set_class(0, class);
        }
        self.boost.is_in_period()
    }

    /// Announces the sleep to programs on the service page, and checks for work once more. If there
    /// is no work, sleeps until an event or a timer.
    fn sleep(&mut self, now: Instant) {
        let page = self.config.page.clone();
        let Some(line) = page.core(self.config.number) else {
            return;
        };
        sleep::prepare_to_sleep(&line.needs_wakeup);
        self.shared.awake.store(false, Ordering::SeqCst);
        self.pulse.sleep();
        let pending = self.shared.calls_pending.load(Ordering::SeqCst);
        if !pending && !self.host.has_work() {
            self.wait(now);
        }
        self.shared.awake.store(true, Ordering::Release);
        sleep::cancel_sleep(&line.needs_wakeup);
    }

    /// Waits for a wake-up event, or until the host's next timer is due. In a period of precedence,
    /// the wait ends with the period, so that the thread does not sleep on in the real-time class.
    fn wait(&self, now: Instant) {
        let timers = [self.host.next_timeout(), self.boost.end()];
        let deadline = timers.into_iter().flatten().min();
        let wakes_at = deadline.map_or(u64::MAX, |at| at.0);
        self.shared.wakes_at.store(wakes_at, Ordering::Release);
        let timeout = deadline.map(|at| {
            let left = at - now;
            Timespec {
                tv_sec: (left.0 / 1_000_000_000) as i64,
                tv_nsec: (left.0 % 1_000_000_000) as _,
            }
        });
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let spare = rustix::buffer::spare_capacity(&mut events);
        let _ = epoll::wait(&*self.epoll, spare, timeout.as_ref());
    }
}

#[cfg(test)]
mod tests;
