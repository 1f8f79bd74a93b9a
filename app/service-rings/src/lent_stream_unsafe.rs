//! [`LentStream`]: a connection whose stream buffers lie in memory that the program shares with the
//! service (the process `tidelaned`). The connection lends parts of these buffers to the program as
//! [`Buffer`]s, without copies. A reserved part is lent to the program for writing. Committed bytes
//! are complete, and become published when the service may read them.
//!
//! ```text
//! received:  | lent, returned | lent | lent, returned | unread |
//!            ^ read position: advances over returned parts only, in stream order
//! to send:   | published | committed | reserved | reserved | free |
//!                                    ^ write position: advances over a part that is sent in order
//! ```
//!
//! A buffer keeps the stream, and so the mapping of its memory, alive. The connection keeps its
//! slot (its record in the shared memory) until all parts are returned, because the service reuses
//! the memory once the slot is free.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use tidelane_abi::BufferWord;
use tidelane_client::{Context, Run, Stream};
use tidelane_rings::{Buffer, Lender, Loan};

/// Bit that the number of a lent part has if the part is in a send buffer. The bit is clear if the
/// part is in a receive buffer.
const TO_SEND: u32 = 1 << 31;

/// A lent part of the receive buffer.
#[derive(Clone, Copy, Debug)]
struct ReceivedPart {
    /// Length in bytes.
    len: u32,
    /// Identifies the receive buffer that contains the part.
    word: BufferWord,
    is_returned: bool,
}

/// The lent parts of the receive buffers, in stream order. A returned part stays in the list until
/// all earlier parts are returned.
#[derive(Debug, Default)]
struct ReceivedParts {
    parts: VecDeque<ReceivedPart>,
    /// Number of the first part. The parts are numbered in stream order.
    first: u32,
    /// Number of bytes in all parts, starting at the read position.
    bytes: u32,
}

/// A part of the send buffer that is lent to the program for writing.
#[derive(Clone, Copy, Debug)]
struct ReservedPart {
    /// Number of the part, with the bit [`TO_SEND`].
    number: u32,
    /// Stream position of the first byte.
    position: u32,
    /// Length in bytes.
    len: u32,
    /// Identifies the send buffer that contains the part.
    word: BufferWord,
}

/// Keys (descriptor numbers) of the streams to which the program has returned parts. The context
/// reads the list.
#[derive(Debug, Default)]
pub struct Returned(RefCell<Vec<u32>>);

impl Returned {
    /// Exchanges the list of keys for `empty`, an empty list.
    pub fn swap(&self, empty: &mut Vec<u32>) {
        std::mem::swap(empty, &mut *self.0.borrow_mut());
    }
}

/// A stream that lends parts of its buffers to the program.
#[derive(Debug)]
pub struct LentStream {
    stream: RefCell<Stream>,
    received: RefCell<ReceivedParts>,
    reserved: RefCell<Vec<ReservedPart>>,
    /// Number for the next reserved part, without the bit [`TO_SEND`].
    next_reserved: Cell<u32>,
    /// Key of this stream in `returned`.
    key: u32,
    returned: Rc<Returned>,
    /// True if the stream has added `key` to `returned` since the last [`Self::collect`].
    is_in_returned: Cell<bool>,
}

impl LentStream {
    /// Wraps `stream` to lend its parts. The stream adds `key` to `returned` when the program
    /// returns a part.
    pub fn new(mut stream: Stream, key: u32, returned: &Rc<Returned>) -> Rc<Self> {
        stream.begin_in_place();
        Rc::new(Self {
            stream: RefCell::new(stream),
            received: RefCell::default(),
            reserved: RefCell::default(),
            next_reserved: Cell::new(0),
            key,
            returned: returned.clone(),
            is_in_returned: Cell::new(false),
        })
    }

    /// Returns the slot of the connection.
    pub fn slot(&self) -> u32 {
        self.stream.borrow().slot()
    }

    /// Returns true if the TCP handshake is complete.
    pub fn is_established(&self) -> bool {
        self.stream.borrow().established()
    }

    /// Returns the [`tidelane_abi::close_cause`] if the connection has ended, or else `None`.
    pub fn cause(&self) -> Option<u32> {
        self.stream.borrow().closed()
    }

    /// Returns true if the peer has closed its sending direction or the connection has ended.
    pub fn is_peer_closed(&self) -> bool {
        self.stream.borrow().peer_closed()
    }

    /// Returns true if the program holds parts of the stream's buffers.
    pub fn is_lent(&self) -> bool {
        !self.received.borrow().parts.is_empty() || !self.reserved.borrow().is_empty()
    }

    /// Lends the next received bytes, at most `len_max`. Returns `None` if there are no received
    /// bytes beyond the lent bytes.
    pub fn receive(self: &Rc<Self>, len_max: u32) -> Option<Buffer> {
        let mut received = self.received.borrow_mut();
        let mut stream = self.stream.borrow_mut();
        let from = stream.read_position().wrapping_add(received.bytes);
        let mut run = stream.received_run(from)?;
        run.len = run.len.min(len_max);
        let number = received.first.wrapping_add(received.parts.len() as u32) & !TO_SEND;
        if received.parts.is_empty() {
            // The program holds no byte of an earlier receive buffer.
            stream.confirm_rx_buffer();
        }
        received.parts.push_back(ReceivedPart {
            len: run.len,
            word: stream.rx_word(),
            is_returned: false,
        });
        received.bytes += run.len;
        drop((received, stream));
        // SAFETY: the stream keeps the mapping, and `self` keeps the stream. The bytes are received
        // and unread. This process trusts the service not to write to the bytes until the read
        // position passes them, until the program confirms another receive buffer, or until the
        // slot is closed. All three wait for the return of this part (`collect`, `close`). No other
        // code of this process writes received bytes.
        Some(unsafe { self.lend(number, run, false) })
    }

    /// Lends up to `wanted` bytes of room to send. Returns `None` if the stream cannot send, if
    /// there is no memory, or if there is too little room. The room is too little if it is zero, or
    /// less than each of `wanted`, `least` and a quarter of the limit of unacknowledged bytes.
    pub fn allocate(self: &Rc<Self>, wanted: u32, least: u32) -> Option<Buffer> {
        let mut reserved = self.reserved.borrow_mut();
        let mut stream = self.stream.borrow_mut();
        let word = stream.tx_word();
        let mut after = reserved_end(&reserved, &stream);
        let least = least.min(stream.tx_limit() / 4);
        // Keep a send buffer while the program holds a part of it, even if `reserve` replaces the
        // buffer.
        stream.set_room_lent(true);
        let mut run = stream.reserve(after, wanted, least);
        if run.is_some() && stream.tx_word() != word && after > 0 {
            // The send buffer was replaced, and no part of the new send buffer is lent.
            after = 0;
            run = stream.reserve(0, wanted, least);
        }
        stream.set_room_lent(run.is_some() || !reserved.is_empty());
        let run = run?;
        let number = TO_SEND | self.next_reserved.get();
        self.next_reserved.set(number.wrapping_add(1) & !TO_SEND);
        reserved.push(ReservedPart {
            number,
            position: stream.write_position().wrapping_add(after),
            len: run.len,
            word: stream.tx_word(),
        });
        drop((reserved, stream));
        // SAFETY: the stream keeps the mapping, and `self` keeps the stream. Shared memory is
        // initialized. In the circular send buffer, the part begins after the written bytes and
        // after all parts of this buffer, and ends before the unacknowledged bytes, so that no
        // other part has its bytes. Neither the service nor the stream reads bytes after the write
        // position. `send` writes no byte that another part has. The buffer is not freed while a
        // part is lent (`set_room_lent`, `close`).
        let mut buffer = unsafe { self.lend(number, run, true) };
        buffer.set_payload(0..0);
        Some(buffer)
    }

    /// Makes a buffer of a part of the stream's memory.
    ///
    /// # Safety
    ///
    /// The contract of [`Buffer::lend`].
    unsafe fn lend(self: &Rc<Self>, number: u32, run: Run, is_writable: bool) -> Buffer {
        let loan = Loan {
            number,
            start: run.start,
            len: run.len,
            is_writable,
        };
        // SAFETY: the caller fulfils the contract of `Buffer::lend`.
        unsafe { Buffer::lend(self.clone(), loan) }
    }

    /// Appends as much of a payload to the written bytes as there is room for. Returns a buffer
    /// with the rest, or `None` if there is no rest. A payload that already lies at the write
    /// position is committed in place. Any other payload is copied: twice if the payload lies in a
    /// part of this stream's send buffers, or else once. `copies` counts the copies.
    pub fn send(self: &Rc<Self>, mut buffer: Buffer, copies: &mut u64) -> Option<Buffer> {
        let mut stream = self.stream.borrow_mut();
        if buffer.is_lent_by(self) {
            if self.commit(&mut stream, &buffer) {
                let _ = buffer.into_index();
                return None;
            }
            if stream.writable() == 0 {
                return Some(buffer);
            }
            // The destination of the copy may overlap the payload, so copy the payload first.
            buffer.detach();
            *copies += 1;
        }
        let count = buffer.len().min(stream.writable());
        if count == 0 || !self.clear_way(&mut stream, count as u32) {
            return Some(buffer);
        }
        let count = stream.write_unpublished(&buffer.payload()[..count]);
        *copies += u64::from(count > 0);
        buffer.advance(count as u32);
        (!buffer.is_empty()).then_some(buffer)
    }

    /// Commits a payload in place. Returns false if the payload does not begin at the write
    /// position.
    fn commit(&self, stream: &mut Stream, buffer: &Buffer) -> bool {
        let mut reserved = self.reserved.borrow_mut();
        let found = reserved
            .iter()
            .position(|part| part.number == buffer.index());
        let Some(at) = found else { return false };
        let part = reserved[at];
        let start = part.position.wrapping_add(buffer.range().start);
        let is_next = part.word == stream.tx_word() && start == stream.write_position();
        if is_next {
            reserved.swap_remove(at);
            stream.set_room_lent(!reserved.is_empty());
            stream.commit(buffer.len() as u32);
        }
        is_next
    }

    /// Ensures that no lent part overlaps the next `count` bytes of room. If a part does, moves the
    /// stream to another send buffer. Returns false if there is no memory for this buffer.
    fn clear_way(&self, stream: &mut Stream, count: u32) -> bool {
        let (word, written) = (stream.tx_word(), stream.write_position());
        let reserved = self.reserved.borrow();
        let mut parts = reserved.iter().filter(|part| part.word == word);
        if !parts.any(|part| part.position.wrapping_sub(written) < count) {
            return true;
        }
        // The program keeps its parts of the old send buffer. `send` copies their payload.
        stream.replace_send_buffer()
    }

    /// Returns true if the room is enough for [`Self::allocate`] with this `least`. Does not check
    /// whether there is memory.
    pub fn has_room(&self, least: u32) -> bool {
        let mut stream = self.stream.borrow_mut();
        let reserved = reserved_end(&self.reserved.borrow(), &stream);
        let least = least.min(stream.tx_limit() / 4).max(1);
        (stream.writable() as u32).saturating_sub(reserved) >= least
    }

    /// Publishes the written bytes. [`Self::submit`] notifies the service.
    pub fn publish(&self) {
        self.stream.borrow_mut().publish();
    }

    /// Queues a request for the service if the stream has changed.
    pub fn submit(&self, context: &mut Context) {
        context.submit(&mut self.stream.borrow_mut());
    }

    /// Frees the send buffer of an idle stream. Returns true if the stream has no send buffer.
    pub fn trim(&self) -> bool {
        self.stream.borrow_mut().trim()
    }

    /// Closes the sending direction after the written bytes.
    pub fn shut_down(&self) {
        self.stream.borrow_mut().shutdown_write();
    }

    /// Closes the connection after the written bytes, or resets the connection if `abort` is true.
    /// Returns false if the program still holds parts. The connection then keeps its slot until a
    /// later call returns true.
    pub fn close(&self, abort: bool) -> bool {
        let mut stream = self.stream.borrow_mut();
        match (self.is_lent(), abort) {
            (true, true) => stream.reset(),
            (true, false) => stream.shutdown_write(),
            (false, _) => stream.close(abort, None),
        }
        !self.is_lent()
    }

    /// Processes the returned parts. Frees the space of received bytes in stream order.
    pub fn collect(&self) {
        self.is_in_returned.set(false);
        let mut received = self.received.borrow_mut();
        let mut stream = self.stream.borrow_mut();
        let mut freed = 0;
        while let Some(part) = received.parts.front().filter(|part| part.is_returned) {
            freed += part.len;
            received.parts.pop_front();
            received.first = received.first.wrapping_add(1) & !TO_SEND;
        }
        received.bytes -= freed;
        let discarded = stream.discard(freed as usize);
        debug_assert_eq!(discarded, freed as usize, "lent bytes are unread");
        let word = stream.rx_word();
        if received.parts.front().is_none_or(|part| part.word == word) {
            stream.confirm_rx_buffer();
        }
        stream.set_room_lent(!self.reserved.borrow().is_empty());
    }
}

/// Returns the number of bytes from the write position to the end of the last reserved part in the
/// present send buffer.
fn reserved_end(reserved: &[ReservedPart], stream: &Stream) -> u32 {
    let (word, written) = (stream.tx_word(), stream.write_position());
    let ends = reserved.iter().filter(|part| part.word == word);
    let ends = ends.map(|part| part.position.wrapping_sub(written) + part.len);
    ends.max().unwrap_or(0)
}

impl Lender for LentStream {
    fn reclaim(&self, number: u32) {
        if number & TO_SEND == 0 {
            let mut received = self.received.borrow_mut();
            let at = number.wrapping_sub(received.first) & !TO_SEND;
            if let Some(part) = received.parts.get_mut(at as usize) {
                part.is_returned = true;
            }
        } else {
            let mut reserved = self.reserved.borrow_mut();
            reserved.retain(|part| part.number != number);
        }
        if !self.is_in_returned.replace(true) {
            self.returned.0.borrow_mut().push(self.key);
        }
    }
}
