//! Waits of a context: polls the rings for a short time, then sleeps until a doorbell rings.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    thread::sched_getcpu,
    time::{ClockId, clock_gettime},
};
use tidelane_client::{Context, Program};

/// Limit of descriptors that one sleep reports.
const EVENTS_MAX: usize = 16;
/// Event data of the doorbell and of the registration socket. Listeners have lower numbers.
const DOORBELL: u64 = u64::MAX;
const CONTROL: u64 = u64::MAX - 1;

/// The descriptors on which a context sleeps.
#[derive(Debug)]
pub struct Sleeper {
    /// `None` in a simulation, which never sleeps.
    epoll: Option<OwnedFd>,
    spin: Duration,
    calls: u64,
}

/// Result of a sleep.
#[derive(Debug, Default)]
pub struct Woken {
    /// True if the service may have ended.
    pub has_hung_up: bool,
    /// Keys of listeners with connections that have come through the kernel.
    pub listeners: Vec<u64>,
}

impl Sleeper {
    /// Creates the sleeper of a context. The descriptors are edge-triggered, so that the doorbell
    /// need not be read.
    pub fn new(program: &Program, context: &Context, spin: Duration) -> io::Result<Self> {
        let (Some(doorbell), Some(control)) = (context.doorbell_fd(), program.control_fd()) else {
            return Ok(Self::in_memory());
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for (fd, key) in [(doorbell, DOORBELL), (control, CONTROL)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(key), flags)?;
        }
        Ok(Self {
            epoll: Some(epoll),
            spin,
            calls: 0,
        })
    }

    /// Creates the sleeper of a simulation.
    pub fn in_memory() -> Self {
        Self {
            epoll: None,
            spin: Duration::ZERO,
            calls: 0,
        }
    }

    /// Reports the arrival of connections through the kernel at a listener's socket. The socket is
    /// edge-triggered: connections that cannot be accepted do not end each sleep.
    pub fn watch(&self, socket: BorrowedFd<'_>, key: u32) -> io::Result<()> {
        if let Some(epoll) = &self.epoll {
            let data = epoll::EventData::new_u64(key.into());
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(epoll, socket, data, flags)?;
        }
        Ok(())
    }

    /// Returns true if the context can sleep.
    pub fn can_sleep(&self) -> bool {
        self.epoll.is_some()
    }

    /// Adds system calls to the count.
    pub fn count(&mut self, calls: u64) {
        self.calls += calls;
    }

    /// Returns the number of system calls.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Polls the rings for the time of a spin, at most up to `deadline`. Returns true if there is
    /// an event.
    pub fn spin(&self, context: &Context, deadline: Option<Duration>) -> bool {
        let cpu = sched_getcpu() as u32;
        if context.has_events() {
            return true;
        }
        if context.shares_cpu(Some(cpu)) || context.cores_sleep() {
            return false;
        }
        let end = now() + self.spin;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        while now() < end {
            for _ in 0..16 {
                if context.has_events() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Sleeps until an event, or up to `deadline`. Returns at once if events are pending.
    pub fn sleep(
        &mut self,
        context: &mut Context,
        deadline: Option<Duration>,
    ) -> io::Result<Woken> {
        context.set_cpu_hint(Some(sched_getcpu() as u32));
        if !context.prepare_to_sleep() {
            return self.look();
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(now()));
        let woken = self.wait(left);
        context.cancel_sleep();
        woken
    }

    /// Looks for the end of the service and for connections of the kernel, without a wait.
    pub fn look(&mut self) -> io::Result<Woken> {
        self.wait(Some(Duration::ZERO))
    }

    fn wait(&mut self, limit: Option<Duration>) -> io::Result<Woken> {
        let mut woken = Woken::default();
        let Some(epoll) = &self.epoll else {
            return Ok(woken);
        };
        // The longest time that the type has is no limit.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.calls += 1;
        match epoll::wait(
            epoll.as_fd(),
            rustix::buffer::spare_capacity(&mut events),
            limit.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            match event.data.u64() {
                DOORBELL => {}
                CONTROL => woken.has_hung_up = true,
                key => woken.listeners.push(key),
            }
        }
        Ok(woken)
    }
}

/// Returns the time of CLOCK_MONOTONIC, without a system call.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
