//! [`Client`]: the session (protocol state) of a client, its unused input (received bytes that the
//! session has not consumed), and the answers that the context (the sockets of the server) has not
//! accepted.

use std::{collections::VecDeque, time::Duration};

use tidelane_rings::{Buffer, Context, Descriptor, Pool, SendRefusal};

use crate::{
    backlog::Backlog,
    kv::Kv,
    ring_output::RingOutput,
    session::{Fed, Progress, Session},
};

/// Limit of the buffers with answers to one client that the context has not accepted.
const BUFFERS_MAX: u32 = 8;
/// Limit of the work for one client in one turn (in one cycle of the server), in the units of
/// [`Session::feed`].
const TURN_BUDGET: usize = 1024;
/// Length in bytes that is expected to fit into the peer's receive buffer. If all answers together
/// are no longer than this value, TCP delivers them even if the peer's program does not read.
const SHORT_LEN: u64 = 16 * 1024;
/// Limit of the unused input of one client in bytes. If the budget of a turn is spent and the
/// unused input exceeds the limit, the server pauses the client (stops receiving from it).
const INPUT_MAX: usize = 64 * 1024;

/// Reason why the execution of a client's commands has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The session needs more input from the client.
    Input,
    /// The context accepts no further buffer until the peer reads. The event WRITABLE then reports
    /// room.
    Room,
    /// The pool has no free buffer for the answers.
    Buffers,
    /// The budget (limit of the work) of the turn is spent.
    Turn,
    /// The session is closed. The context has accepted all answers.
    Closed,
    /// The connection can no longer send.
    Failed,
}

/// Result of [`Client::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The context has accepted all answers.
    All,
    /// The context has refused a buffer for lack of room.
    InPart,
    /// The connection can no longer send.
    Failed,
}

/// A client of the server, with the state of its present turn.
#[derive(Debug)]
pub struct Client {
    descriptor: Descriptor,
    session: Session,
    input: Backlog,
    /// Buffers with answers that the context has not accepted.
    output: VecDeque<Buffer>,
    /// Work that the present turn may still do.
    budget: usize,
    /// Number of the cycle in which the present turn began.
    cycle: u64,
    /// True while the server does not receive from the client.
    pub is_paused: bool,
    /// True once the client has closed its sending direction.
    pub has_ended: bool,
    /// True while the client is in the server's list of clients that continue without an event.
    pub is_waiting: bool,
    /// Time of the client's most recent event, since the Unix epoch.
    pub last_progress: Duration,
    /// Bytes of answers that the context has accepted, and that the server has not yet added to its
    /// statistics.
    pub written: u64,
    /// Bytes of all answers that the context has accepted.
    sent: u64,
}

/// The state of the server that a client needs in its turn.
pub struct Shared<'a> {
    pub kv: &'a mut Kv,
    pub pool: &'a Pool,
    /// Number of free buffers that the answers leave in the pool, for received data.
    pub reserve: u32,
    /// Present Unix time in seconds.
    pub unix: u64,
}

impl Client {
    /// Returns a client that has sent nothing.
    pub fn new(descriptor: Descriptor, now: Duration) -> Self {
        Self {
            descriptor,
            session: Session::default(),
            input: Backlog::default(),
            output: VecDeque::new(),
            budget: TURN_BUDGET,
            cycle: 0,
            is_paused: false,
            has_ended: false,
            is_waiting: false,
            last_progress: now,
            written: 0,
            sent: 0,
        }
    }

    /// Returns the descriptor of the connection.
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// Returns true if the context may hold answers that the peer has not read: all answers
    /// together have more than `SHORT_LEN` bytes.
    pub fn may_linger(&self) -> bool {
        self.sent > SHORT_LEN
    }

    /// Returns the memory of the unused input in bytes.
    pub fn input_memory(&self) -> usize {
        self.input.memory()
    }

    /// Returns true if the client holds buffers with answers that the context has not accepted.
    pub fn holds_buffers(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns true if the client holds memory of the store: a value that the client sends, or an
    /// item that the client reads.
    pub fn holds_items(&self) -> bool {
        self.session.holds_memory()
    }

    /// Returns true if the server should pause the client (stop receiving from it). `stop` is the
    /// reason why the client's turn has ended.
    pub fn should_pause(&self, stop: Stop) -> bool {
        let has_input = !self.input.is_empty();
        match stop {
            Stop::Room | Stop::Buffers => has_input,
            Stop::Turn => self.input.bytes().len() > INPUT_MAX,
            Stop::Input | Stop::Closed | Stop::Failed => false,
        }
    }

    /// Ends the session, and frees the memory of the store that the session holds.
    pub fn end(self, kv: &mut Kv) {
        self.session.end(kv);
    }

    /// Resets the budget at the first call in a cycle.
    pub fn start_turn(&mut self, cycle: u64) {
        if self.cycle != cycle {
            self.cycle = cycle;
            self.budget = TURN_BUDGET;
        }
    }

    /// Executes the commands of the unused input, then the commands of `bytes`. If the budget is
    /// spent, only adds `bytes` to the unused input.
    pub fn receive(
        &mut self,
        shared: &mut Shared<'_>,
        context: &mut dyn Context,
        bytes: &[u8],
    ) -> Stop {
        if self.budget == 0 || !self.input.is_empty() || !self.output.is_empty() {
            self.input.add(bytes);
            return match self.budget {
                0 => Stop::Turn,
                _ => self.proceed(shared, context),
            };
        }
        let (used, stop) = self.execute(shared, context, Some(bytes));
        self.input.add(&bytes[used..]);
        stop
    }

    /// Sends waiting answers, and continues with the unused input.
    pub fn proceed(&mut self, shared: &mut Shared<'_>, context: &mut dyn Context) -> Stop {
        let (used, stop) = self.execute(shared, context, None);
        self.input.consume(used);
        stop
    }

    /// Sends waiting answers, then executes the commands of `bytes`, or of the unused input if
    /// `bytes` is `None`. Returns the number of consumed bytes, and the reason for the stop.
    fn execute(
        &mut self,
        shared: &mut Shared<'_>,
        context: &mut dyn Context,
        bytes: Option<&[u8]>,
    ) -> (usize, Stop) {
        let mut used = 0;
        let mut is_starved = false;
        loop {
            match self.send(context) {
                Sent::All if is_starved => return (used, Stop::Buffers),
                Sent::All => {}
                Sent::InPart => return (used, Stop::Room),
                Sent::Failed => return (used, Stop::Failed),
            }
            let free = shared.pool.free_count().saturating_sub(shared.reserve);
            let mut out = RingOutput::new(shared.pool, &mut self.output, free.min(BUFFERS_MAX));
            let bytes = bytes.unwrap_or(self.input.bytes());
            let Fed {
                consumed,
                progress,
                budget,
            } = self.session.feed(
                shared.kv,
                shared.unix,
                &bytes[used..],
                &mut out,
                self.budget,
            );
            self.budget = budget;
            used += consumed;
            // The pool has too few free buffers if the context has accepted all answers, and the
            // next answer still has no room.
            is_starved = self.output.is_empty() && consumed == 0;
            let stop = match progress {
                Progress::NeedsRoom => continue,
                Progress::NeedsInput => Stop::Input,
                Progress::HasMore => Stop::Turn,
                Progress::Closed => Stop::Closed,
            };
            return match self.send(context) {
                Sent::All => (used, stop),
                Sent::InPart => (used, Stop::Room),
                Sent::Failed => (used, Stop::Failed),
            };
        }
    }

    /// Hands the answers to the context until the context refuses a buffer.
    fn send(&mut self, context: &mut dyn Context) -> Sent {
        while let Some(buffer) = self.output.pop_front() {
            let len = buffer.len() as u64;
            if let Err(error) = context.send(self.descriptor, buffer) {
                if error.refusal == SendRefusal::NotConnected {
                    self.output.clear();
                    return Sent::Failed;
                }
                self.output.push_front(error.buffer);
                return Sent::InPart;
            }
            self.sent += len;
            self.written += len;
        }
        Sent::All
    }
}
