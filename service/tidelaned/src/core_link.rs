//! The control thread's access to a core, which is a polling thread that drives one TCP/IP host.

use std::{io, os::fd::BorrowedFd};

use tidelane_host::Host;
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

/// A packet interface, such as the AF_XDP socket of a NIC queue, that a core's thread can own.
pub trait NicPort: PacketIo<Burst: Send> + Send + 'static {}

impl<P: PacketIo<Burst: Send> + Send + 'static> NicPort for P {}

/// A closure that the core's thread runs on its host between two calls of `Host::step`.
pub type Call<P> = Box<dyn FnOnce(&mut Host<P>, Instant) + Send>;

/// The control thread's access to a core. [`CoreHandle`](crate::core::CoreHandle) implements this
/// trait for a core with a thread of its own. A test may run the calls on a host that the test
/// drives.
pub trait CoreLink<P: NicPort>: Send + Sync {
    /// Runs `call` on the core, between two steps. Returns without waiting for the call.
    fn send(&self, call: Call<P>);

    /// Makes the core wake up when a program rings `doorbell`.
    fn watch(&self, doorbell: BorrowedFd<'_>) -> io::Result<()>;

    /// Reverts [`watch`](Self::watch).
    fn unwatch(&self, doorbell: BorrowedFd<'_>);

    /// Returns true if the core is awake and the CPU on which it last ran is the calling thread's
    /// CPU.
    fn is_beside(&self) -> bool;

    /// Makes the core stop after its current step.
    fn stop(&self);

    /// Returns the number of times that the watchdog moved the starved core to the real-time class.
    fn boosts(&self) -> u32;
}
