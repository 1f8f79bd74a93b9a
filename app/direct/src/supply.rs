//! [`Supply`]: the free buffers of a context (the sockets of one thread), and how many of these
//! buffers each kind of received data may take.

use tidelane_rings::{Buffer, Pool};

/// The kind of received data that needs a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// In-order data or a datagram that the next ready list passes to the program.
    Prompt,
    /// Data that has to wait: out-of-order data, data of a paused or unaccepted connection, or a
    /// datagram of a paused UDP socket.
    Waiting,
}

/// The pool of a context, with reserves. If less than half of the buffers would stay free, waiting
/// data ([`Purpose::Waiting`]) is refused. If less than a quarter would stay free, all received
/// data is refused. Waiting data alone therefore never takes the buffers for data that fills a gap,
/// and received data alone never takes the buffers for the program's answers.
#[derive(Debug)]
pub struct Supply {
    pool: Pool,
    /// Number of buffers in the pool.
    count: u32,
}

impl Supply {
    /// Returns the supply of a pool whose buffers are all free.
    pub fn new(pool: Pool) -> Self {
        let count = pool.free_count();
        Self { pool, count }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns true if received data of this kind may take `buffers` buffers.
    pub fn has(&self, buffers: u32, purpose: Purpose) -> bool {
        let rest = match purpose {
            Purpose::Prompt => self.count / 4,
            Purpose::Waiting => self.count / 2,
        };
        self.pool.free_count() >= rest + buffers
    }

    /// Returns a free buffer for received data of this kind. Returns `None` if the buffer would
    /// come from the reserve.
    pub fn take_for(&self, purpose: Purpose) -> Option<Buffer> {
        self.has(1, purpose).then(|| self.take())?
    }

    /// Returns a free buffer, even from the reserve. Returns `None` if no buffer is free.
    pub fn take(&self) -> Option<Buffer> {
        self.pool.allocate()
    }
}
