//! The sending half: bytes lie in an elastic buffer of the program.

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

/// Size of a send buffer that starts small: one page.
const TX_LOG2_FIRST: u8 = 12;
/// More bytes cannot be unacknowledged, whatever the service's limit: the largest buffer.
pub(super) const UNACKED_MAX: u32 = 1 << STREAM_BUFFER_LOG2_MAX;

/// Below TCP_NOTSENT_LOWAT so many bytes are taken, however small it is.
const UNSENT_MORE: u32 = 16 << 10;

/// Send buffers that were replaced and that the service may still read.
#[derive(Debug, Default)]
pub(super) struct Outgrown {
    pub(super) buffers: Vec<StreamBuffer>,
    /// Stream position when the last of them was replaced: when all before it is acknowledged, the
    /// service reads none of them.
    until: u32,
    /// The service's echo of the present word also frees them. Not so if the same word was echoed
    /// in an earlier life of that buffer.
    echo: bool,
}

impl Stream {
    /// Bytes that `write` would take now (if there is memory).
    #[inline]
    pub fn writable(&mut self) -> usize {
        self.refresh_tx();
        self.room() as usize
    }

    /// Takes bytes to send; returns how many. 0: the limit is reached, or no memory is left, or the
    /// stream is shut for writing or closed.
    #[inline]
    pub fn write(&mut self, from: &[u8]) -> usize {
        let count = self.copy_in(from);
        self.publish_tx(count);
        count
    }

    /// `write` of up to `wanted` bytes that `fill` puts where they belong: into two runs of the
    /// send buffer, in this order. It returns how many it put there. `None`, without a call of
    /// `fill`, where `write` would take nothing.
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

    /// `write` from several buffers.
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

    /// Copies bytes to `tx_head` and after, as many as there is room for.
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

    /// Makes room for up to `wanted` bytes; returns for how many there is room.
    #[inline]
    fn prepare_tx(&mut self, wanted: usize) -> usize {
        let unacked = self.tx_head.wrapping_sub(self.tx_acked) as usize;
        let held = self.tx_buffer.map_or(0, |buffer| buffer.len() as usize);
        let shut = self.flags & (program_flags::SHUT_WRITE | program_flags::CLOSE) != 0;
        // The common case loads nothing of the service's half.
        if !shut && unacked + wanted <= held.min(self.tx_limit as usize) {
            return wanted;
        }
        if shut {
            0
        } else {
            self.prepare_tx_slow(wanted)
        }
    }

    #[cold]
    fn prepare_tx_slow(&mut self, wanted: usize) -> usize {
        self.refresh_tx();
        if self.session.is_gone() || self.service_flags() & service_flags::CLOSED != 0 {
            return 0;
        }
        let count = (self.room() as usize).min(wanted);
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let needed = unacked + count as u32;
        let held = self.tx_buffer.map_or(0, StreamBuffer::len);
        if needed > held && count > 0 {
            self.grow(needed);
        }
        let held = self.tx_buffer.map_or(0, StreamBuffer::len);
        count.min(held.saturating_sub(unacked) as usize)
    }

    /// Replaces the send buffer by one for `needed` bytes, or by the largest that there is memory
    /// for. Without any, it stays.
    fn grow(&mut self, needed: u32) {
        let held = self.tx_buffer.map_or(0, |buffer| buffer.log2);
        let wanted = (needed.next_power_of_two().ilog2() as u8).max(TX_LOG2_FIRST);
        let least = (held + 1).max(TX_LOG2_FIRST);
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
            // The lengths were chosen so, and both buffers came from our allocator.
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

    /// Loads how far the peer acknowledged, and frees what that frees.
    fn refresh_tx(&mut self) {
        let half = self.shared.view();
        let acked = half.service().tx_acked.load(Acquire);
        let unacked = self.tx_head.wrapping_sub(acked);
        // Nonsense (more than was written, or less than before) counts as no progress.
        if unacked <= self.tx_head.wrapping_sub(self.tx_acked) {
            self.tx_acked = acked;
        }
        self.tx_limit = self.unacked_max();
        if !self.outgrown.buffers.is_empty() {
            self.free_outgrown();
        }
    }

    fn free_outgrown(&mut self) {
        let seen = self.shared.view().service().tx_buffer_seen.load(Acquire);
        let echoed = self.outgrown.echo
            && self
                .tx_buffer
                .is_some_and(|buffer| buffer.to_word() == seen);
        // Of the bytes before `until`, at most all that are unacknowledged now are so.
        let unacked = self.tx_head.wrapping_sub(self.tx_acked);
        let acked = self.tx_head.wrapping_sub(self.outgrown.until) >= unacked;
        if echoed || acked {
            let allocator = &mut self.session.buffers().allocator;
            for buffer in self.outgrown.buffers.drain(..) {
                allocator.free(buffer);
            }
        }
    }

    /// Bytes written and not yet acknowledged by the peer (SIOCOUTQ).
    pub fn unacked(&mut self) -> u32 {
        self.refresh_tx();
        self.tx_head.wrapping_sub(self.tx_acked)
    }

    /// The limit for `unacked` (SO_SNDBUF): the service's, or what the program set below it.
    pub fn tx_limit(&self) -> u32 {
        let limit = self.shared.view().service().tx_limit.load(Relaxed);
        match self.sending.unacked_max {
            0 => limit,
            set => limit.min(set),
        }
    }

    /// Bounds what is written from now on.
    pub fn limit_sending(&mut self, sending: SendLimits) {
        self.sending = sending;
        // The next write looks at it.
        self.tx_limit = 0;
    }

    /// Bytes written and not sent, if the service was asked to report that; else all that are not
    /// acknowledged.
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
        // Nonsense counts as nothing sent.
        self.tx_head.wrapping_sub(sent).min(unacked)
    }

    /// Whether a writer that waits for TCP_NOTSENT_LOWAT should go on: as in Linux, with half of it
    /// left.
    pub fn is_low(&mut self) -> bool {
        let limit = self.sending.unsent_max;
        limit == 0 || u64::from(self.unsent()) * 2 < u64::from(limit)
    }

    /// Bytes that may be unacknowledged, if nothing happens until they are written.
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
        // Linux looks again for each packet that it fills, so it takes some more.
        let room = (self.sending.unsent_max - unsent).max(UNSENT_MORE);
        limit.min(unacked.saturating_add(room))
    }

    /// Frees the send buffer if all bytes are acknowledged. True if the stream now holds none.
    pub fn trim(&mut self) -> bool {
        let Some(buffer) = self.tx_buffer else {
            return true;
        };
        self.refresh_tx();
        if self.tx_head != self.tx_acked || !self.outgrown.buffers.is_empty() {
            return false;
        }
        // All is acknowledged: the service has nothing to read from it.
        self.shared.view().program().tx_buffer.store(0, Release);
        self.tx_buffer = None;
        self.session.buffers().allocator.free(buffer);
        true
    }
}
