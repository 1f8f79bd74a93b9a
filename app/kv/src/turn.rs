//! A turn of a client: the work that a session does before other clients are served.

use crate::{clock::Second, kv::Kv, output::Output};

/// Bytes that cost as much as a command.
const BYTES_PER_UNIT: usize = 1024;

/// A turn.
pub struct Turn<'a, O> {
    pub kv: &'a mut Kv,
    pub now: Second,
    pub out: &'a mut O,
    /// Units of work that are left. A command and a key cost one unit.
    pub budget: usize,
}

impl<O: Output> Turn<'_, O> {
    /// Counts units of work.
    pub fn spend(&mut self, units: usize) {
        self.budget = self.budget.saturating_sub(units);
    }

    /// Counts the work for this number of bytes.
    pub fn spend_bytes(&mut self, bytes: usize) {
        self.spend(bytes / BYTES_PER_UNIT);
    }

    /// Answers a command, unless the client wants no answer.
    pub fn answer(&mut self, is_quiet: bool, text: &str) {
        if !is_quiet {
            self.out.line(text);
        }
    }
}
