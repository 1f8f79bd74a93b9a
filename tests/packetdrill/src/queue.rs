//! A model of Linux's send queue, which consists of skbs ("buffers" here) of several segments.
//!
//! The send queue of the engine (Tidelane's TCP) is a stream of bytes without buffers. In Linux, a
//! packet also ends where a buffer ends. A packet of one segment has PSH only in two cases: a write
//! ends with the segment, or the segment ends more than half a window after the previous PSH. This
//! module keeps track of these positions, and computes the payload length of a full buffer. All
//! positions are stream positions: byte numbers in the send stream of a flow (connection), modulo
//! 2^32.

use std::collections::VecDeque;

/// Largest payload of a buffer in bytes: the largest packet of segmentation offload (64 KiB), less
/// the 320 bytes that Linux leaves for headers.
const BUFFER_MAX: u32 = 65_536 - 320;
/// The positions in the send stream of a flow at which Linux ends packets or sets PSH.
#[derive(Debug, Default)]
pub struct PacketEnds {
    /// Ends of sent packets, of buffers and of records, ascending. An end is the position after the
    /// last byte.
    ends: VecDeque<u32>,
    /// Ends of records, ascending. A record ends where a write with the flag MSG_EOR ends. No
    /// packet without URG crosses the end of a record, not even a retransmission.
    records: VecDeque<u32>,
    /// Ends of the segments that have PSH.
    pushes: VecDeque<u32>,
    /// The position that was most recently added to `pushes`.
    pub(crate) last_push: u32,
    /// Position at which the last buffer of the send queue starts.
    pub(crate) tail: u32,
}

/// Returns true if the position `a` is before the position `b`, modulo 2^32.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Returns the payload length of a full buffer in bytes. The length is the largest multiple of
/// `mss` that is at most [`BUFFER_MAX`] and at most half of `snd_wnd_max`, the largest window that
/// the peer has offered. The length is at least `mss`.
pub(crate) fn buffer_len(mss: u32, snd_wnd_max: u32) -> u32 {
    let room = BUFFER_MAX.min(snd_wnd_max / 2);
    (room - room % mss).max(mss)
}

impl PacketEnds {
    /// Adds the end `at` of a packet or buffer. Does nothing if `at` is already in the list.
    pub fn end(&mut self, at: u32) {
        let later = self.ends.iter().position(|end| !before(*end, at));
        match later {
            Some(place) if self.ends[place] == at => {}
            Some(place) => self.ends.insert(place, at),
            None => self.ends.push_back(at),
        }
    }

    /// Adds the end `at` of a record. The caller adds the ends of records in ascending order.
    pub fn end_record(&mut self, at: u32) {
        self.records.push_back(at);
        self.end(at);
    }

    /// Returns the first end of a record after `start` and before `end`, if there is one.
    pub fn record_within(&self, start: u32, end: u32) -> Option<u32> {
        let within = |at: &&u32| before(start, **at) && before(**at, end);
        self.records.iter().find(within).copied()
    }

    /// Returns true if a packet, buffer or record ends at `at`.
    pub fn is_end(&self, at: u32) -> bool {
        self.ends.contains(&at)
    }

    /// Records that the segment that ends at `at` has PSH.
    pub fn push(&mut self, at: u32) {
        self.pushes.push_back(at);
        self.last_push = at;
    }

    /// Returns true if the segment that ends at `at` has PSH.
    pub fn is_push(&self, at: u32) -> bool {
        self.pushes.contains(&at)
    }

    /// Removes all ends up to and including `acked`.
    pub fn forget_up_to(&mut self, acked: u32) {
        for packet_ends in [&mut self.ends, &mut self.pushes, &mut self.records] {
            while packet_ends.front().is_some_and(|at| !before(acked, *at)) {
                packet_ends.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_has_whole_segments_and_at_least_one() {
        for (mss, wnd, expected) in [
            (1000, 10_500, 5000),
            (1000, 1000, 1000),
            (1448, u32::MAX, 65_160),
            (65_483, u32::MAX, 65_483),
        ] {
            assert_eq!(buffer_len(mss, wnd), expected);
        }
    }

    #[test]
    fn ends_stay_in_order_and_go_when_acknowledged() {
        let mut packet_ends = PacketEnds::default();
        for at in [300, 100, 200, 100] {
            packet_ends.end(at);
        }
        packet_ends.push(300);
        assert_eq!(packet_ends.ends, [100, 200, 300]);
        packet_ends.forget_up_to(200);
        assert!(!packet_ends.is_end(200) && packet_ends.is_end(300) && packet_ends.is_push(300));
    }
}
