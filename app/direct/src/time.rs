//! [`TimeSource`]: the clock of a context, and the wait for packets on its port (its packet
//! interface).

use std::{io, os::fd::AsFd, time};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tidelane_engine::{Duration, Instant};

/// A clock, and the wait for packets on a port. Tests implement virtual time.
pub trait TimeSource<P> {
    /// Returns the time of a monotonic clock.
    fn now(&self) -> Instant;

    /// Waits until `port` has a packet, for at most `limit`. `None` means no limit. The wait may
    /// end early.
    ///
    /// # Errors
    ///
    /// An error means that the port has failed.
    fn wait(&mut self, port: &mut P, limit: Option<time::Duration>) -> io::Result<()>;
}

/// The system's monotonic clock as the engine's time. The engine's time is one second when this
/// value is created.
#[derive(Clone, Copy, Debug)]
struct Monotonic(time::Instant);

impl Monotonic {
    fn new() -> Self {
        Self(time::Instant::now())
    }

    fn now(&self) -> Instant {
        // Some fields of the engine use zero for "no time", so the time starts after zero.
        Instant::from_secs(1) + Duration::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// The system's monotonic clock. Waits for packets with poll(2) on the descriptor of the port.
#[derive(Clone, Copy, Debug)]
pub struct PollTime(Monotonic);

impl PollTime {
    /// Returns a clock that starts now.
    #[expect(clippy::new_without_default, reason = "the value depends on the time")]
    pub fn new() -> Self {
        Self(Monotonic::new())
    }
}

impl<P: AsFd> TimeSource<P> for PollTime {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wait(&mut self, port: &mut P, limit: Option<time::Duration>) -> io::Result<()> {
        poll_descriptor(port, limit)
    }
}

/// The system's monotonic clock. Waits for packets with a function of the program.
#[derive(Clone, Copy, Debug)]
pub struct FnTime<W> {
    clock: Monotonic,
    wait: W,
}

impl<W> FnTime<W> {
    /// Returns a clock that starts now. `wait` implements [`TimeSource::wait`].
    pub fn new(wait: W) -> Self {
        let clock = Monotonic::new();
        Self { clock, wait }
    }
}

impl<P, W> TimeSource<P> for FnTime<W>
where
    W: FnMut(&mut P, Option<time::Duration>) -> io::Result<()>,
{
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn wait(&mut self, port: &mut P, limit: Option<time::Duration>) -> io::Result<()> {
        (self.wait)(port, limit)
    }
}

/// Waits until `descriptor` is readable, for at most `limit`. A signal ends the wait early.
///
/// # Errors
///
/// The errors of `poll`, and `NotConnected` if the descriptor has hung up or is not open.
pub fn poll_descriptor(descriptor: &impl AsFd, limit: Option<time::Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_gone = PollFlags::HUP.union(PollFlags::NVAL);
    match fds[0].revents().intersects(is_gone) {
        true => Err(io::ErrorKind::NotConnected.into()),
        false => Ok(()),
    }
}
