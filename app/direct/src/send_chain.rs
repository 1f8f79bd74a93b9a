//! Data to send of one connection: buffers, until the peer has acknowledged their bytes.

use std::{collections::VecDeque, ops::Range};

use crate::loans_unsafe::SentBuffer;

/// A buffer, and the stream position of its first byte.
#[derive(Debug)]
struct Piece {
    pos: u32,
    buffer: SentBuffer,
}

/// The data of one connection that the peer has not acknowledged.
#[derive(Debug, Default)]
pub struct SendChain {
    pieces: VecDeque<Piece>,
    /// Stream position up to which the peer has acknowledged the data.
    acked: u32,
    /// Stream position after the last byte.
    head: u32,
}

impl SendChain {
    /// Returns the number of buffers.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the number of bytes that are not acknowledged.
    pub fn bytes(&self) -> u32 {
        self.head.wrapping_sub(self.acked)
    }

    /// Returns the stream position after the last byte.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Adds data.
    pub fn push(&mut self, buffer: SentBuffer) {
        let pos = self.head;
        self.head = pos.wrapping_add(buffer.len());
        self.pieces.push_back(Piece { pos, buffer });
    }

    /// Sets the position up to which the peer has acknowledged the data. Returns the next buffer
    /// all of whose bytes are acknowledged, until there is none.
    pub fn acknowledge(&mut self, acked: u32) -> Option<SentBuffer> {
        self.acked = acked;
        let first = self.pieces.front()?;
        let end = first.pos.wrapping_add(first.buffer.len());
        if (acked.wrapping_sub(end) as i32) < 0 {
            return None;
        }
        self.pieces.pop_front().map(|piece| piece.buffer)
    }

    /// Takes the next buffer, whether it is acknowledged or not.
    pub fn take(&mut self) -> Option<SentBuffer> {
        self.pieces.pop_front().map(|piece| piece.buffer)
    }

    /// Returns the number of the piece that has the byte at `pos`, and the offset of the byte in
    /// the payload of this piece.
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

    /// Copies the bytes at `pos` to all of `room`. Returns false if the chain does not have them.
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

    /// Returns the buffer that has all of the `len` bytes at `pos`, and the range of these bytes
    /// within the buffer. Returns `None` if the bytes lie in several buffers, or if the buffer has
    /// unacknowledged bytes before them. The memory before the bytes is free for headers.
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
