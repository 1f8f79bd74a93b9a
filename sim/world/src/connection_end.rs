//! One end of a simulated connection. The end reads, writes and closes according to its plan, like
//! a program. The ledger records both ends of every connection, and checks the rules about streams.

use tidelane_abi::close_cause;
use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};

use crate::{
    ledger::{GONE_PEER_TIMEOUT, Ledger, Violation, violation},
    pattern::{Content, HEADER_LEN},
    pipe::Pipe,
    plan::{Ending, Role},
};

/// Number of bytes after which a turn (call of [`ConnectionEnd::turn`]) ends, so that other
/// connections get turns. Also the largest number of bytes of one read or write.
const TURN_MAX: u64 = 128 << 10;
/// Delay before an end retries a write that failed for lack of memory.
const MEMORY_RETRY: Duration = Duration::from_millis(10);
/// Delay of the next turn after a turn that moved at least [`TURN_MAX`] bytes.
const TURN_TIME: Duration = Duration::from_micros(20);
/// Time after which a server closes a connection if the header has not arrived. The header is the
/// start of the client's stream, and identifies the connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(400);

/// State that the ends of all connections of a run share. [`World`](crate::World) owns the state.
#[derive(Debug)]
pub struct RunState {
    /// Record of both ends of all connections.
    pub ledger: Ledger,
    /// Seed of the run. The bytes of all streams derive from the seed.
    pub seed: u64,
    /// Buffer of one read or write.
    bytes: Vec<u8>,
    /// Buffer for the expected bytes of a read.
    scratch: Vec<u8>,
}

impl RunState {
    /// Creates the shared state of a run.
    pub fn new(ledger: Ledger, seed: u64) -> Self {
        Self {
            ledger,
            seed,
            bytes: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

/// Condition for the next turn of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The next turn follows an event of the stream.
    Event,
    /// The next turn is at this time, or follows an earlier event.
    At(Instant),
    /// No turn follows, because the stream is closed.
    Closed,
}

/// One end of one connection, with the stream and the progress of the end. The ledger has the plan.
#[derive(Debug)]
pub struct ConnectionEnd<S> {
    stream: S,
    role: Role,
    /// Number of the connection. `None` at a server that has not yet read the header.
    id: Option<u32>,
    /// Time of the open or accept.
    opened: Instant,
    /// The bytes of the client's stream and of the server's stream.
    content: [Content; 2],
    /// Number of bytes read.
    read: u64,
    /// Number of bytes written.
    written: u64,
    /// Number of pauses so far.
    pauses: u32,
    /// End of the most recent pause.
    paused_until: Instant,
    /// True after the end has shut down for writing.
    shut: bool,
    /// True if the most recent write failed for lack of memory.
    out_of_memory: bool,
    /// Chooses the lengths of reads and writes.
    rng: Rng,
}

impl<S: Pipe> ConnectionEnd<S> {
    /// Creates the client's end of connection `id`.
    pub fn client(now: Instant, stream: S, id: u32, seed: u64, rng: Rng) -> Self {
        let mut end = Self::server(now, stream, rng);
        end.role = Role::Client;
        end.content = contents(seed, id);
        end.id = Some(id);
        end
    }

    /// Creates the end of an accepted connection. The header at the start of the client's stream
    /// identifies the connection.
    pub fn server(now: Instant, stream: S, rng: Rng) -> Self {
        Self {
            stream,
            role: Role::Server,
            id: None,
            opened: now,
            content: contents(0, 0),
            read: 0,
            written: 0,
            pauses: 0,
            paused_until: Instant::ZERO,
            shut: false,
            out_of_memory: false,
            rng,
        }
    }

    /// Returns the stream, for operations that are not part of [`Pipe`].
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Drops the end, and returns its stream.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// Returns the number of the connection, if it is known, and the role.
    pub fn name(&self) -> (Option<u32>, Role) {
        (self.id, self.role)
    }

    /// Reads, writes and closes as the plan and the stream permit. Returns the condition for the
    /// next turn.
    pub fn turn(&mut self, now: Instant, run_state: &mut RunState) -> Result<Next, Violation> {
        if self.is_closed() {
            return Ok(Next::Closed);
        }
        if self.id.is_none() && !self.read_header(now, run_state)? {
            return Ok(if self.is_closed() {
                Next::Closed
            } else {
                Next::Event
            });
        }
        let start = self.read + self.written;
        let mut moved = true;
        while moved && !self.is_closed() {
            if self.leaves_early(now, run_state) {
                break;
            }
            if self.read + self.written - start >= TURN_MAX {
                return Ok(Next::At(now + TURN_TIME));
            }
            moved = self.read_some(now, run_state)?;
            moved |= self.write_some(now, run_state)?;
            if !moved {
                moved = self.finish(now, run_state)?;
            }
        }
        Ok(if self.is_closed() {
            Next::Closed
        } else if self.paused_until > now {
            Next::At(self.paused_until)
        } else if self.out_of_memory {
            Next::At(now + MEMORY_RETRY)
        } else {
            Next::Event
        })
    }

    /// Closes the end if the peer has been gone for `GONE_PEER_TIMEOUT`, because the peer's RST may
    /// have been lost. Also closes the end of a server if the header has not arrived within
    /// `HEADER_TIMEOUT`. Returns true if this call has closed the end. Returns an error if the peer
    /// has been gone for this time although no RST can be lost and the client is not hostile.
    pub fn check_gone_peer(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
    ) -> Result<bool, Violation> {
        if self.is_closed() {
            return Ok(false);
        }
        let Some(id) = self.id else {
            let over = now - self.opened > HEADER_TIMEOUT;
            if over {
                self.stream.close(true);
            }
            return Ok(over);
        };
        let ledger = &mut run_state.ledger;
        let gone = ledger.peer_gone_since(id, self.role);
        if gone.is_none_or(|since| now - since.max(self.paused_until) < GONE_PEER_TIMEOUT) {
            return Ok(false);
        }
        if ledger.lossless && !ledger.entry(id).client_is_hostile {
            let text = format!(
                "{:?} of connection {id} waits for a peer that is gone",
                self.role
            );
            return Err(violation(now, "a reset arrives", text));
        }
        self.leave(now, run_state, true);
        Ok(true)
    }

    fn is_closed(&self) -> bool {
        self.stream.is_closed()
    }

    /// Inspects the header, which stays in the stream. Returns true once the header has identified
    /// the connection. Closes the stream if the rest of the header cannot arrive. In a run with a
    /// hostile program, also closes the stream if the header is wrong.
    fn read_header(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let mut header = [0; HEADER_LEN as usize];
        let got = self.stream.peek(&mut header);
        if got < header.len() {
            let end_of_file = self.stream.at_end();
            if end_of_file || (self.stream.peer_closed() && self.stream.readable() == got) {
                let orderly = self.stream.fin_received();
                if orderly && got > 0 && !run_state.ledger.unplanned_clients {
                    let text = format!("end of file after {got} bytes of header");
                    return Err(violation(now, "the end comes after the last byte", text));
                }
                self.stream.discard(got);
                self.stream.close(false);
            }
            return Ok(false);
        }
        let known = Content::parse_header(run_state.seed, &header);
        match known.filter(|id| run_state.ledger.contains(*id)) {
            Some(id) => {
                run_state.ledger.open(now, id, Role::Server)?;
                self.id = Some(id);
                self.content = contents(run_state.seed, id);
                if run_state.ledger.entry(id).plan.end(self.role).nodelay {
                    self.stream.set_nodelay();
                }
                Ok(true)
            }
            None if run_state.ledger.unplanned_clients => {
                self.stream.close(true);
                Ok(false)
            }
            None => {
                let text = format!("a connection begins with {header:02x?}");
                Err(violation(now, "bytes arrive intact", text))
            }
        }
    }

    fn connection_id(&self) -> u32 {
        self.id.expect("the header was read")
    }

    /// Closes or aborts if the plan requires an early end. Returns true if the end has closed.
    fn leaves_early(&mut self, now: Instant, run_state: &mut RunState) -> bool {
        let ending = run_state
            .ledger
            .entry(self.connection_id())
            .plan
            .end(self.role)
            .ending;
        let moved = self.read + self.written;
        match ending {
            Ending::CloseEarly(after) if moved >= after => self.leave(now, run_state, false),
            Ending::Abort(after) if moved >= after => self.leave(now, run_state, true),
            _ => return false,
        }
        true
    }

    /// Closes or aborts before the plan is complete.
    fn leave(&mut self, now: Instant, run_state: &mut RunState, abort: bool) {
        let id = self.connection_id();
        run_state.ledger.mark_broken(now, id, self.role);
        run_state.ledger.close_end(now, id, self.role);
        self.stream.close(abort);
    }

    /// Closes after the plan is complete or the connection has ended.
    fn close(&mut self, now: Instant, run_state: &mut RunState) {
        run_state
            .ledger
            .close_end(now, self.connection_id(), self.role);
        self.stream.close(false);
    }

    fn read_some(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let id = self.connection_id();
        if now < self.paused_until {
            return Ok(false);
        }
        let end = *run_state.ledger.entry(id).plan.end(self.role);
        let due = end.pause_after.saturating_mul(u64::from(self.pauses) + 1);
        if self.pauses < end.pauses && self.read >= due {
            self.pauses += 1;
            self.paused_until = now + end.pause;
            return Ok(false);
        }
        let most = u64::from(end.read_chunk).min(TURN_MAX);
        let want = self.rng.between(1, most) as usize;
        run_state.bytes.resize(want, 0);
        let got = self.stream.receive(&mut self.rng, &mut run_state.bytes);
        let bytes = &run_state.bytes[..got];
        let content = &self.content[self.role.peer().index()];
        if let Some(pos) = content.first_mismatch(self.read, bytes, &mut run_state.scratch) {
            let role = self.role;
            if run_state.ledger.entry(id).client_is_hostile {
                self.leave(now, run_state, true);
                return Ok(false);
            }
            let text = format!("{role:?} of connection {id}: the byte at {pos} is wrong");
            return Err(violation(now, "bytes arrive intact", text));
        }
        if got > 0 {
            self.read += got as u64;
            run_state.ledger.read(now, id, self.role, got as u64)?;
        }
        Ok(got > 0)
    }

    fn write_some(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let id = self.connection_id();
        let plan = &run_state.ledger.entry(id).plan;
        let allowed = plan
            .allowed(self.role, self.read)
            .saturating_sub(self.written);
        let most = u64::from(plan.end(self.role).write_chunk).min(TURN_MAX);
        let most = allowed.min(most);
        self.out_of_memory = false;
        if most == 0 || self.shut {
            return Ok(false);
        }
        // The first write contains the whole header, so that an early close cannot truncate the
        // header.
        let least = if self.written == 0 {
            most.min(HEADER_LEN)
        } else {
            1
        };
        let len = self.rng.between(least, most) as usize;
        run_state.bytes.resize(len, 0);
        self.content[self.role.index()].fill(self.written, &mut run_state.bytes);
        let taken = self.stream.write(&run_state.bytes[..len]);
        if taken > len {
            let text = format!("connection {id}: {taken} of {len} bytes were taken");
            return Err(violation(now, "no more is taken than given", text));
        }
        self.out_of_memory = taken == 0 && self.stream.lacks_memory();
        if taken > 0 {
            self.written += taken as u64;
            run_state.ledger.wrote(now, id, self.role, taken as u64);
        }
        Ok(taken > 0)
    }

    /// If all planned data is written, shuts down for writing, except with `Ending::Close`. Closes
    /// if the plan is complete, if the connection has ended, or if the peer has closed early.
    /// Returns true if the call has shut down or closed.
    fn finish(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let id = self.connection_id();
        let plan = &run_state.ledger.entry(id).plan;
        let (send, expect) = (plan.total(self.role), plan.total(self.role.peer()));
        let ending = plan.end(self.role).ending;
        if let Some(cause) = self.over() {
            return self.ended(now, run_state, cause).map(|()| true);
        }
        let all_sent = self.written == send;
        let all_read = self.read == expect;
        // TCP discards the unsent data of a connection that is closed before it is established (RFC
        // 9293 §3.10.4).
        if all_sent && all_read && ending == Ending::Close && self.stream.established() {
            self.close(now, run_state);
            return Ok(true);
        }
        if all_sent && !self.shut && ending != Ending::Close {
            self.shut = true;
            run_state.ledger.finish(now, id, self.role);
            self.stream.shutdown_write();
            return Ok(true);
        }
        if self.stream.at_end() {
            run_state.ledger.check_end_of_file(now, id, self.role)?;
            if self.shut {
                self.close(now, run_state);
                return Ok(true);
            }
            if !all_read {
                // The peer has closed early, so the rest of its data will not arrive.
                self.leave(now, run_state, false);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the cause of the connection's end. Returns `None` while the connection exists or
    /// data is unread.
    fn over(&mut self) -> Option<u32> {
        let cause = self.stream.ended()?;
        (self.stream.readable() == 0).then_some(cause)
    }

    /// Handles the end of the connection, which the stream has reported with `cause`.
    fn ended(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
        cause: u32,
    ) -> Result<(), Violation> {
        let id = self.connection_id();
        let fin = self.stream.fin_received();
        if fin {
            run_state.ledger.check_end_of_file(now, id, self.role)?;
        }
        let both_finished = fin && self.shut && cause == close_cause::FINISHED;
        if !both_finished {
            run_state.ledger.check_cause(now, id, self.role, cause)?;
            run_state.ledger.mark_broken(now, id, self.role);
        }
        self.close(now, run_state);
        Ok(())
    }
}

fn contents(seed: u64, id: u32) -> [Content; 2] {
    [Content::of_client(seed, id), Content::of_server(seed, id)]
}
