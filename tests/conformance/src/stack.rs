//! The interface between the runner and a stack under test.

use crate::calls::Call;

/// Microseconds since the start of the script.
pub type Micros = u64;

/// A packet that the stack sent, from the IP header on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Time of sending.
    pub at: Micros,
    /// Bytes of the packet.
    pub bytes: Vec<u8>,
}

/// The answer of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Return value, or the error number.
    pub result: Result<i64, i32>,
    /// Output for the caller: received bytes, the value of an option, events of `poll`.
    pub output: Vec<u8>,
}

impl Answer {
    /// Returns an answer without output.
    pub fn of(result: Result<i64, i32>) -> Self {
        Self {
            result,
            output: Vec::new(),
        }
    }
}

/// A finished call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// Time of return.
    pub at: Micros,
    /// Answer of the call.
    pub answer: Answer,
}

/// A TCP stack, its program and its wire.
pub trait Stack {
    /// Returns the time.
    fn now(&self) -> Micros;

    /// Returns the lateness of an event that is not the stack's fault: zero in virtual time.
    fn slack(&self) -> Micros;

    /// Sets a sysctl below `net.ipv4`. The error says why it is refused.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    /// Lets time pass until `at`.
    fn sleep_until(&mut self, at: Micros);

    /// Starts a call of the program. At most one call is under way.
    fn start(&mut self, call: Call);

    /// Waits for the end of the call until `by`. `None` if it still blocks.
    fn returned(&mut self, by: Micros) -> Option<Returned>;

    /// Lets a packet arrive.
    fn inject(&mut self, packet: &[u8]);

    /// Waits for the next sent packet until `by`. `None` if there is none.
    fn next_packet(&mut self, by: Micros) -> Option<Sent>;
}
