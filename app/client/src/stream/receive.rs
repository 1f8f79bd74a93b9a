//! The receiving side, whose bytes are in a buffer of the service.

use std::{
    io::IoSliceMut,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use tidelane_abi::{BufferWord, buffer_word};
use tidelane_ring::StreamBuffer;

use super::Stream;

impl Stream {
    /// The number of bytes that `read` would return now.
    #[inline]
    pub fn readable(&mut self) -> usize {
        self.refresh_rx();
        self.rx_head.wrapping_sub(self.rx_read) as usize
    }

    /// Moves received bytes to `into` and returns their number. 0 with `at_end` is the end of file.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        let count = self.peek(into);
        self.consume(count);
        count
    }

    /// `read` into several buffers.
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

    /// Copies received bytes without consuming them.
    #[inline]
    pub fn peek(&mut self, into: &mut [u8]) -> usize {
        self.copy_out(0, into)
    }

    /// Consumes up to `count` received bytes without copying them. Returns their number.
    pub fn discard(&mut self, count: usize) -> usize {
        let count = count.min(self.readable());
        self.consume(count);
        count
    }

    /// Copies readable bytes after the first `skip` bytes.
    #[inline]
    pub(super) fn copy_out(&mut self, skip: u32, into: &mut [u8]) -> usize {
        // The buffer that was loaded with `rx_head` stays valid until its successor is loaded.
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

    /// Advances the read position by `count` bytes. The change is due for submission after a
    /// quarter of the receive window.
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

    /// Loads `rx_head`, then the buffer that it refers to.
    #[inline]
    pub(super) fn refresh_rx(&mut self) {
        let view = self.shared.view();
        let head = view.service().rx_head.load(Acquire);
        let word = view.service().rx_buffer.load(Acquire);
        if word != self.rx_word {
            return self.refresh_rx_marked(head, word);
        }
        self.adopt_rx_head(head);
    }

    /// Adopts the end of the received bytes, if it is a possible value.
    #[inline]
    pub(super) fn adopt_rx_head(&mut self, head: u32) {
        let readable = head.wrapping_sub(self.rx_read);
        // An impossible value is ignored: more readable bytes than the buffer holds, or fewer than
        // before.
        let new = head.wrapping_sub(self.rx_head);
        if readable <= self.rx_buffer.map_or(0, StreamBuffer::len) && new <= readable {
            self.rx_head = head;
        }
    }

    /// [`refresh_rx`](Self::refresh_rx) with a new buffer, or with urgent data in it, at which
    /// reading stops for now.
    #[cold]
    fn refresh_rx_marked(&mut self, head: u32, word: BufferWord) {
        let plain = word & !buffer_word::URGENT;
        if plain != self.rx_word {
            self.adopt_rx_buffer(plain);
        }
        let end = if plain == word {
            head
        } else {
            self.before_mark(head)
        };
        self.adopt_rx_head(end);
    }

    /// Adopts a new receive buffer, if it can hold the unread bytes.
    #[cold]
    fn adopt_rx_buffer(&mut self, word: BufferWord) {
        let area = self.shared.region().layout().rx_area();
        let buffer = StreamBuffer::from_word(word, area);
        let unread = self.rx_head.wrapping_sub(self.rx_read);
        if buffer.map_or(0, StreamBuffer::len) < unread {
            // Impossible: the buffer cannot hold the bytes that are known to be unread.
            return;
        }
        self.rx_word = word;
        self.rx_buffer = buffer;
        self.shared
            .view()
            .program()
            .rx_buffer_seen
            .store(word, Release);
    }
}
