//! What a stack under test has to do: the only view that the runner has of one.

use crate::calls::Call;

/// Microseconds since the start of the script.
pub type Micros = u64;

/// A packet that the stack sent, from the IP header on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// When.
    pub at: Micros,
    /// What.
    pub bytes: Vec<u8>,
}

/// What a call gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its result, or the error number.
    pub result: Result<i64, i32>,
    /// What it wrote for the caller: bytes read, an option's value, events of `poll`.
    pub output: Vec<u8>,
}

impl Answer {
    /// A result without output.
    pub fn of(result: Result<i64, i32>) -> Self {
        Self {
            result,
            output: Vec::new(),
        }
    }
}

/// A call that is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// When it returned.
    pub at: Micros,
    /// With what.
    pub answer: Answer,
}

/// A TCP stack, its program and its wire.
pub trait Stack {
    /// The time.
    fn now(&self) -> Micros;

    /// How much later than it ought to something may be seen, for reasons that are not the stack's:
    /// zero in virtual time.
    fn slack(&self) -> Micros;

    /// Sets a sysctl below `net.ipv4`; what is wrong with it otherwise.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    /// Lets time pass.
    fn sleep_until(&mut self, at: Micros);

    /// The program makes a call. There is never more than one.
    fn start(&mut self, call: Call);

    /// The call, once it is over. Waits for that, if need be, until `by`.
    fn returned(&mut self, by: Micros) -> Option<Returned>;

    /// A packet arrives.
    fn inject(&mut self, packet: &[u8]);

    /// The next packet that leaves; waits for one, if need be, until `by`.
    fn next_packet(&mut self, by: Micros) -> Option<Sent>;
}
