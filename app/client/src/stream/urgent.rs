//! Urgent data: the mark at which reading stops, and the byte behind it.
//!
//! As in Linux one byte is urgent, the last that the peer wrote so. While it is ahead, `read` gives
//! what is before it. There it is the next byte; or, where it is not taken in line, `read` gives
//! nothing until `pass_mark` leaves it out, and it can be had by itself as soon as it came. What is
//! before a mark is read as if there were none: the service marks the buffer's word, and only then
//! it is looked for.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tidelane_abi::{SlotOptions, service_flags, urgent_state};

use super::Stream;

/// What a stream knows of urgent data.
#[derive(Debug)]
pub(super) struct Urgent {
    /// The mark, as last loaded. It may be behind.
    mark: Option<Mark>,
    /// The program takes the byte in line.
    inline: bool,
    /// The last mark of which the service was told that it is behind.
    told: Option<u32>,
    /// Bytes that were left out.
    left_out: u32,
    /// [`SlotOptions::tx_urgents`].
    written: u32,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    pos: u32,
    byte: Option<u8>,
    /// The program has read the byte by itself.
    taken: bool,
}

/// What there is of an urgent byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UrgentByte {
    /// Nothing: none was announced, or all up to it was read, or it was taken.
    None,
    /// It has not come.
    Awaited,
    /// It.
    There(u8),
}

impl Urgent {
    /// A new connection's.
    pub(super) fn of(options: &SlotOptions) -> Self {
        Self {
            mark: None,
            inline: true,
            told: None,
            left_out: 0,
            written: options.tx_urgents.load(Relaxed),
        }
    }
}

impl Stream {
    /// Whether the urgent byte is one of the stream (SO_OOBINLINE), as it is at first.
    pub fn set_urgent_inline(&mut self, inline: bool) {
        self.urgent.inline = inline;
        // What was found to be readable ended before the mark, or went beyond it.
        self.rx_head = self.rx_read;
    }

    /// Takes bytes to send as [`write`](Self::write) does, of which the last is urgent.
    pub fn write_urgent(&mut self, from: &[u8]) -> usize {
        let count = self.copy_in(from);
        self.mark_written(count);
        self.publish_tx(count);
        count
    }

    /// The next `count` bytes that are announced are urgent: said before they are.
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

    /// The mark that is next or ahead.
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

    fn load_mark(&mut self) {
        let half = self.shared.view();
        let word = half.service().urgent.load(Acquire);
        let before = half.service().urgent_before.load(Relaxed);
        let (pos, state) = ((word >> 32) as u32, (word >> 8) as u8);
        if state != urgent_state::ANNOUNCED && state != urgent_state::THERE {
            return;
        }
        let byte = (state == urgent_state::THERE).then_some(word as u8);
        let known = self.urgent.mark.filter(|mark| mark.pos == pos);
        let taken = known.is_some_and(|mark| mark.taken);
        let is_ahead = (pos.wrapping_sub(self.rx_read) as i32) >= 0;
        if known.is_none() && !is_ahead {
            return self.tell_passed(pos);
        }
        self.urgent.mark = Some(Mark { pos, byte, taken });
        if known.is_none() && before != pos && before == self.rx_read {
            self.skip_old_mark();
        }
    }

    /// All up to the mark at `pos` was read, and the service is to look for it no more.
    fn tell_passed(&mut self, pos: u32) {
        if self.urgent.told != Some(pos) {
            self.urgent.told = Some(pos);
            self.note_options();
        }
    }

    /// An urgent byte that was next is left out, although another one is the mark now (as in
    /// Linux).
    fn skip_old_mark(&mut self) {
        let came = self.head_now() != self.rx_read;
        if came && !self.urgent.inline {
            self.leave_out();
        }
    }

    fn leave_out(&mut self) {
        self.rx_head = self.rx_read.wrapping_add(1);
        self.consume(1);
        self.urgent.left_out = self.urgent.left_out.wrapping_add(1);
    }

    /// Urgent bytes that were in the stream, and that no read gave.
    #[inline]
    pub fn left_out(&self) -> u32 {
        self.urgent.left_out
    }

    /// `rx_head` as the service has it, whatever is urgent before it; ours if that is nonsense.
    fn head_now(&mut self) -> u32 {
        self.refresh_rx();
        let head = self.shared.view().service().rx_head.load(Acquire);
        let held = self.rx_buffer.map_or(0, tidelane_ring::StreamBuffer::len);
        if head.wrapping_sub(self.rx_read) <= held {
            head
        } else {
            self.rx_head
        }
    }

    /// How far reading goes where bytes came up to `head`.
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

    /// Whether the urgent byte is next (SIOCATMARK).
    pub fn at_mark(&mut self) -> bool {
        let at = self.rx_read;
        self.mark().is_some_and(|mark| mark.pos == at)
    }

    /// Whether the urgent byte is there, was not taken, and nothing behind it was read (EPOLLPRI).
    pub fn has_urgent(&mut self) -> bool {
        matches!(self.urgent_byte(), UrgentByte::There(_))
    }

    /// The urgent byte by itself.
    pub fn urgent_byte(&mut self) -> UrgentByte {
        match self.mark().filter(|mark| !mark.taken) {
            None => UrgentByte::None,
            Some(mark) => mark.byte.map_or(UrgentByte::Awaited, UrgentByte::There),
        }
    }

    /// The program has read the urgent byte by itself.
    pub fn take_urgent_byte(&mut self) {
        if let Some(mark) = &mut self.urgent.mark {
            mark.taken = true;
        }
    }

    /// Leaves out an urgent byte that is next and there, and not in line: what follows can be read.
    /// Whether it did.
    pub fn pass_mark(&mut self) -> bool {
        if self.urgent.inline || !self.at_mark() || self.head_now() == self.rx_read {
            return false;
        }
        let pos = self.rx_read;
        self.urgent.mark = None;
        self.leave_out();
        self.tell_passed(pos);
        true
    }

    /// Bytes that came and were not read, whatever is urgent among them.
    #[inline]
    pub fn unread(&mut self) -> usize {
        let readable = self.readable();
        if self.urgent.mark.is_none() {
            return readable;
        }
        self.head_now().wrapping_sub(self.rx_read) as usize
    }

    /// Bytes that came and were not read, up to an urgent one that is not in line: what FIONREAD
    /// counts.
    pub fn unread_to_mark(&mut self) -> usize {
        if self.urgent.inline {
            self.unread()
        } else {
            self.readable()
        }
    }

    /// Bytes that came, whatever is urgent among them, but not an urgent one that is next and will
    /// be left out: what `poll` counts.
    pub fn pollable(&mut self) -> usize {
        let hidden = self.at_mark() && !self.urgent.inline;
        self.unread().saturating_sub(hidden.into())
    }

    /// Copies what is readable behind an urgent byte that is next and would be left out.
    pub fn peek_past_mark(&mut self, into: &mut [u8]) -> usize {
        if self.urgent.inline || !self.at_mark() {
            return 0;
        }
        let (head, cached) = (self.head_now(), self.rx_head);
        if head == self.rx_read {
            return 0;
        }
        self.rx_head = head;
        let count = self.copy_out(1, into);
        self.rx_head = cached;
        count
    }
}
