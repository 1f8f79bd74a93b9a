//! The receive side of a stream. The service (the process `tidelaned`) writes received bytes to a
//! circular buffer in shared memory. The service replaces the buffer by larger buffers on demand.

use std::{
    io::IoSliceMut,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use tidelane_abi::{BufferWord, buffer_word};
use tidelane_ring::StreamBuffer;

use super::Stream;

impl Stream {
    /// Returns the number of bytes that `read` can return.
    #[inline]
    pub fn readable(&mut self) -> usize {
        self.refresh_rx();
        self.rx_head.wrapping_sub(self.rx_read) as usize
    }

    /// Moves received bytes to `into`, and returns the number of bytes. After a result of 0, call
    /// `at_end` to find out whether the stream is at the end of file.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        let count = self.peek(into);
        self.consume(count);
        count
    }

    /// Does the same as [`read`](Self::read), into several buffers (readv).
    pub fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        let mut total = 0;
        for buffer in into {
            let count = self.copy_out(total as u32, buffer);
            total += count;
            if count < buffer.len() {
                break;
            }
        }
        self.consume(total);
        total
    }

    /// Copies received bytes without consuming them, and returns their number (MSG_PEEK).
    #[inline]
    pub fn peek(&mut self, into: &mut [u8]) -> usize {
        self.copy_out(0, into)
    }

    /// Consumes up to `count` received bytes without copying them. Returns the number of consumed
    /// bytes.
    pub fn discard(&mut self, count: usize) -> usize {
        let count = count.min(self.readable());
        self.consume(count);
        count
    }

    /// Copies readable bytes that begin `skip` bytes after the read position, without consuming
    /// them. Returns the number of copied bytes.
    #[inline]
    pub(super) fn copy_out(&mut self, skip: u32, into: &mut [u8]) -> usize {
        // Bytes before the known `rx_head` need no refresh, because the present buffer stays valid
        // until the stream loads a new buffer.
        if (self.rx_head.wrapping_sub(self.rx_read) as usize) < skip as usize + into.len() {
            self.refresh_rx();
        }
        let available = self.rx_head.wrapping_sub(self.rx_read).saturating_sub(skip) as usize;
        let count = available.min(into.len());
        let Some(buffer) = self.rx_buffer.filter(|_| count > 0) else {
            return 0;
        };
        let pos = self.rx_read.wrapping_add(skip);
        if !buffer.read(self.shared.region(), pos, &mut into[..count]) {
            return 0;
        }
        count
    }

    /// Advances the read position by `count` bytes. If the program has read a quarter of the
    /// receive window since the last announcement, lets the next `Context::submit` announce the
    /// read position to the service.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.rx_read = self.rx_read.wrapping_add(count as u32);
        let view = self.shared.view();
        view.program().rx_read.store(self.rx_read, Release);
        let unannounced = self.rx_read.wrapping_sub(self.rx_announced);
        if unannounced >= view.service().rx_window.load(Relaxed) / 4 {
            self.due = true;
        }
    }

    /// Loads `rx_head` and then the receive buffer, because the service stores the buffer first.
    #[inline]
    pub(super) fn refresh_rx(&mut self) {
        let view = self.shared.view();
        let head = view.service().rx_head.load(Acquire);
        let word = view.service().rx_buffer.load(Acquire);
        if word != self.rx_word {
            return self.refresh_rx_slow(head, word);
        }
        self.adopt_rx_head(head);
    }

    /// Sets the stream's `rx_head` to `head`, if `head` is in range.
    #[inline]
    pub(super) fn adopt_rx_head(&mut self, head: u32) {
        let readable = head.wrapping_sub(self.rx_read);
        // `head` is out of range in two cases: more bytes would be readable than the buffer can
        // hold, or `head` is before the present `rx_head`.
        let new = head.wrapping_sub(self.rx_head);
        if readable <= self.rx_buffer.map_or(0, StreamBuffer::len) && new <= readable {
            self.rx_head = head;
        }
    }

    /// Does the work of [`refresh_rx`](Self::refresh_rx) if the service has set a new buffer, or
    /// the flag URGENT in the buffer's word. With the flag, the readable bytes may end at the
    /// urgent mark, which is the position of the urgent byte (module `urgent`).
    #[cold]
    fn refresh_rx_slow(&mut self, head: u32, word: BufferWord) {
        let plain = word & !buffer_word::URGENT;
        if plain != self.rx_word {
            self.adopt_rx_buffer(plain);
        }
        let end = if plain == word {
            head
        } else {
            self.clamp_to_mark(head)
        };
        self.adopt_rx_head(end);
    }

    /// Replaces the receive buffer, if the new buffer can hold the unread bytes.
    #[cold]
    fn adopt_rx_buffer(&mut self, word: BufferWord) {
        let area = self.shared.region().layout().rx_area();
        let buffer = StreamBuffer::from_word(word, area);
        let unread = self.rx_head.wrapping_sub(self.rx_read);
        if buffer.map_or(0, StreamBuffer::len) < unread {
            // A correct service does not set a buffer that is too small for the unread bytes.
            return;
        }
        self.rx_word = word;
        self.rx_buffer = buffer;
        if self.confirms_rx {
            self.rx_word_seen = word;
            let view = self.shared.view();
            view.program().rx_buffer_seen.store(word, Release);
        }
    }
}
