//! The send queue of one connection: buffers with unsent or unacknowledged data.

use std::{collections::VecDeque, ops::Range};

use crate::loans_unsafe::SentBuffer;

/// A buffer with the stream position of its first byte.
#[derive(Debug)]
struct Piece {
    pos: u32,
    buffer: SentBuffer,
}

/// The unsent and unacknowledged data of one connection.
#[derive(Debug, Default)]
pub struct SendChain {
    pieces: VecDeque<Piece>,
    /// Stream position (byte count modulo 2^32) up to which the peer has acknowledged.
    acked: u32,
    /// Stream position after the last queued byte.
    head: u32,
}

impl SendChain {
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the number of unacknowledged bytes, sent or unsent.
    pub fn bytes(&self) -> u32 {
        self.head.wrapping_sub(self.acked)
    }

    /// Returns the stream position after the last queued byte.
    pub fn head(&self) -> u32 {
        self.head
    }

    pub fn push(&mut self, buffer: SentBuffer) {
        let pos = self.head;
        self.head = pos.wrapping_add(buffer.len());
        self.pieces.push_back(Piece { pos, buffer });
    }

    /// Records that the peer has acknowledged the data up to `acked`. Removes and returns one
    /// completely acknowledged buffer. The caller repeats the call until the result is `None`.
    pub fn acknowledge(&mut self, acked: u32) -> Option<SentBuffer> {
        self.acked = acked;
        let first = self.pieces.front()?;
        let end = first.pos.wrapping_add(first.buffer.len());
        if (acked.wrapping_sub(end) as i32) < 0 {
            return None;
        }
        self.pieces.pop_front().map(|piece| piece.buffer)
    }

    /// Removes and returns the first buffer, acknowledged or not.
    pub fn take(&mut self) -> Option<SentBuffer> {
        self.pieces.pop_front().map(|piece| piece.buffer)
    }

    /// Returns the index of the piece that contains the byte at `pos`, and the byte's offset in the
    /// payload of this piece. If the chain lacks the byte, returns `None` or an offset beyond the
    /// payload.
    fn find(&self, pos: u32) -> Option<(usize, usize)> {
        let start = self.pieces.front()?.pos;
        let distance = pos.wrapping_sub(start);
        let after = self
            .pieces
            .partition_point(|piece| piece.pos.wrapping_sub(start) <= distance);
        let at = after.checked_sub(1)?;
        let offset = pos.wrapping_sub(self.pieces[at].pos) as usize;
        Some((at, offset))
    }

    /// Fills `room` with the bytes from `pos` on. Returns false if the chain lacks some of these
    /// bytes.
    pub fn copy_to(&self, pos: u32, room: &mut [u8]) -> bool {
        let Some((at, mut offset)) = self.find(pos) else {
            return room.is_empty();
        };
        let mut room = room;
        for piece in self.pieces.range(at..) {
            let bytes = piece.buffer.payload().get(offset..).unwrap_or_default();
            let count = bytes.len().min(room.len());
            let (here, rest) = room.split_at_mut(count);
            here.copy_from_slice(&bytes[..count]);
            room = rest;
            offset = 0;
            if room.is_empty() {
                break;
            }
        }
        room.is_empty()
    }

    /// Returns the buffer that contains all `len` bytes at `pos`, and their range within the
    /// buffer. The memory before the range is free for headers. Returns `None` if no single buffer
    /// contains all bytes, or if unacknowledged bytes precede them in the buffer.
    pub fn buffer_with(&mut self, pos: u32, len: u32) -> Option<(&mut SentBuffer, Range<u32>)> {
        let (at, offset) = self.find(pos)?;
        let is_after_acked = pos.wrapping_sub(self.acked) as i32 > 0;
        let piece = self.pieces.get_mut(at)?;
        let offset = offset as u32;
        if offset + len > piece.buffer.len() || offset > 0 && is_after_acked {
            return None;
        }
        let start = piece.buffer.range().start + offset;
        Some((&mut piece.buffer, start..start + len))
    }
}

#[cfg(test)]
mod tests;
