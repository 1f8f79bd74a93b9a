//! Urgent data (RFC 9293 §3.8.5) between the engine and the slots of programs.

use std::sync::atomic::Ordering::Relaxed;

use tidelane_abi::{BufferWord, SlotOptions, buffer_word, service_flags, urgent_state};
use tidelane_ring::{SlotView, StreamBuffer};

use super::Binding;
use crate::slots;

/// State of the urgent data of a connection: the received urgent data as published in the slot (the
/// shared record of the connection), and the program's count of urgent sends as the host read the
/// count most recently.
#[derive(Clone, Copy, Debug, Default)]
pub struct Urgent {
    /// Value of [`tidelane_abi::ServiceHalf::urgent`].
    word: u64,
    /// Value of [`tidelane_abi::ServiceHalf::previous_urgent`].
    previous_pos: u32,
    /// Value of [`SlotOptions::tx_urgent_count`], the number of urgent sends of the program, as
    /// read most recently.
    tx_urgent_count: u32,
}

impl Urgent {
    /// Returns the stream position of the urgent byte that the peer announced most recently.
    fn pos(self) -> u32 {
        (self.word >> 32) as u32
    }
}

/// Encodes [`tidelane_abi::ServiceHalf::urgent`]: the position of the urgent byte, a state of
/// [`urgent_state`], and the value of the byte.
const fn word_of(pos: u32, state: u8, byte: u8) -> u64 {
    (pos as u64) << 32 | (state as u64) << 8 | byte as u64
}

impl Binding {
    /// Returns the word of the receive buffer (the encoded offset and size) for the slot. The word
    /// has the flag [`buffer_word::URGENT`] from the announcement of urgent data until the program
    /// has read beyond the urgent byte.
    pub fn rx_word(&self) -> BufferWord {
        let is_urgent = self.service_flags & service_flags::URGENT != 0;
        let flag = if is_urgent { buffer_word::URGENT } else { 0 };
        self.rx.map_or(0, StreamBuffer::to_word) | flag
    }

    /// Publishes the state of urgent data in a slot, if the peer has announced urgent data and the
    /// program has not yet read beyond the urgent byte.
    fn show_urgent(&self, view: SlotView<'_>) {
        if self.service_flags & service_flags::URGENT != 0 {
            slots::set_urgent(view, self.urgent.word, self.urgent.previous_pos);
            slots::set_rx_buffer(view, self.rx_word());
        }
    }

    /// Records that the peer has announced urgent data up to and including the byte at stream
    /// position `pos`.
    pub fn note_urgent(&mut self, pos: u32) {
        let first = self.service_flags & service_flags::URGENT == 0;
        let urgent = &mut self.urgent;
        urgent.previous_pos = if first { pos } else { urgent.pos() };
        urgent.word = word_of(pos, urgent_state::ANNOUNCED, 0);
        self.service_flags |= service_flags::URGENT;
        if let Some(home_slot) = &self.home_slot {
            self.show_urgent(home_slot.view());
        }
    }

    /// Records that the announced urgent byte has arrived with the value `byte`.
    pub fn note_urgent_byte(&mut self, byte: u8) {
        let pos = self.urgent.pos();
        self.urgent.word = word_of(pos, urgent_state::ARRIVED, byte);
        if let Some(home_slot) = &self.home_slot {
            self.show_urgent(home_slot.view());
        }
    }

    /// Begins the use of a slot. Skips the urgent sends of an earlier connection in the slot.
    pub fn begin_urgent(&mut self, view: SlotView<'_>) {
        self.urgent.tx_urgent_count = view.options().tx_urgent_count.load(Relaxed);
        self.show_urgent(view);
    }

    /// Clears the flag of urgent data in the slot's receive buffer word if the program has read
    /// beyond the urgent byte.
    pub fn end_read_urgent(&mut self, view: SlotView<'_>) {
        let ahead = self.rx_read.wrapping_sub(self.urgent.pos()) as i32;
        if self.service_flags & service_flags::URGENT != 0 && ahead > 0 {
            self.service_flags &= !service_flags::URGENT;
            slots::set_rx_buffer(view, self.rx_word());
        }
    }

    /// Returns the stream position after the urgent data that the program has written since the
    /// last call. Returns `None` if there is no new urgent data. The position is not validated.
    pub fn new_urgent_sent(&mut self, options: &SlotOptions) -> Option<u32> {
        let count = options.tx_urgent_count.load(Relaxed);
        let is_new = std::mem::replace(&mut self.urgent.tx_urgent_count, count) != count;
        is_new.then(|| options.tx_urgent.load(Relaxed))
    }
}
