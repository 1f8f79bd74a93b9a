//! A client that executes commands on a store in the test's memory.

use tidelane_kv::{Fed, Kv, MEMORY_MIN, Output, Progress, Session};

/// Unix time in seconds at which the clock of each store starts.
pub const START: u64 = 1_700_000_000;
/// Budget that never limits the work of a session.
pub const UNLIMITED: usize = usize::MAX;

/// Returns an empty store with the smallest memory.
pub fn store() -> Kv {
    Kv::new(START, MEMORY_MIN, [7; 16])
}

/// An output with limited room.
pub struct Limited {
    /// The written answers.
    pub bytes: Vec<u8>,
    /// Number of bytes that may still be written.
    pub room: usize,
}

impl Output for Limited {
    fn room(&self) -> usize {
        self.room
    }

    fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room, "the session exceeds the room");
        self.room -= bytes.len();
        self.bytes.extend_from_slice(bytes);
    }
}

/// A client: a session, and the input that the session has not consumed.
#[derive(Default)]
pub struct Client {
    session: Session,
    rest: Vec<u8>,
    is_closed: bool,
}

impl Client {
    /// Sends bytes. Returns the answers.
    pub fn send(&mut self, kv: &mut Kv, unix: u64, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        self.rest.extend_from_slice(bytes);
        let Fed {
            consumed, progress, ..
        } = self
            .session
            .feed(kv, unix, &self.rest, &mut answers, UNLIMITED);
        self.rest.drain(..consumed);
        self.is_closed |= progress == Progress::Closed;
        assert_ne!(progress, Progress::NeedsRoom, "the output lacks room");
        answers
    }

    /// Sends bytes. Returns the answers, which the output takes in pieces. `room` returns the room
    /// in bytes for the next piece, and `budget` limits the work for each piece.
    pub fn send_with_room(
        &mut self,
        kv: &mut Kv,
        bytes: &[u8],
        mut room: impl FnMut() -> usize,
        budget: usize,
    ) -> Vec<u8> {
        let mut answers = Vec::new();
        self.rest.extend_from_slice(bytes);
        loop {
            let mut out = Limited {
                bytes: Vec::new(),
                room: room(),
            };
            let Fed {
                consumed, progress, ..
            } = self.session.feed(kv, START, &self.rest, &mut out, budget);
            self.rest.drain(..consumed);
            answers.extend_from_slice(&out.bytes);
            self.is_closed |= progress == Progress::Closed;
            if matches!(progress, Progress::NeedsInput | Progress::Closed) {
                return answers;
            }
        }
    }

    /// Returns the number of bytes that the session has not consumed.
    pub fn rest(&self) -> usize {
        self.rest.len()
    }

    /// Returns true if the session is closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn end(self, kv: &mut Kv) {
        self.session.end(kv);
    }
}

/// Sends `text` to a new session, `seconds` after [`START`], and asserts that the answers are
/// `answers`. In both texts, `\n` stands for a CRLF.
pub fn expect(kv: &mut Kv, seconds: u64, text: &str, answers: &str) {
    let mut client = Client::default();
    let sent = text.replace('\n', "\r\n");
    let received = client.send(kv, START + seconds, sent.as_bytes());
    let received = String::from_utf8_lossy(&received).replace("\r\n", "\n");
    assert_eq!(received, answers, "{text}");
    client.end(kv);
}
