//! A client of a server: its session, the input that is not used, and the answers that the context
//! has not accepted.

use std::{collections::VecDeque, time::Duration};

use tidelane_rings::{Buffer, Context, Descriptor, Pool, SendRefusal};

use crate::{
    backlog::Backlog,
    kv::Kv,
    ring_output::RingOutput,
    session::{Fed, Progress, Session},
};

/// Limit of buffers with answers that wait outside of the context for one client.
const BUFFERS_MAX: u32 = 8;
/// Work of a client in one cycle of the server, in the units of [`Session::feed`].
const TURN_BUDGET: usize = 1024;
/// Bytes of answers that every transport takes at once.
const SHORT_LEN: u64 = 16 * 1024;
/// Bytes of unused input from which on the server stops receiving.
const INPUT_MAX: usize = 64 * 1024;

/// Reason why a client has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The client has to send more.
    Input,
    /// The client has to read its answers. The event WRITABLE follows.
    Room,
    /// The pool has no buffers for the answers.
    Buffers,
    /// The turn is over.
    Turn,
    /// The conversation is over. All answers are with the context.
    Closed,
    /// The connection cannot send.
    Failed,
}

/// Result of giving answers to the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    All,
    InPart,
    Failed,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    descriptor: Descriptor,
    session: Session,
    input: Backlog,
    output: VecDeque<Buffer>,
    /// Work that is left of the present turn.
    budget: usize,
    /// Number of the cycle of the turn.
    cycle: u64,
    /// The server does not receive.
    pub is_paused: bool,
    /// The client sends no more.
    pub has_ended: bool,
    /// The client is in the server's list of clients that continue without an event.
    pub is_waiting: bool,
    /// Unix time at which the client last sent or read something.
    pub last_progress: Duration,
    /// Bytes of answers that the server has not counted.
    pub written: u64,
    /// Bytes of all answers.
    sent: u64,
}

/// The state that a client needs for its turn.
pub struct Shared<'a> {
    pub kv: &'a mut Kv,
    pub pool: &'a Pool,
    /// Free buffers that answers leave to the pool.
    pub reserve: u32,
    pub unix: u64,
}

impl Client {
    /// Returns a new client.
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

    /// Returns true if the context may still have answers that the peer has not read. The transport
    /// takes the answers of a short conversation at once.
    pub fn may_linger(&self) -> bool {
        self.sent > SHORT_LEN
    }

    /// Returns the memory in bytes that the unused input takes.
    pub fn input_memory(&self) -> usize {
        self.input.memory()
    }

    /// Returns true if answers wait for the client.
    pub fn holds_buffers(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns true if the client holds memory of the store besides that of the items.
    pub fn holds_items(&self) -> bool {
        self.session.holds_memory()
    }

    /// Returns true if the server should not receive more for the client, which has stopped.
    pub fn should_pause(&self, stop: Stop) -> bool {
        let has_input = !self.input.is_empty();
        match stop {
            Stop::Room | Stop::Buffers => has_input,
            Stop::Turn => self.input.bytes().len() > INPUT_MAX,
            Stop::Input | Stop::Closed | Stop::Failed => false,
        }
    }

    /// Ends the session.
    pub fn end(self, kv: &mut Kv) {
        self.session.end(kv);
    }

    /// Starts a turn, unless the client has had its turn in this cycle.
    pub fn start_turn(&mut self, cycle: u64) {
        if self.cycle != cycle {
            self.cycle = cycle;
            self.budget = TURN_BUDGET;
        }
    }

    /// Executes the commands of received bytes, after those of the unused input.
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

    /// Continues with the answers and the unused input.
    pub fn proceed(&mut self, shared: &mut Shared<'_>, context: &mut dyn Context) -> Stop {
        let (used, stop) = self.execute(shared, context, None);
        self.input.consume(used);
        stop
    }

    /// Executes the commands of `bytes`, or of the unused input. Returns the number of used bytes.
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
            // An answer that does not fit although nothing waits has too few buffers.
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

    /// Gives answers to the context.
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
