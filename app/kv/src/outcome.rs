//! [`Outcome`]: the server's next step after the line of a client's command.

use crate::{
    get::Get,
    receive::{Receiving, Refused},
    store::Reader,
};

/// The server's next step after it has read the line of a client's command.
#[derive(Debug)]
pub enum Outcome {
    /// The command is complete. The answer, if the client wants one, is written.
    Done,
    /// The server next looks up the keys of a `get`. The keys start at this byte offset in the
    /// line.
    Keys(Get, usize),
    /// The value of an item follows the line.
    Receive(Box<Receiving>),
    /// A block of this length in bytes follows the line and is skipped.
    Swallow(u64),
    /// The answer continues with a value that does not fit into the output.
    Value(Reader),
    /// The connection is to be closed.
    Close,
}

impl Outcome {
    /// Returns the outcome of a store command, from the result of
    /// [`receive::start`](crate::receive::start).
    pub fn of_store(started: Result<Box<Receiving>, Refused>) -> Self {
        match started {
            Ok(receiving) => Self::Receive(receiving),
            Err(refused) => Self::Swallow(refused.to_skip),
        }
    }
}
