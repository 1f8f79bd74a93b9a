//! A connection of a direct context, with the interface that its program uses. A direct context
//! (`app/direct`) runs TCP within the program's calls. Received data stays in the context's
//! buffers, which the program *holds* until the program has read them.

use std::{cell::RefCell, collections::VecDeque, fmt, io, rc::Rc};

use tidelane_abi::close_cause;
use tidelane_direct::DirectContext;
use tidelane_mem_nic::Nic;
use tidelane_netem::Rng;
use tidelane_rings::{Buffer, Cause, Context, Descriptor, Entry, Events};

use crate::{pattern::HEADER_LEN, pipe::Pipe};

/// A host's context, which the host and its streams share.
pub type Shared = Rc<RefCell<DirectContext<Nic>>>;

/// Probability in ppm that a send reuses an empty received buffer, if the stream keeps one.
const RECYCLED_PPM: u32 = 500_000;

/// Limits that a program observes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Smallest number of held bytes at which the program pauses the connection.
    pub held_max: usize,
    /// Number of free buffers that the program leaves for received data.
    pub free_min: u32,
}

/// One connection of a direct context, with the received buffers that its program holds.
pub struct DirectStream {
    context: Shared,
    descriptor: Descriptor,
    /// Received buffers that the program holds.
    held: VecDeque<Buffer>,
    /// Number of unread bytes in `held`.
    held_bytes: usize,
    limits: Limits,
    /// An empty received buffer, for reuse by the next write.
    spare: Option<Buffer>,
    /// True after the event END, which reports the peer's FIN.
    has_end: bool,
    /// Cause of the event CLOSED, as a number of `close_cause`.
    cause: Option<u32>,
    /// True after the program has closed the connection.
    is_closed: bool,
    /// True while the program has paused the connection.
    is_paused: bool,
    /// True if the most recent write stopped because no buffer was available.
    lacks_memory: bool,
    /// Longest payload of a sent buffer in bytes.
    message_max: usize,
    rng: Rng,
    /// Number of times that the program has paused the connection.
    pub pauses: u64,
}

impl DirectStream {
    /// Returns the stream of an open descriptor.
    pub fn new(context: &Shared, descriptor: Descriptor, limits: Limits, mut rng: Rng) -> Self {
        let message_max = HEADER_LEN as usize + rng.fork(1).below(1 << rng.between(4, 13)) as usize;
        Self {
            context: Rc::clone(context),
            descriptor,
            held: VecDeque::new(),
            held_bytes: 0,
            limits: Limits {
                // The program must hold the whole header before it reads.
                held_max: limits.held_max.max(HEADER_LEN as usize),
                ..limits
            },
            spare: None,
            has_end: false,
            cause: None,
            is_closed: false,
            is_paused: false,
            lacks_memory: false,
            message_max,
            rng,
            pauses: 0,
        }
    }

    /// Records the events of a ready list's entry. Returns an error if the entry breaks a rule.
    pub fn record(&mut self, entry: &Entry) -> Result<(), &'static str> {
        let has = |events| entry.events.intersects(events);
        if (self.has_end || self.cause.is_some()) && has(Events::READABLE) {
            return Err("no data follows the end");
        }
        if has(Events::END) && std::mem::replace(&mut self.has_end, true) {
            return Err("a connection has one end");
        }
        if has(Events::CLOSED) && self.cause.is_some() {
            return Err("a connection is closed once");
        }
        if has(Events::READABLE) != (entry.slots > 0) || (entry.slots > 0) != (entry.bytes > 0) {
            return Err("a readable entry has data");
        }
        self.cause = self.cause.or(entry.cause.map(number));
        Ok(())
    }

    /// Adds received data.
    pub fn push(&mut self, buffer: Buffer) {
        self.held_bytes += buffer.len();
        self.held.push_back(buffer);
    }

    /// Pauses the connection if the program holds too much data. Resumes a paused connection if the
    /// program holds less than `HEADER_LEN` unread bytes.
    pub fn balance(&mut self) -> io::Result<()> {
        let mut context = self.context.borrow_mut();
        if !self.is_paused && self.held_bytes >= self.limits.held_max {
            self.is_paused = true;
            self.pauses += 1;
            context.pause(self.descriptor);
        } else if self.is_paused && self.held_bytes < HEADER_LEN as usize {
            self.is_paused = false;
            return context.resume(self.descriptor);
        }
        Ok(())
    }

    /// Reads up to `into.len()` bytes. Keeps an emptied buffer for reuse.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let mut at = 0;
        while at < into.len()
            && let Some(buffer) = self.held.front_mut()
        {
            let count = buffer.len().min(into.len() - at);
            into[at..at + count].copy_from_slice(&buffer.payload()[..count]);
            buffer.advance(count as u32);
            at += count;
            if buffer.is_empty() {
                self.spare = self.held.pop_front();
            }
        }
        self.held_bytes -= at;
        at
    }

    /// Returns an empty buffer with headroom. Returns `None` if the context has no buffer, or if
    /// the remaining buffers are reserved for received data.
    fn allocate(&mut self) -> Option<Buffer> {
        let mut context = self.context.borrow_mut();
        let pool = context.pool();
        if pool.free_count() <= self.limits.free_min {
            return None;
        }
        let spare = self.spare.take();
        let Some(mut spare) = spare.filter(|_| self.rng.chance_ppm(RECYCLED_PPM)) else {
            return context.allocate(self.descriptor);
        };
        // The payload range of an emptied buffer starts at the end of the received data. The new
        // payload starts at the same position or in the middle of the buffer, whichever is lower,
        // so that room for data remains.
        let start = spare.range().start.min(spare.capacity() / 2);
        spare.set_payload(start..start);
        Some(spare)
    }
}

/// Converts a cause to the number that a service would report (`close_cause`).
fn number(cause: Cause) -> u32 {
    match cause {
        Cause::Reset => close_cause::RESET,
        Cause::Refused => close_cause::REFUSED,
        Cause::TimedOut => close_cause::TIMED_OUT,
        Cause::Unreachable => close_cause::HOST_UNREACHABLE,
        Cause::TooLong | Cause::Other => close_cause::ABORTED,
    }
}

impl Pipe for DirectStream {
    fn readable(&mut self) -> usize {
        self.held_bytes
    }

    fn peek(&mut self, into: &mut [u8]) -> usize {
        let bytes = self.held.iter().flat_map(Buffer::payload);
        bytes.zip(into).map(|(from, to)| *to = *from).count()
    }

    fn discard(&mut self, count: usize) -> usize {
        let mut scratch = vec![0; count];
        self.take(&mut scratch)
    }

    fn receive(&mut self, _: &mut Rng, into: &mut [u8]) -> usize {
        self.take(into)
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        self.lacks_memory = false;
        let mut at = 0;
        while at < bytes.len() {
            let Some(mut buffer) = self.allocate() else {
                self.lacks_memory = true;
                break;
            };
            // `message_max` is at least `HEADER_LEN`, so the first buffer of the connection
            // contains the whole header.
            let end = bytes.len().min(at + self.message_max);
            let count = buffer.append(&bytes[at..end]);
            let sent = self.context.borrow_mut().send(self.descriptor, buffer);
            if sent.is_err() {
                // The event WRITABLE reports when there is room again.
                break;
            }
            at += count;
        }
        at
    }

    fn lacks_memory(&mut self) -> bool {
        self.lacks_memory
    }

    fn shutdown_write(&mut self) {
        self.context.borrow_mut().shutdown(self.descriptor);
    }

    fn close(&mut self, abort: bool) {
        self.is_closed = true;
        let mut context = self.context.borrow_mut();
        match abort {
            true => context.abort(self.descriptor),
            false => context.close(self.descriptor),
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn ended(&mut self) -> Option<u32> {
        self.cause
    }

    fn fin_received(&self) -> bool {
        self.has_end
    }

    fn at_end(&mut self) -> bool {
        self.has_end && self.held_bytes == 0
    }

    fn peer_closed(&mut self) -> bool {
        self.has_end || self.cause.is_some()
    }

    /// Returns true even during the handshake. The program may close the connection at that time,
    /// because a close still sends the queued data after the handshake.
    fn established(&mut self) -> bool {
        true
    }

    /// Has no effect, because TCP_NODELAY is an option of the whole context.
    fn set_nodelay(&mut self) {}
}

impl fmt::Debug for DirectStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectStream")
            .field("descriptor", &self.descriptor)
            .field("held_bytes", &self.held_bytes)
            .field("has_end", &self.has_end)
            .field("cause", &self.cause)
            .field("is_paused", &self.is_paused)
            .finish_non_exhaustive()
    }
}
