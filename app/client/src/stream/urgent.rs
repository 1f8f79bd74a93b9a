//! Urgent data: the urgent byte, and the urgent mark, which is the position of this byte in the
//! stream.
//!
//! As in Linux, only the last byte of the peer's urgent data is urgent. `read` stops at the mark.
//! With SO_OOBINLINE, the next `read` returns the urgent byte and the bytes after it. Without
//! SO_OOBINLINE, `read` then returns 0 until `pass_mark` has skipped the urgent byte. `urgent_byte`
//! returns the urgent byte as soon as the byte has arrived.
//!
//! The service (the process `tidelaned`) sets the flag `service_flags::URGENT` when the peer sends
//! urgent data. To save time, a stream loads the mark from shared memory only if this flag is set
//! or if the stream has a copy of an earlier mark.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tidelane_abi::{SlotOptions, service_flags, urgent_state};

use super::Stream;

/// The state of a stream's urgent data, in both directions.
#[derive(Debug)]
pub(super) struct Urgent {
    /// The mark that the stream has most recently loaded from the slot (the connection's record in
    /// shared memory). After the load, the program may have read beyond the mark. `None` if the
    /// stream knows no mark.
    mark: Option<Mark>,
    /// True if SO_OOBINLINE is on: `read` returns the urgent byte as a part of the stream.
    inline: bool,
    /// Position of the mark that `report_passed` has most recently reported to the service. The
    /// program has read beyond this mark.
    reported: Option<u32>,
    /// Number of urgent bytes that the stream has skipped.
    skipped: u32,
    /// Number of urgent bytes that the program has written ([`SlotOptions::tx_urgent_count`]).
    written: u32,
}

/// An urgent mark: the position of an urgent byte, and the byte's value.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Stream position of the urgent byte.
    pos: u32,
    /// The urgent byte, or `None` until the byte arrives.
    byte: Option<u8>,
    /// True after the program has read the byte out of band (MSG_OOB).
    taken: bool,
}

/// The state of the urgent byte, as the program sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UrgentByte {
    /// The peer has announced no urgent byte, or the program has already read the byte or has read
    /// beyond the byte.
    None,
    /// The peer has announced the byte, but the byte has not arrived.
    Announced,
    /// The byte has arrived, and has this value.
    Arrived(u8),
}

impl Urgent {
    /// Creates the state of a stream that has loaded no mark. `options` are the options in the
    /// stream's slot.
    pub(super) fn of(options: &SlotOptions) -> Self {
        Self {
            mark: None,
            inline: true,
            reported: None,
            skipped: 0,
            written: options.tx_urgent_count.load(Relaxed),
        }
    }
}

impl Stream {
    /// Sets SO_OOBINLINE, which is on for a new stream.
    pub fn set_urgent_inline(&mut self, inline: bool) {
        self.urgent.inline = inline;
        // Let the next `refresh_rx` compute `rx_head` again, because it depends on the setting.
        self.rx_head = self.rx_read;
    }

    /// Does the same as [`write`](Self::write), and makes the last written byte urgent.
    pub fn write_urgent(&mut self, from: &[u8]) -> usize {
        let count = self.copy_in(from);
        self.announce_urgent(count);
        self.publish_tx(count);
        count
    }

    /// Announces to the service that the last of the next `count` bytes is urgent. The caller has
    /// to call this function before it publishes the bytes.
    fn announce_urgent(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.urgent.written = self.urgent.written.wrapping_add(1);
        let up = self.tx_head.wrapping_add(count as u32);
        let options = self.shared.view().options();
        options.tx_urgent.store(up, Relaxed);
        options.tx_urgent_count.store(self.urgent.written, Release);
        self.note_options();
    }

    /// Returns the mark if the mark is at or after the read position, and otherwise `None`. Loads
    /// the mark only if the service has set the flag URGENT, or if the stream has a copy of an
    /// earlier mark.
    fn mark(&mut self) -> Option<Mark> {
        if self.service_flags() & service_flags::URGENT == 0 && self.urgent.mark.is_none() {
            return None;
        }
        self.reload_mark()
    }

    /// Loads the mark. Returns the mark if the mark is at or after the read position, and otherwise
    /// `None`.
    fn reload_mark(&mut self) -> Option<Mark> {
        self.load_mark();
        let at = self.rx_read;
        let ahead = |mark: &Mark| mark.pos.wrapping_sub(at) as i32 >= 0;
        self.urgent.mark = self.urgent.mark.filter(ahead);
        self.urgent.mark
    }

    /// Loads the urgent mark from the slot. If the mark is new to the stream, but before the read
    /// position, reports the mark as passed instead.
    fn load_mark(&mut self) {
        let view = self.shared.view();
        let word = view.service().urgent.load(Acquire);
        let previous = view.service().previous_urgent.load(Relaxed);
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
        if known.is_none() && previous != pos && previous == self.rx_read {
            self.skip_previous_byte();
        }
    }

    /// Notifies the service, once for each mark, that the program has read beyond the mark at
    /// `pos`, so that the service loads the read position of the stream.
    fn report_passed(&mut self, pos: u32) {
        if self.urgent.reported != Some(pos) {
            self.urgent.reported = Some(pos);
            self.note_options();
        }
    }

    /// Skips the previous urgent byte after a later byte has become urgent, as Linux does
    /// (`tcp_check_urg`). The previous urgent byte is at the read position. Does nothing if the
    /// byte has not arrived, or if SO_OOBINLINE is on.
    fn skip_previous_byte(&mut self) {
        let has_arrived = self.received_head() != self.rx_read;
        if has_arrived && !self.urgent.inline {
            self.skip_urgent_byte();
        }
    }

    fn skip_urgent_byte(&mut self) {
        self.rx_head = self.rx_read.wrapping_add(1);
        self.consume(1);
        self.urgent.skipped = self.urgent.skipped.wrapping_add(1);
    }

    /// Returns the number of received urgent bytes that the stream has skipped.
    #[inline]
    pub fn skipped(&self) -> u32 {
        self.urgent.skipped
    }

    /// Returns the service's `rx_head`: the end of all received bytes, including bytes after the
    /// mark. If the service's value is out of range, returns the stream's last valid `rx_head`.
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

    /// Returns the position at which `read` stops: the mark if the mark is before `head`, and
    /// otherwise `head`. The argument `head` is the end of the received bytes. With SO_OOBINLINE,
    /// ignores a mark at the read position.
    pub(super) fn clamp_to_mark(&mut self, head: u32) -> u32 {
        let inline = self.urgent.inline;
        let Some(mark) = self.reload_mark() else {
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

    /// Returns true if the urgent byte has arrived, and if the program has read neither the byte
    /// nor beyond the byte (EPOLLPRI).
    pub fn has_urgent(&mut self) -> bool {
        matches!(self.urgent_byte(), UrgentByte::Arrived(_))
    }

    /// Returns the state of the urgent byte.
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

    /// Skips the urgent byte if SO_OOBINLINE is off, and if the byte has arrived and is at the read
    /// position. The bytes after the urgent byte become readable. Returns true if a byte was
    /// skipped.
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

    /// Returns the number of unread bytes, including the urgent byte and the bytes after it.
    #[inline]
    pub fn unread(&mut self) -> usize {
        let readable = self.readable();
        if self.urgent.mark.is_none() {
            return readable;
        }
        self.received_head().wrapping_sub(self.rx_read) as usize
    }

    /// Returns the number of unread bytes plus the number of all skipped urgent bytes. The result
    /// plus the number of bytes that the program has read is the number of received bytes.
    pub fn undelivered(&mut self) -> u64 {
        self.unread() as u64 + u64::from(self.urgent.skipped)
    }

    /// Returns the number of unread bytes (FIONREAD). Without SO_OOBINLINE, counts only the bytes
    /// before the mark.
    pub fn unread_to_mark(&mut self) -> usize {
        if self.urgent.inline {
            self.unread()
        } else {
            self.readable()
        }
    }

    /// Returns the number of unread bytes for `poll`. Without SO_OOBINLINE, an urgent byte at the
    /// read position does not count.
    pub fn pollable(&mut self) -> usize {
        let excludes_urgent = self.at_mark() && !self.urgent.inline;
        self.unread().saturating_sub(excludes_urgent.into())
    }

    /// Copies the bytes after the urgent byte without consuming them, and returns their number.
    /// Returns 0 if SO_OOBINLINE is on or the urgent byte is not at the read position.
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
