//! The receive queue of one connection: in-order buffers, and out-of-order buffers beyond gaps.
//!
//! ```text
//!   delivered │ ready: in-order buffers │ gap │ ahead: out-of-order buffers
//!                                       next
//! ```
//!
//! A stream position counts the bytes of the stream, modulo 2^32. A buffer usually holds the
//! payload of one segment. The chain never drops data that it has accepted, and the engine
//! acknowledges or SACKs only accepted data.

use std::collections::VecDeque;

use tidelane_rings::Buffer;

/// Number of buffers of the in-order data, or of the out-of-order data, at which the chain begins
/// to copy small payloads to the tail of the preceding buffer. Without these copies, a peer that
/// sends single bytes to a paused connection would occupy a buffer per byte.
const PROMPT_BUFFERS: usize = 16;
/// Number of out-of-order buffers at which the chain accepts no further out-of-order buffer. The
/// peer retransmits the refused data.
const AHEAD_MAX: usize = 256;

/// An out-of-order buffer.
#[derive(Debug)]
struct Piece {
    /// Stream position of the first byte.
    pos: u32,
    buffer: Buffer,
}

impl Piece {
    /// Returns the stream position after the last byte.
    fn end(&self) -> u32 {
        self.pos.wrapping_add(self.buffer.len() as u32)
    }
}

/// The received data of one connection, until a ready list passes the data to the program.
#[derive(Debug, Default)]
pub struct ReceiveChain {
    /// In-order data.
    ready: VecDeque<Buffer>,
    /// Stream position after the in-order data.
    next: u32,
    /// Out-of-order data, sorted by position and without overlaps.
    ahead: VecDeque<Piece>,
}

impl ReceiveChain {
    /// Returns the stream position after the in-order data (RCV.NXT).
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Returns true if data at `pos` is in order.
    pub fn is_in_order(&self, pos: u32) -> bool {
        pos == self.next
    }

    /// Returns true if there is in-order data.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns true if the chain accepts a further buffer with data at `pos`.
    pub fn has_place(&self, pos: u32) -> bool {
        self.is_in_order(pos) || self.ahead.len() < AHEAD_MAX
    }

    /// Returns true if `len` bytes at `pos` should be appended to the preceding buffer by
    /// [`Self::append`]. `is_copied` is true if the bytes need a copy in any case.
    pub fn wants_append(&self, pos: u32, len: u32, is_copied: bool) -> bool {
        let (before, is_long) = if self.is_in_order(pos) {
            (self.ready.back(), self.ready.len() >= PROMPT_BUFFERS)
        } else {
            let before = self.ahead.iter().rfind(|piece| piece.end() == pos);
            let is_long = self.ahead.len() >= PROMPT_BUFFERS;
            (before.map(|piece| &piece.buffer), is_long)
        };
        before.is_some_and(|buffer| {
            buffer.tail_room() >= len && (is_copied || is_long && is_small(buffer, len))
        })
    }

    /// Appends `payload` to the buffer that ends at `pos`. If an out-of-order buffer already
    /// contains the whole payload, changes nothing. Returns the number of copies besides the copy
    /// of `payload`: if the payload fills a gap, small buffers after the gap are joined.
    pub fn append(&mut self, pos: u32, payload: &[u8]) -> u64 {
        let end = pos.wrapping_add(payload.len() as u32);
        if !self.make_way(pos, end) {
            return 0;
        }
        let tail = match self.is_in_order(pos) {
            true => self.ready.back_mut(),
            false => {
                let before = self.ahead.iter_mut().rfind(|piece| piece.end() == pos);
                before.map(|piece| &mut piece.buffer)
            }
        };
        let appended = tail.map_or(0, |tail| tail.append(payload));
        debug_assert_eq!(appended, payload.len(), "the caller has checked the room");
        if !self.is_in_order(pos) {
            return 0;
        }
        self.next = end;
        self.take_adjacent()
    }

    /// Inserts a buffer with data at `pos`. Returns how many payloads were copied to join small
    /// buffers.
    ///
    /// Bytes before [`Self::next`] are dropped, because the chain has already accepted them. This
    /// case can occur if a payload takes several buffers: the first buffer may fill a gap, so that
    /// `next` moves beyond the start of the second buffer.
    pub fn insert(&mut self, pos: u32, mut buffer: Buffer) -> u64 {
        let known = self.next.wrapping_sub(pos);
        let mut pos = pos;
        if known as i32 > 0 {
            buffer.advance(known.min(buffer.len() as u32));
            pos = self.next;
        }
        let end = pos.wrapping_add(buffer.len() as u32);
        if buffer.is_empty() || !self.make_way(pos, end) {
            return 0;
        }
        if self.is_in_order(pos) {
            return u64::from(self.push_ready(buffer)) + self.take_adjacent();
        }
        let distance = self.distance(pos);
        let at = self
            .ahead
            .partition_point(|piece| piece.pos.wrapping_sub(self.next) < distance);
        self.ahead.insert(at, Piece { pos, buffer });
        0
    }

    /// Removes and returns the oldest in-order buffer.
    pub fn take(&mut self) -> Option<Buffer> {
        self.ready.pop_front()
    }

    fn distance(&self, pos: u32) -> u32 {
        pos.wrapping_sub(self.next)
    }

    /// Removes the bytes from `start` to `end` from the out-of-order buffers, and returns true. If
    /// one buffer already contains all of these bytes, changes nothing and returns false.
    fn make_way(&mut self, start: u32, end: u32) -> bool {
        let (start, end) = (self.distance(start), self.distance(end));
        let mut at = 0;
        while let Some(piece) = self.ahead.get_mut(at) {
            let left = piece.pos.wrapping_sub(self.next);
            let right = piece.end().wrapping_sub(self.next);
            if left >= end {
                break;
            } else if right <= start {
                at += 1;
            } else if left <= start && end <= right {
                return false;
            } else if start <= left && right <= end {
                self.ahead.remove(at);
            } else if left < start {
                let range = piece.buffer.range();
                piece
                    .buffer
                    .set_payload(range.start..range.start + (start - left));
                at += 1;
            } else {
                piece.buffer.advance(end - left);
                piece.pos = piece.pos.wrapping_add(end - left);
                break;
            }
        }
        true
    }

    /// Moves out-of-order buffers that follow the in-order data without a gap to the in-order data.
    /// Returns the number of payloads that were copied to join small buffers.
    fn take_adjacent(&mut self) -> u64 {
        let mut copies = 0;
        while let Some(piece) = self.ahead.pop_front() {
            if piece.pos != self.next {
                self.ahead.push_front(piece);
                break;
            }
            copies += u64::from(self.push_ready(piece.buffer));
        }
        copies
    }

    /// Appends a buffer to the in-order data. Returns true if the payload was copied to the
    /// preceding buffer.
    fn push_ready(&mut self, buffer: Buffer) -> bool {
        let len = buffer.len() as u32;
        self.next = self.next.wrapping_add(len);
        if self.ready.len() >= PROMPT_BUFFERS
            && let Some(tail) = self.ready.back_mut()
            && is_small(tail, len)
            && tail.tail_room() >= len
        {
            tail.append(buffer.payload());
            return true;
        }
        self.ready.push_back(buffer);
        false
    }
}

/// Returns true if `len` is less than a quarter of the buffer's capacity.
fn is_small(buffer: &Buffer, len: u32) -> bool {
    len < buffer.capacity() / 4
}

#[cfg(test)]
mod tests;
