//! [`Session`]: the state of memcached's protocol for one client.
//!
//! A session does not store unconsumed input. [`Session::feed`] returns the number of consumed
//! bytes. The caller passes the remaining bytes again, followed by newly received bytes. A session
//! holds at most one item (a key with its value) of the store: an item whose value is being
//! received, or an item whose value is being sent.

use crate::{
    classic,
    get::{Get, Left, continue_value, has_long_key, process_keys, refuse_keys},
    kv::Kv,
    outcome::Outcome,
    output::{COMMAND_ROOM, Output},
    receive::{Arrived, Receiving},
    store::Reader,
    tokens::Tokens,
    turn::Turn,
};

/// Longest incomplete command line in bytes. Only a `get` or `gets` may be longer.
const LINE_LEN_MAX: usize = 2048;
/// Limit of the spaces before the name of a `get` or `gets` that is longer than `LINE_LEN_MAX`.
const LEADING_SPACES_MAX: usize = 100;

/// Reason why [`Session::feed`] has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The session needs more input.
    NeedsInput,
    /// The session needs room in the output.
    NeedsRoom,
    /// The budget is spent. The session continues with the next call.
    HasMore,
    /// The session is closed. The server closes the connection after the answers are sent.
    Closed,
}

/// Result of [`Session::feed`].
#[derive(Clone, Copy, Debug)]
pub struct Fed {
    /// Number of consumed bytes of the input.
    pub consumed: usize,
    /// Reason why the session has stopped.
    pub progress: Progress,
    /// Remaining budget in units of work (see [`Session::feed`]).
    pub budget: usize,
}

/// State of the protocol: the part of the input that comes next.
#[derive(Debug)]
enum State {
    /// A command line.
    Command,
    /// Keys in the line of a `get`.
    Keys(Get),
    /// No input: the session first writes the rest of a value. If the `Get` is present, further
    /// keys follow in the line.
    Value(Reader, Option<Get>),
    /// Bytes of a value, or of the CRLF after the value.
    Receive(Box<Receiving>),
    /// Bytes of a refused value and of its CRLF, which the session skips. The number counts the
    /// bytes that are still to be skipped.
    Swallow(u64),
    /// The rest of a line, which is skipped.
    SkipLine,
    /// No input: the session is closed.
    Closed,
}

/// The protocol state of one client. The caller ends the session by [`Session::end`].
#[derive(Debug)]
pub struct Session {
    state: State,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            state: State::Command,
        }
    }
}

impl Session {
    /// Executes the commands in `input`. `unix` is the present Unix time in seconds. `budget`
    /// limits the work in units: each command, each key of a `get`, and each KiB of data costs one
    /// unit.
    pub fn feed(
        &mut self,
        kv: &mut Kv,
        unix: u64,
        input: &[u8],
        out: &mut impl Output,
        budget: usize,
    ) -> Fed {
        let now = kv.clock.second(unix);
        let mut turn = Turn {
            kv,
            now,
            out,
            budget,
        };
        let mut consumed = 0;
        loop {
            let (used, stop) = self.step(&mut turn, &input[consumed..]);
            consumed += used;
            turn.spend_bytes(used);
            if let Some(progress) = stop {
                return Fed {
                    consumed,
                    progress,
                    budget: turn.budget,
                };
            }
        }
    }

    /// Ends the session. If a value is being received, frees the memory of the value. If a value is
    /// being sent, unpins the item of the value.
    pub fn end(self, kv: &mut Kv) {
        match self.state {
            State::Value(reader, _) => kv.store.unpin(reader),
            State::Receive(receiving) => receiving.abandon(kv),
            _ => {}
        }
    }

    /// Returns true if the session holds memory of the store: a value that is being received, or an
    /// item whose value is being sent.
    pub fn holds_memory(&self) -> bool {
        matches!(self.state, State::Value(..) | State::Receive(_))
    }

    /// Processes the next part of the input, or writes the rest of a value. Returns the number of
    /// consumed bytes, and a reason if the session has to stop.
    fn step(
        &mut self,
        turn: &mut Turn<'_, impl Output>,
        input: &[u8],
    ) -> (usize, Option<Progress>) {
        match &mut self.state {
            State::Closed => (0, Some(Progress::Closed)),
            State::Value(reader, keys) => {
                if !continue_value(turn, reader) {
                    return (0, Some(Progress::NeedsRoom));
                }
                turn.kv.store.unpin(*reader);
                self.state = keys.map_or(State::Command, State::Keys);
                (0, None)
            }
            _ if input.is_empty() => (0, Some(Progress::NeedsInput)),
            _ if turn.budget == 0 => (0, Some(Progress::HasMore)),
            State::Command => self.command(turn, input),
            State::Keys(get) => {
                let get = *get;
                self.keys(turn, get, input)
            }
            State::Receive(_) if turn.out.room() < COMMAND_ROOM => (0, Some(Progress::NeedsRoom)),
            State::Receive(receiving) => {
                let (used, arrived) = receiving.receive(turn, input);
                if arrived != Arrived::InPart {
                    self.end_value(turn, arrived);
                }
                (used, None)
            }
            State::Swallow(left) => {
                let used = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= used as u64;
                if *left == 0 {
                    self.state = State::Command;
                }
                (used, None)
            }
            State::SkipLine => {
                let end = input.iter().position(|byte| *byte == b'\n');
                if end.is_some() {
                    self.state = State::Command;
                }
                (end.map_or(input.len(), |end| end + 1), None)
            }
        }
    }

    /// Executes the command line at the start of the input.
    fn command(
        &mut self,
        turn: &mut Turn<'_, impl Output>,
        input: &[u8],
    ) -> (usize, Option<Progress>) {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            return self.unfinished_line(input);
        };
        if turn.out.room() < COMMAND_ROOM {
            return (0, Some(Progress::NeedsRoom));
        }
        turn.spend(1);
        let line = &input[..end];
        let line = match line.strip_suffix(b"\r") {
            Some(line) if !line.is_empty() => line,
            _ => line,
        };
        let nul = line.iter().position(|byte| *byte == 0);
        let line = &line[..nul.unwrap_or(line.len())];
        match classic::execute(turn, &Tokens::new(line)) {
            Outcome::Keys(get, from) if has_long_key(&line[from..]) => {
                refuse_keys(turn, get, &line[from..]);
                (end + 1, None)
            }
            Outcome::Keys(get, from) => {
                self.state = State::Keys(get);
                (from, None)
            }
            outcome => {
                self.enter(outcome);
                (end + 1, None)
            }
        }
    }

    /// Executes a store command whose value has arrived, or refuses the command for lack of memory.
    fn end_value(&mut self, turn: &mut Turn<'_, impl Output>, arrived: Arrived) {
        let state = std::mem::replace(&mut self.state, State::Command);
        if let State::Receive(receiving) = state {
            let outcome = match arrived {
                Arrived::WithoutMemory(missing) => {
                    Outcome::Swallow(receiving.run_out(turn, missing).to_skip)
                }
                _ => {
                    receiving.finish(turn);
                    Outcome::Done
                }
            };
            self.enter(outcome);
        }
    }

    /// Enters the state that follows a command.
    fn enter(&mut self, outcome: Outcome) {
        self.state = match outcome {
            Outcome::Done | Outcome::Swallow(0) => State::Command,
            Outcome::Keys(get, _) => State::Keys(get),
            Outcome::Receive(receiving) => State::Receive(receiving),
            Outcome::Swallow(left) => State::Swallow(left),
            Outcome::Value(reader) => State::Value(reader, None),
            Outcome::Close => State::Closed,
        };
    }

    /// Processes an incomplete line. If the line is longer than `LINE_LEN_MAX`, the line must be a
    /// `get` or `gets`, whose keys are processed as the keys arrive. Any other long line closes the
    /// session.
    fn unfinished_line(&mut self, line: &[u8]) -> (usize, Option<Progress>) {
        if line.len() <= LINE_LEN_MAX {
            return (0, Some(Progress::NeedsInput));
        }
        let spaces = line.iter().take_while(|byte| **byte == b' ').count();
        let command = &line[spaces..];
        let get = [(&b"get "[..], false), (b"gets ", true)];
        let get = get.iter().find(|(name, _)| command.starts_with(name));
        match get {
            Some((name, has_cas)) if spaces <= LEADING_SPACES_MAX => {
                self.state = State::Keys(Get {
                    has_cas: *has_cas,
                    touch: None,
                });
                (spaces + name.len(), None)
            }
            _ => {
                self.state = State::Closed;
                (0, None)
            }
        }
    }

    /// Answers the keys of a `get` at the start of the input.
    fn keys(
        &mut self,
        turn: &mut Turn<'_, impl Output>,
        get: Get,
        input: &[u8],
    ) -> (usize, Option<Progress>) {
        let (used, left) = process_keys(turn, get, input);
        let stop = match left {
            Left::AtEnd => {
                self.state = State::Command;
                None
            }
            Left::BeforeEnd => {
                self.state = State::SkipLine;
                None
            }
            Left::InValue(reader) => {
                self.state = State::Value(reader, Some(get));
                None
            }
            Left::Incomplete => Some(Progress::NeedsInput),
            Left::NoRoom => Some(Progress::NeedsRoom),
            Left::Turn => Some(Progress::HasMore),
        };
        (used, stop)
    }
}
