//! The send side of a stream. The service (the process `tidelaned`) reads the bytes from an elastic
//! send buffer in shared memory, which the module `stream` describes.

use std::{
    io::IoSlice,
    sync::atomic::{
        AtomicU8,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use tidelane_abi::{STREAM_BUFFER_LOG2_MAX, program_flags, service_flags};
use tidelane_ring::StreamBuffer;

use super::{SendLimits, Stream};

/// Binary logarithm of the smallest send buffer in bytes: one page.
const TX_LOG2_FIRST: u8 = 12;
/// Size of the largest send buffer in bytes, and therefore the largest number of unacknowledged
/// bytes of a stream, even if the service's limit is higher.
pub(super) const UNACKED_MAX: u32 = 1 << STREAM_BUFFER_LOG2_MAX;

/// Number of bytes that a write may always take while the unsent bytes are below TCP_NOTSENT_LOWAT,
/// even if the write then exceeds the value of the option.
const UNSENT_SLACK: u32 = 16 << 10;

/// The outgrown send buffers: buffers that were replaced and that the service may still read.
#[derive(Debug, Default)]
pub(super) struct Outgrown {
    pub(super) buffers: Vec<StreamBuffer>,
    /// Write position at which the last of these buffers was replaced. The service reads none of
    /// the buffers after the peer has acknowledged all bytes before this position.
    until: u32,
    /// True if the buffers also become free when the service echoes (stores in the slot) the word
    /// of the present buffer, its offset and size. False if the echo means nothing, because the
    /// service has already echoed this word for an earlier use of the same memory.
    echo: bool,
}

impl Stream {
    /// Returns the number of bytes that `write` would take, if memory is available and the
    /// connection is not over.
    #[inline]
    pub fn writable(&mut self) -> usize {
        self.refresh_tx();
        self.room() as usize
    }

    /// Copies bytes to the send buffer, and returns the number of bytes copied. Returns 0 if the
    /// limit of unacknowledged bytes is reached, if there is no memory for a buffer, or if the
    /// stream is closed or shut down for writing.
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> usize {
        let count = self.copy_in(from);
        self.publish_tx(count);
        count
    }

    /// Lets `fill` write up to `wanted` bytes into the send buffer. The room has two parts, because
    /// the buffer is circular. `fill` has to fill the first part first, and to return the number of
    /// written bytes. If `write` would take no byte, returns `None` without calling `fill`.
    pub fn write_in_place<E>(
        &mut self,
        wanted: usize,
        fill: impl FnOnce([&[AtomicU8]; 2]) -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        let room = self.prepare_tx(wanted);
        let buffer = self.tx_buffer.filter(|_| room > 0)?;
        let runs = buffer.runs(self.shared.region(), self.tx_head, room)?;
        let filled = fill(runs).map(|count| count.min(room));
        if let Ok(count) = filled {
            self.publish_tx(count);
        }
        Some(filled)
    }

    /// Does the same as [`write`](Self::write), from several buffers (writev).
    pub fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> usize {
        let total: usize = from.iter().map(|buffer| buffer.len()).sum();
        self.prepare_tx(total);
        let start = self.tx_head;
        for buffer in from {
            let count = self.copy_in(buffer);
            self.tx_head = self.tx_head.wrapping_add(count as u32);
            if count < buffer.len() {
                break;
            }
        }
        let written = self.tx_head.wrapping_sub(start) as usize;
        self.tx_head = start;
        self.publish_tx(written);
        written
    }

    /// Copies `from` to the send buffer, from position `tx_head` on and as far as there is room,
    /// without publishing the bytes. Returns the number of copied bytes.
    #[inline]
    pub(super) fn copy_in(&mut self, from: &[u8]) -> usize {
        let count = self.prepare_tx(from.len());
        let Some(buffer) = self.tx_buffer.filter(|_| count > 0) else {
            return 0;
        };
        if !buffer.write(self.shared.region(), self.tx_head, &from[..count]) {
            return 0;
        }
        count
    }

    #[inline]
    pub(super) fn publish_tx(&mut self, count: usize) {
        if count > 0 {
            self.tx_head = self.tx_head.wrapping_add(count as u32);
            self.shared
                .view()
                .program()
                .tx_head
                .store(self.tx_head, Release);
            self.due = true;
        }
    }

    /// Makes room for up to `wanted` bytes. Returns the number of bytes that fit.
    #[inline]
    fn prepare_tx(&mut self, wanted: usize) -> usize {
        let unacked = self.tx_head.wrapping_sub(self.tx_acked) as usize;
        let capacity = self.tx_buffer.map_or(0, |buffer| buffer.len() as usize);
        let shut = self.flags & (program_flags::SHUT_WRITE | program_flags::CLOSE) != 0;
        // The common case loads no value of the service.
        if !shut && unacked + wanted <= capacity.min(self.tx_limit as usize) {
            return wanted;
        }
        if shut {
            0
        } else {
            self.prepare_tx_slow(wanted)
        }
    }

    /// Does the work of `prepare_tx` if it has to load the service's values or replace the buffer.
    #[cold]
    fn prepare_tx_slow(&mut self, wanted: usize) -> usize {
        self.refresh_tx();
        if self.session.is_gone() || self.service_flags() & service_flags::CLOSED != 0 {
            return 0;
        }
        let count = (self.room() as usize).min(wanted);
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let needed = unacked + count as u32;
        let capacity = self.tx_buffer.map_or(0, StreamBuffer::len);
        if needed > capacity && count > 0 {
            self.grow(needed);
        }
        let capacity = self.tx_buffer.map_or(0, StreamBuffer::len);
        count.min(capacity.saturating_sub(unacked) as usize)
    }

    /// Replaces the send buffer by a larger buffer for `needed` bytes, or by the largest buffer
    /// that memory permits. Without memory for a larger buffer, the old buffer stays.
    pub(super) fn grow(&mut self, needed: u32) {
        let log2 = self.tx_buffer.map_or(0, |buffer| buffer.log2);
        self.grow_from(needed, log2 + 1);
    }

    /// Replaces the send buffer by a buffer for `needed` bytes, or by the largest buffer of at
    /// least `2^least` bytes that memory permits. Without memory, the old buffer stays.
    pub(super) fn grow_from(&mut self, needed: u32, least: u8) {
        let wanted = (needed.next_power_of_two().ilog2() as u8).max(TX_LOG2_FIRST);
        let least = least.max(TX_LOG2_FIRST);
        let found = {
            let allocator = &mut self.session.buffers().allocator;
            (least..=wanted.max(least))
                .rev()
                .find_map(|log2| allocator.alloc(log2))
        };
        let Some(larger) = found else { return };
        let region = self.shared.region();
        let half = self.shared.view();
        if let Some(old) = self.tx_buffer.replace(larger) {
            // Cannot fail: the bytes fit, and both buffers come from this program's allocator.
            let moved = old.relocate(region, larger, self.tx_acked, self.tx_head);
            debug_assert!(moved);
            self.outgrown.buffers.push(old);
            self.outgrown.until = self.tx_head;
            self.outgrown.echo = half.service().tx_buffer_seen.load(Relaxed) != larger.to_word();
        }
        half.program().tx_buffer.store(larger.to_word(), Release);
    }

    fn room(&self) -> u32 {
        let shut = self.flags & (program_flags::SHUT_WRITE | program_flags::CLOSE) != 0;
        if shut {
            return 0;
        }
        self.tx_limit
            .saturating_sub(self.tx_head.wrapping_sub(self.tx_acked))
    }

    /// Loads the peer's acknowledgments, computes the limit of unacknowledged bytes, and frees
    /// outgrown buffers that the service does not read any more.
    pub(super) fn refresh_tx(&mut self) {
        let half = self.shared.view();
        let acked = half.service().tx_acked.load(Acquire);
        let unacked = self.tx_head.wrapping_sub(acked);
        // Ignore an impossible position: beyond the written bytes, or before `self.tx_acked`.
        if unacked <= self.tx_head.wrapping_sub(self.tx_acked) {
            self.tx_acked = acked;
        }
        self.tx_limit = self.unacked_max();
        if !self.outgrown.buffers.is_empty() && !self.room_lent {
            self.free_outgrown();
        }
    }

    /// Frees the outgrown buffers if the service does not read them any more.
    fn free_outgrown(&mut self) {
        let seen = self.shared.view().service().tx_buffer_seen.load(Acquire);
        let echoed = self.outgrown.echo
            && self
                .tx_buffer
                .is_some_and(|buffer| buffer.to_word() == seen);
        // The bytes before `until` are acknowledged if all unacknowledged bytes lie after `until`.
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let acked = self.tx_head.wrapping_sub(self.outgrown.until) >= unacked;
        if echoed || acked {
            let allocator = &mut self.session.buffers().allocator;
            for buffer in self.outgrown.buffers.drain(..) {
                allocator.free(buffer);
            }
        }
    }

    /// Returns the number of bytes written and not acknowledged by the peer (SIOCOUTQ).
    pub fn unacked(&mut self) -> u32 {
        self.refresh_tx();
        self.tx_head.wrapping_sub(self.tx_acked)
    }

    /// Returns the limit of unacknowledged bytes (SO_SNDBUF): the smaller of the service's limit
    /// and the program's limit.
    pub fn tx_limit(&self) -> u32 {
        let limit = self.shared.view().service().tx_limit.load(Relaxed);
        match self.sending.unacked_max {
            0 => limit,
            set => limit.min(set),
        }
    }

    /// Sets the program's limits of unacknowledged and unsent bytes.
    pub fn limit_sending(&mut self, sending: SendLimits) {
        self.sending = sending;
        // The limit 0 makes the next write compute the limit again.
        self.tx_limit = 0;
    }

    /// Returns the number of bytes written and not sent. Without TCP_NOTSENT_LOWAT, returns the
    /// number of unacknowledged bytes, because the service does not report the unsent bytes.
    pub fn unsent(&mut self) -> u32 {
        self.refresh_tx();
        self.unsent_now()
    }

    fn unsent_now(&self) -> u32 {
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        if self.sending.unsent_max == 0 {
            return unacked;
        }
        let sent = self.shared.view().service().tx_sent.load(Acquire);
        // If the service's value is impossible, treat all unacknowledged bytes as unsent.
        self.tx_head.wrapping_sub(sent).min(unacked)
    }

    /// Returns true if TCP_NOTSENT_LOWAT is not set, or if the unsent bytes are below half of its
    /// value. Below half of the value, Linux wakes a waiting writer.
    pub fn is_below_notsent_lowat(&mut self) -> bool {
        let limit = self.sending.unsent_max;
        limit == 0 || u64::from(self.unsent()) * 2 < u64::from(limit)
    }

    /// Returns the limit of unacknowledged bytes for the next write.
    fn unacked_max(&self) -> u32 {
        let limit = self.tx_limit().min(UNACKED_MAX);
        if self.sending.unsent_max == 0 {
            return limit;
        }
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let unsent = self.unsent_now();
        if unsent >= self.sending.unsent_max {
            return limit.min(unacked);
        }
        // Linux checks the limit once for each packet that it fills, so a write may exceed the
        // limit.
        let room = (self.sending.unsent_max - unsent).max(UNSENT_SLACK);
        limit.min(unacked.saturating_add(room))
    }

    /// Frees the send buffer if all bytes are acknowledged, no room to send is lent, and no
    /// outgrown buffer remains. Returns true if the stream has no send buffer afterwards.
    pub fn trim(&mut self) -> bool {
        let Some(buffer) = self.tx_buffer else {
            return true;
        };
        self.refresh_tx();
        let is_used = self.tx_head != self.tx_acked || self.room_lent;
        if is_used || !self.outgrown.buffers.is_empty() {
            return false;
        }
        // All bytes are acknowledged, so the service reads nothing from the buffer.
        self.shared.view().program().tx_buffer.store(0, Release);
        self.tx_buffer = None;
        self.session.buffers().allocator.free(buffer);
        true
    }
}
