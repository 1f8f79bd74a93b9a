//! The clock of a context, and the wait for its port.

use std::{io, os::fd::AsFd, time};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use tidelane_engine::{Duration, Instant};

/// The clock of a context, and the wait for packets of its port. Tests have a virtual time.
pub trait TimeSource<P> {
    /// Returns the time of a clock that never goes back.
    fn now(&self) -> Instant;

    /// Waits until `port` has a packet, at most for `limit`. `None` means no limit. A wait may end
    /// early.
    ///
    /// # Errors
    ///
    /// An error means that the port cannot be used any more.
    fn wait(&mut self, port: &mut P, limit: Option<time::Duration>) -> io::Result<()>;
}

/// Returns the engine's time of the system's monotonic clock, from its first use in a value on.
#[derive(Clone, Copy, Debug)]
struct Monotonic(time::Instant);

impl Monotonic {
    fn new() -> Self {
        Self(time::Instant::now())
    }

    fn now(&self) -> Instant {
        // The engine's time starts after zero, which stands for no time in some of its fields.
        Instant::from_secs(1) + Duration::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// The system's clock, and poll(2) on the descriptor of the port.
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

/// The system's clock, and a wait by a function of the program.
#[derive(Clone, Copy, Debug)]
pub struct FnTime<W> {
    clock: Monotonic,
    wait: W,
}

impl<W> FnTime<W> {
    /// Returns a clock that starts now. `wait` is the function [`TimeSource::wait`].
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

/// Waits until `descriptor` is readable, at most for `limit`. A signal ends the wait.
///
/// # Errors
///
/// The errors are those of `poll`. A descriptor that has failed or hung up is an error, too.
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
