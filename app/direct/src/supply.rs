//! The free buffers of a context, and the kinds of data that may take them.

use tidelane_rings::{Buffer, Pool};

/// Purpose of a buffer for received data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Data in order, which the next list has.
    Prompt,
    /// Data that waits: beyond a hole, or of a connection that the program has paused.
    Waiting,
}

/// The pool of a context. Data that waits leaves half of the buffers to other data. Received data
/// leaves a quarter of the buffers to the program. The data that fills a hole therefore finds a
/// buffer, however many buffers are beyond holes, and a program can always answer.
#[derive(Debug)]
pub struct Supply {
    pool: Pool,
    /// Number of buffers that were free at the start.
    count: u32,
}

impl Supply {
    /// Returns the supply of a pool whose buffers are all free.
    pub fn new(pool: Pool) -> Self {
        let count = pool.free_count();
        Self { pool, count }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns true if `buffers` buffers may be taken for received data.
    pub fn has(&self, buffers: u32, purpose: Purpose) -> bool {
        let rest = match purpose {
            Purpose::Prompt => self.count / 4,
            Purpose::Waiting => self.count / 2,
        };
        self.pool.free_count() >= rest + buffers
    }

    /// Returns a free buffer.
    pub fn take(&self) -> Option<Buffer> {
        self.pool.allocate()
    }
}
