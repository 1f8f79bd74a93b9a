//! Urgent data: the urgent mark, at which reading stops, and the urgent byte behind it.
//!
//! As in Linux one byte is urgent, the last one of the peer's urgent data. `read` returns the bytes
//! before the mark. At the mark there are two cases. With SO_OOBINLINE, the urgent byte is the next
//! byte. Without SO_OOBINLINE, `read` returns nothing until `pass_mark` skips the byte;
//! `urgent_byte` returns the byte as soon as it has arrived.
//!
//! A stream without urgent data pays nothing for it: the service sets a flag in the word of the
//! receive buffer, and only then the mark is loaded.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tidelane_abi::{SlotOptions, service_flags, urgent_state};

use super::Stream;

/// The urgent data of a stream.
#[derive(Debug)]
pub(super) struct Urgent {
    /// The mark as last loaded. It may be before the read position.
    mark: Option<Mark>,
    /// SO_OOBINLINE: the urgent byte is part of the stream.
    inline: bool,
    /// The last mark that was reported to the service as passed.
    reported: Option<u32>,
    /// Number of urgent bytes that were skipped.
    skipped: u32,
    /// [`SlotOptions::tx_urgents`].
    written: u32,
}

/// An urgent mark: the position of an urgent byte, and the byte after it has arrived.
#[derive(Clone, Copy, Debug)]
struct Mark {
    pos: u32,
    byte: Option<u8>,
    /// True after the program has read the byte with `take_urgent_byte`.
    taken: bool,
}

/// The state of the urgent byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UrgentByte {
    /// No byte was announced, or it was taken, or the stream was read beyond it.
    None,
    /// The byte was announced and has not arrived.
    Announced,
    /// The byte has arrived.
    Arrived(u8),
}

impl Urgent {
    /// The state of a new connection.
    pub(super) fn of(options: &SlotOptions) -> Self {
        Self {
            mark: None,
            inline: true,
            reported: None,
            skipped: 0,
            written: options.tx_urgents.load(Relaxed),
        }
    }
}

impl Stream {
    /// Sets SO_OOBINLINE, which is on for a new stream.
    pub fn set_urgent_inline(&mut self, inline: bool) {
        self.urgent.inline = inline;
        // The readable bytes were computed for the previous setting.
        self.rx_head = self.rx_read;
    }

    /// Like [`write`](Self::write), with the last byte urgent.
    pub fn write_urgent(&mut self, from: &[u8]) -> usize {
        let count = self.copy_in(from);
        self.mark_written(count);
        self.publish_tx(count);
        count
    }

    /// Announces that the next `count` bytes end with an urgent byte. Must be called before the
    /// bytes are published.
    fn mark_written(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.urgent.written = self.urgent.written.wrapping_add(1);
        let up = self.tx_head.wrapping_add(count as u32);
        let options = self.shared.view().options();
        options.tx_urgent.store(up, Relaxed);
        options.tx_urgents.store(self.urgent.written, Release);
        self.note_options();
    }

    /// The mark at or after the read position.
    fn mark(&mut self) -> Option<Mark> {
        if self.service_flags() & service_flags::URGENT == 0 && self.urgent.mark.is_none() {
            return None;
        }
        self.mark_now()
    }

    fn mark_now(&mut self) -> Option<Mark> {
        self.load_mark();
        let at = self.rx_read;
        let ahead = |mark: &Mark| mark.pos.wrapping_sub(at) as i32 >= 0;
        self.urgent.mark = self.urgent.mark.filter(ahead);
        self.urgent.mark
    }

    /// Loads the urgent mark from the slot.
    fn load_mark(&mut self) {
        let half = self.shared.view();
        let word = half.service().urgent.load(Acquire);
        let before = half.service().urgent_before.load(Relaxed);
        let (pos, state) = ((word >> 32) as u32, (word >> 8) as u8);
        if state != urgent_state::ANNOUNCED && state != urgent_state::ARRIVED {
            return;
        }
        let byte = (state == urgent_state::ARRIVED).then_some(word as u8);
        let known = self.urgent.mark.filter(|mark| mark.pos == pos);
        let taken = known.is_some_and(|mark| mark.taken);
        let is_ahead = (pos.wrapping_sub(self.rx_read) as i32) >= 0;
        if known.is_none() && !is_ahead {
            return self.report_passed(pos);
        }
        self.urgent.mark = Some(Mark { pos, byte, taken });
        if known.is_none() && before != pos && before == self.rx_read {
            self.skip_old_mark();
        }
    }

    /// Tells the service that the stream was read beyond the mark at `pos`.
    fn report_passed(&mut self, pos: u32) {
        if self.urgent.reported != Some(pos) {
            self.urgent.reported = Some(pos);
            self.note_options();
        }
    }

    /// Skips an urgent byte at the read position after another byte became urgent, as in Linux.
    fn skip_old_mark(&mut self) {
        let came = self.received_head() != self.rx_read;
        if came && !self.urgent.inline {
            self.skip_urgent_byte();
        }
    }

    fn skip_urgent_byte(&mut self) {
        self.rx_head = self.rx_read.wrapping_add(1);
        self.consume(1);
        self.urgent.skipped = self.urgent.skipped.wrapping_add(1);
    }

    /// The number of urgent bytes that were received and skipped.
    #[inline]
    pub fn skipped(&self) -> u32 {
        self.urgent.skipped
    }

    /// The service's `rx_head`, regardless of marks. An impossible value is replaced by the
    /// stream's own.
    fn received_head(&mut self) -> u32 {
        self.refresh_rx();
        let head = self.shared.view().service().rx_head.load(Acquire);
        let capacity = self.rx_buffer.map_or(0, tidelane_ring::StreamBuffer::len);
        if head.wrapping_sub(self.rx_read) <= capacity {
            head
        } else {
            self.rx_head
        }
    }

    /// The position up to which bytes can be read, if bytes have arrived up to `head`.
    pub(super) fn before_mark(&mut self, head: u32) -> u32 {
        let inline = self.urgent.inline;
        let Some(mark) = self.mark_now() else {
            return head;
        };
        let ahead = mark.pos.wrapping_sub(self.rx_read);
        let unread = head.wrapping_sub(self.rx_read);
        if unread <= ahead || inline && ahead == 0 {
            head
        } else {
            mark.pos
        }
    }

    /// Returns true if the urgent byte is the next byte (SIOCATMARK).
    pub fn at_mark(&mut self) -> bool {
        let at = self.rx_read;
        self.mark().is_some_and(|mark| mark.pos == at)
    }

    /// Returns true if the urgent byte has arrived and was not taken, and the stream was not read
    /// beyond it (EPOLLPRI).
    pub fn has_urgent(&mut self) -> bool {
        matches!(self.urgent_byte(), UrgentByte::Arrived(_))
    }

    /// The state of the urgent byte.
    pub fn urgent_byte(&mut self) -> UrgentByte {
        match self.mark().filter(|mark| !mark.taken) {
            None => UrgentByte::None,
            Some(mark) => mark.byte.map_or(UrgentByte::Announced, UrgentByte::Arrived),
        }
    }

    /// Records that the program has read the urgent byte out of band.
    pub fn take_urgent_byte(&mut self) {
        if let Some(mark) = &mut self.urgent.mark {
            mark.taken = true;
        }
    }

    /// Skips an urgent byte at the read position that has arrived and is not in line, so that the
    /// bytes after it can be read. Returns true if a byte was skipped.
    pub fn pass_mark(&mut self) -> bool {
        if self.urgent.inline || !self.at_mark() || self.received_head() == self.rx_read {
            return false;
        }
        let pos = self.rx_read;
        self.urgent.mark = None;
        self.skip_urgent_byte();
        self.report_passed(pos);
        true
    }

    /// The number of received bytes that were not read, including urgent ones.
    #[inline]
    pub fn unread(&mut self) -> usize {
        let readable = self.readable();
        if self.urgent.mark.is_none() {
            return readable;
        }
        self.received_head().wrapping_sub(self.rx_read) as usize
    }

    /// The number of received bytes that were not read, up to an urgent byte that is not in line
    /// (FIONREAD).
    pub fn unread_to_mark(&mut self) -> usize {
        if self.urgent.inline {
            self.unread()
        } else {
            self.readable()
        }
    }

    /// The number of received bytes for `poll`: all except an urgent byte at the read position that
    /// will be skipped.
    pub fn pollable(&mut self) -> usize {
        let hidden = self.at_mark() && !self.urgent.inline;
        self.unread().saturating_sub(hidden.into())
    }

    /// Copies the bytes after an urgent byte at the read position that would be skipped.
    pub fn peek_past_mark(&mut self, into: &mut [u8]) -> usize {
        if self.urgent.inline || !self.at_mark() {
            return 0;
        }
        let (head, cached) = (self.received_head(), self.rx_head);
        if head == self.rx_read {
            return 0;
        }
        self.rx_head = head;
        let count = self.copy_out(1, into);
        self.rx_head = cached;
        count
    }
}
