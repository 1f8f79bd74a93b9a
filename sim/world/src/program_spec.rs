//! Parameters of a program and of its listening sockets.

use tidelane_time::Duration;

use crate::family::Bound;

/// Capacity of an area of stream buffers in bytes, enough for all connections of a run.
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
    /// User id of the program.
    pub user: u32,
    /// Number of the program's threads.
    pub workers: u32,
    /// Longest delay from the ring of a thread's doorbell until the thread runs.
    pub wake_time_max: Duration,
    /// Behaviour of the program.
    pub behaviour: Behaviour,
    /// Capacity in bytes of each of the program's two areas of stream buffers (one area for
    /// received data, and one area for data to send).
    pub area_len: u64,
}

/// Parameters of a listening socket.
#[derive(Clone, Debug)]
pub struct ListenerSpec {
    /// Port number of the listener.
    pub port: u16,
    /// Addresses to which the listener is bound.
    pub bound: Bound,
    /// Backlog of the accept queue, as the program passes it to `listen`.
    pub backlog: u32,
    /// Indices of the programs that hold the listener. If there are several, they share the
    /// listener as processes do after a fork.
    pub programs: Vec<usize>,
    /// Time for which a program that uses the service leaves each connection in the accept queue.
    pub accept_delay: Duration,
}
