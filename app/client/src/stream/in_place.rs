//! Access to the bytes of a stream in place, for programs that read and write without copies. The
//! bytes are in memory that the program shares with the service (the process `tidelaned`).
//!
//! The caller of this module lends parts of the stream buffers to its program, which reads or
//! writes them directly. While a part is lent, its memory must not be reused:
//!
//! * **Received bytes** stay unread, so that the service does not overwrite them. The service frees
//!   a replaced receive buffer when the stream confirms the new buffer. After
//!   [`Stream::begin_in_place`], the stream therefore confirms a new buffer only when the caller
//!   calls [`Stream::confirm_rx_buffer`].
//! * **Room to send** is not freed between the calls `set_room_lent(true)` and
//!   `set_room_lent(false)`. The service reads only published bytes.
//!
//! ```text
//!         tx_acked         published       tx_head            end of the room
//! send:   | the service reads | written, see | reserved parts |
//!         | these bytes       | `publish`    | (`reserve`)    |
//! ```

use std::{ptr::NonNull, sync::atomic::Ordering::Release};

use tidelane_abi::{BufferWord, program_flags, service_flags};
use tidelane_ring::StreamBuffer;

use super::Stream;

/// A contiguous part of a circular stream buffer, in the memory that program and service share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Start of the part. The memory lives as long as the stream.
    pub start: NonNull<u8>,
    /// Length in bytes.
    pub len: u32,
}

impl Stream {
    /// Makes the caller responsible for calling [`Self::confirm_rx_buffer`].
    pub fn begin_in_place(&mut self) {
        self.confirms_rx = false;
    }

    /// Returns the position up to which the program has read.
    pub fn read_position(&self) -> u32 {
        self.rx_read
    }

    /// Returns the received bytes from position `from` on, at most up to the end of the buffer's
    /// memory. Returns `None` if `from` is not the position of an unread byte.
    pub fn received_run(&mut self, from: u32) -> Option<Run> {
        self.refresh_rx();
        let skip = from.wrapping_sub(self.rx_read);
        let len = self.rx_head.wrapping_sub(self.rx_read).checked_sub(skip)?;
        self.run(self.rx_buffer?, from, len)
    }

    /// Returns the word (offset and size) of the receive buffer to which [`Self::received_run`]
    /// refers.
    pub fn rx_word(&self) -> BufferWord {
        self.rx_word
    }

    /// Tells the service that no byte of an earlier receive buffer is lent, so that the service can
    /// free the earlier buffers. Does nothing if the stream has already confirmed the buffer.
    pub fn confirm_rx_buffer(&mut self) {
        if self.rx_word_seen != self.rx_word {
            self.rx_word_seen = self.rx_word;
            let program = self.shared.view();
            program
                .program()
                .rx_buffer_seen
                .store(self.rx_word, Release);
            self.due = true;
        }
    }

    /// Records whether parts of the room to send are lent. While parts are lent, the stream frees
    /// no send buffer. The caller closes the stream only after the return of all parts.
    pub fn set_room_lent(&mut self, is_lent: bool) {
        self.room_lent = is_lent;
    }

    /// Returns the position of the next byte to write.
    pub fn write_position(&self) -> u32 {
        self.tx_head
    }

    /// Returns the word (offset and size) of the send buffer to which [`Self::reserve`] refers.
    /// While a part of the buffer is lent, no other buffer has this word.
    pub fn tx_word(&self) -> BufferWord {
        self.tx_buffer.map_or(0, StreamBuffer::to_word)
    }

    /// Returns up to `wanted` bytes of room, at most up to the end of the buffer's memory. The room
    /// begins `after` bytes beyond the next byte to write. Returns `None` if the limit of
    /// unacknowledged bytes leaves no room, or less room than the smaller of `least` and `wanted`.
    /// Also returns `None` if there is no memory, or if the stream cannot send.
    pub fn reserve(&mut self, after: u32, wanted: u32, least: u32) -> Option<Run> {
        let shut = self.flags & (program_flags::SHUT_WRITE | program_flags::CLOSE) != 0;
        if shut || self.service_flags() & service_flags::CLOSED != 0 {
            return None;
        }
        self.refresh_tx();
        let used = self
            .tx_head
            .wrapping_sub(self.tx_acked)
            .checked_add(after)?;
        let room = self.tx_limit.saturating_sub(used).min(wanted);
        if room == 0 || room < least.min(wanted) {
            return None;
        }
        if used + room > self.tx_buffer.map_or(0, StreamBuffer::len) {
            self.grow(used + room);
        }
        let buffer = self.tx_buffer?;
        let room = room.min(buffer.len().saturating_sub(used));
        self.run(buffer, self.tx_head.wrapping_add(after), room)
    }

    /// Moves the unacknowledged bytes to another send buffer, whose room has no lent parts. The old
    /// buffer is not freed while parts of it are lent. Returns false if there is no memory.
    pub fn replace_send_buffer(&mut self) -> bool {
        let before = self.tx_word();
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let log2 = self.tx_buffer.map_or(0, |buffer| buffer.log2);
        self.grow_from(unacked.max(1), log2);
        self.tx_word() != before
    }

    /// Counts `len` reserved bytes as written, without publishing them. The bytes begin at
    /// [`Self::write_position`].
    ///
    /// # Panics
    ///
    /// Panics if the send buffer has room for fewer bytes.
    pub fn commit(&mut self, len: u32) {
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let capacity = self.tx_buffer.map_or(0, StreamBuffer::len);
        assert!(len <= capacity - unacked, "more bytes than room");
        self.tx_head = self.tx_head.wrapping_add(len);
    }

    /// Appends `from` to the written bytes, as far as there is room, without publishing the bytes.
    /// Returns the number of appended bytes.
    pub fn write_unpublished(&mut self, from: &[u8]) -> usize {
        let count = self.copy_in(from);
        self.tx_head = self.tx_head.wrapping_add(count as u32);
        count
    }

    /// Publishes the written bytes: the service may read and send them from now on.
    pub fn publish(&mut self) {
        let view = self.shared.view();
        view.program().tx_head.store(self.tx_head, Release);
        self.due = true;
    }

    /// Resets the connection, and keeps the slot and its buffers until [`Self::close`].
    pub fn reset(&mut self) {
        self.set_flag(program_flags::ABORT);
    }

    /// Returns the contiguous part of `buffer` from position `from` on, with up to `len` bytes.
    /// Returns `None` for an empty part.
    fn run(&self, buffer: StreamBuffer, from: u32, len: u32) -> Option<Run> {
        let (offset, len) = buffer.part(from, len)?;
        let start = self.shared.region().address(offset, len as usize)?;
        Some(Run { start, len })
    }
}
