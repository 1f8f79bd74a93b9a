//! [`Turn`]: the limited work for one client before the server serves the next client.

use crate::{clock::Second, kv::Kv, output::Output};

/// Bytes of data that cost one unit of work.
const BYTES_PER_UNIT: usize = 1024;

/// The arguments that all commands in one call of `Session::feed` share: store, time, output, and
/// the budget of work.
pub struct Turn<'a, O> {
    pub kv: &'a mut Kv,
    pub now: Second,
    pub out: &'a mut O,
    /// Remaining units of work. Each command, each key of a `get`, and each KiB of data costs one
    /// unit.
    pub budget: usize,
}

impl<O: Output> Turn<'_, O> {
    /// Subtracts units of work from the budget.
    pub fn spend(&mut self, units: usize) {
        self.budget = self.budget.saturating_sub(units);
    }

    /// Subtracts the work for a number of bytes from the budget.
    pub fn spend_bytes(&mut self, bytes: usize) {
        self.spend(bytes / BYTES_PER_UNIT);
    }

    /// Writes the answer to a command, unless `is_quiet` is true.
    pub fn answer(&mut self, is_quiet: bool, text: &str) {
        if !is_quiet {
            self.out.line(text);
        }
    }
}
