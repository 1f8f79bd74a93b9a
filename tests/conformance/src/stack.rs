//! The interface between the runner of scripts ([`crate::run`]) and a stack under test.

use crate::{call_result::CallResult, calls::Call};

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

/// The end of a system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// Time of return.
    pub at: Micros,
    /// Result of the call.
    pub call_result: CallResult,
}

/// A stack under test, together with its clock, its network device, and the program that makes the
/// calls of the script.
pub trait Stack {
    /// Returns the present time.
    fn now(&self) -> Micros;

    /// Returns the time by which an event may be late although the stack works correctly. A stack
    /// in virtual time (with a simulated clock) returns zero.
    fn lateness_allowed(&self) -> Micros;

    /// Sets the sysctl `name` below `net.ipv4`. Fails with the reason if the stack refuses the
    /// setting.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    /// Waits until the time `at`. Timers of the stack run meanwhile.
    fn sleep_until(&mut self, at: Micros);

    /// Starts a call of the program. The previous call must have returned.
    fn start(&mut self, call: Call);

    /// Waits until the call returns, at most until `by`. Returns `None` if the call still blocks.
    fn returned(&mut self, by: Micros) -> Option<Returned>;

    /// Delivers a packet, from the IP header on, to the stack.
    fn inject(&mut self, packet: &[u8]);

    /// Waits for the next packet that the stack sends, at most until `by`. Returns `None` if the
    /// stack sends no packet until `by`.
    fn next_packet(&mut self, by: Micros) -> Option<Sent>;
}
