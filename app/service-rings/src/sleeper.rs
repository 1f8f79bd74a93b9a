//! [`Sleeper`]: the waits of a context (the sockets of one thread). A wait polls the rings to which
//! the service (the process `tidelaned`) writes events. The wait then sleeps until the service
//! rings the doorbell (an eventfd), or until a kernel socket of the context has an event.

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

/// Limit of the epoll events that one sleep reports.
const EVENTS_MAX: usize = 16;
/// Event data of the doorbell in the epoll instance. Keys of kernel sockets are smaller numbers.
const DOORBELL: u64 = u64::MAX;
/// Event data of the socket over which the program has registered with the service.
const CONTROL: u64 = u64::MAX - 1;

/// The epoll instance on which a context sleeps.
#[derive(Debug)]
pub struct Sleeper {
    /// `None` in a simulation, which never sleeps.
    epoll: Option<OwnedFd>,
    /// Time for which a wait polls the rings before it sleeps.
    spin: Duration,
    /// Number of system calls of the context for data and waits, without the calls that ring a
    /// doorbell of the service.
    calls: u64,
}

/// Result of a sleep.
#[derive(Debug, Default)]
pub struct Woken {
    /// True if the registration socket had an event, so that the service may have ended.
    pub has_hung_up: bool,
    /// Keys (descriptor numbers) of the kernel sockets with events. These are listeners with
    /// connections that have come through the kernel, and UDP sockets.
    pub sockets: Vec<u64>,
}

impl Sleeper {
    /// Creates the epoll instance of a context. The instance watches the doorbell edge-triggered,
    /// so that no call has to read the doorbell.
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

    /// Returns the sleeper of a simulation, which never sleeps.
    pub fn in_memory() -> Self {
        Self {
            epoll: None,
            spin: Duration::ZERO,
            calls: 0,
        }
    }

    /// Adds a listener's kernel socket, to report its connections. The instance watches the socket
    /// edge-triggered, so that connections that cannot be accepted do not end every sleep.
    pub fn watch(&self, socket: BorrowedFd<'_>, key: u32) -> io::Result<()> {
        self.add(socket, key, epoll::EventFlags::IN)
    }

    /// Adds a UDP socket, to report the arrival of datagrams and room for further datagrams. The
    /// instance watches the socket edge-triggered.
    pub fn watch_datagrams(&self, socket: BorrowedFd<'_>, key: u32) -> io::Result<()> {
        self.add(socket, key, epoll::EventFlags::IN | epoll::EventFlags::OUT)
    }

    fn add(&self, socket: BorrowedFd<'_>, key: u32, flags: epoll::EventFlags) -> io::Result<()> {
        if let Some(epoll) = &self.epoll {
            let data = epoll::EventData::new_u64(key.into());
            epoll::add(epoll, socket, data, flags | epoll::EventFlags::ET)?;
        }
        Ok(())
    }

    /// Returns true if the context can sleep.
    pub fn can_sleep(&self) -> bool {
        self.epoll.is_some()
    }

    /// Adds `calls` to the number that [`Self::calls`] returns.
    pub fn count(&mut self, calls: u64) {
        self.calls += calls;
    }

    /// Returns the number of system calls for data and waits.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Polls the rings for the spin time, until `deadline` at most. Looks only once if a core (a
    /// polling thread of the service) may run on the same CPU, or if all cores sleep. Returns true
    /// if an event has arrived.
    pub fn spin(&self, context: &Context, deadline: Option<Duration>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_sub(now()));
        context.poll_for(left.map_or(self.spin, |left| left.min(self.spin)))
    }

    /// Sleeps until an event arrives, or until `deadline`. Does not sleep if events are pending, if
    /// a request ring is full, or if the service is gone.
    pub fn sleep(
        &mut self,
        context: &mut Context,
        deadline: Option<Duration>,
    ) -> io::Result<Woken> {
        context.set_cpu_hint(Some(sched_getcpu() as u32));
        if !context.prepare_to_sleep() {
            return self.poll_now();
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(now()));
        let woken = self.wait(left);
        context.cancel_sleep();
        woken
    }

    /// Checks for the end of the service and for events of kernel sockets, without waiting.
    pub fn poll_now(&mut self) -> io::Result<Woken> {
        self.wait(Some(Duration::ZERO))
    }

    fn wait(&mut self, limit: Option<Duration>) -> io::Result<Woken> {
        let mut woken = Woken::default();
        let Some(epoll) = &self.epoll else {
            return Ok(woken);
        };
        // A limit too long for a `Timespec` means no limit.
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
                key => woken.sockets.push(key),
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
