//! Parameters of a program and of its listening sockets.

use tidelane_time::Duration;

use crate::family::Bound;

/// Length of an area of stream buffers in bytes, enough for all connections of a run.
pub const AREA_LEN: u64 = 256 << 20;

/// Behaviour of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    /// The program follows the plans of its connections.
    Good,
    /// The program also writes random values to its shared memory.
    Bad {
        /// Mean time between two bursts of writes.
        every: Duration,
    },
}

/// Parameters of a program.
#[derive(Clone, Debug)]
pub struct ProgramSpec {
    /// Index of the program's host.
    pub host: usize,
    /// Number of the program's user.
    pub user: u32,
    /// Number of the program's threads.
    pub workers: u32,
    /// Longest delay from a doorbell to the run of its thread.
    pub wake_time_max: Duration,
    /// Behaviour of the program.
    pub behaviour: Behaviour,
    /// Length of each of the program's two areas of stream buffers, in bytes.
    pub area_len: u64,
}

/// Parameters of a listening socket.
#[derive(Clone, Debug)]
pub struct ListenerSpec {
    /// Port number of the listener.
    pub port: u16,
    /// Addresses to which the listener is bound.
    pub bound: Bound,
    /// Largest length of the accept queue.
    pub backlog: u32,
    /// Programs that hold the listener: several programs after a fork.
    pub programs: Vec<usize>,
    /// Longest time that a connection waits in the accept queue.
    pub accept_delay: Duration,
}
