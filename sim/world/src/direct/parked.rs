//! The time source of a direct context (`app/direct`: TCP within the program's calls) in the
//! simulator.

use std::{cell::Cell, io, rc::Rc, time};

use tidelane_direct::TimeSource;
use tidelane_mem_nic::{Clock, Nic};
use tidelane_time::{Duration, Instant};

/// Time limit of the most recent wait. `None` means no limit.
type Limit = Option<Duration>;

/// The virtual clock of a context. In the simulator, time cannot pass during a call. A wait
/// therefore ends the call with an error, and the world runs the context again when the wait is
/// over.
#[derive(Clone, Debug)]
pub struct ParkedTime {
    clock: Clock,
    limit: Rc<Cell<Limit>>,
}

impl ParkedTime {
    /// Creates a time source that reads `clock`.
    pub fn new(clock: &Clock) -> Self {
        Self {
            clock: Rc::clone(clock),
            limit: Rc::default(),
        }
    }

    /// Returns the time limit of the most recent wait.
    pub fn limit(&self) -> Limit {
        self.limit.get()
    }

    /// Returns true if `error` means that the call would wait.
    pub fn is_wait(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock
    }
}

impl TimeSource<Nic> for ParkedTime {
    fn now(&self) -> Instant {
        self.clock.get()
    }

    fn wait(&mut self, _: &mut Nic, limit: Option<time::Duration>) -> io::Result<()> {
        let nanos = |limit: time::Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.limit.set(limit.map(nanos).map(Duration::from_nanos));
        Err(io::ErrorKind::WouldBlock.into())
    }
}
