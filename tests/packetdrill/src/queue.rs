//! A model of Linux's send queue, which consists of skbs ("buffers" here) of several segments.
//!
//! The engine's send queue is a stream of bytes without buffers. In Linux, a packet also ends where
//! a buffer ends, and a packet of one segment has PSH only at the end of a write, or half a window
//! after the last PSH. This module keeps track of these positions, and computes the payload of a
//! full buffer.

use std::collections::VecDeque;

/// Largest payload of a buffer in bytes: the limit of segmentation offload without headers.
const BUFFER_MAX: u32 = 65_536 - 320;
/// The positions in the send stream of a flow at which Linux ends packets or sets PSH.
#[derive(Debug, Default)]
pub struct PacketEnds {
    /// Ends of sent packets, of buffers and of records, ascending.
    ends: VecDeque<u32>,
    /// Ends of records. A record ends where a write with the flag MSG_EOR ends. No packet without
    /// URG crosses the end of a record, not even a retransmission.
    records: VecDeque<u32>,
    /// Ends of the segments that have PSH.
    pushes: VecDeque<u32>,
    /// The position that was last added to `pushes`.
    pub(crate) last_push: u32,
    /// Stream position at which the last buffer starts.
    pub(crate) tail: u32,
}

/// Returns true if the stream position `a` is before `b`, modulo 2^32.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Returns the payload of a full buffer in bytes: as many whole segments as fit into half of the
/// largest window that the peer has offered and into [`BUFFER_MAX`], and at least one segment.
pub(crate) fn buffer_len(mss: u32, snd_wnd_max: u32) -> u32 {
    let room = BUFFER_MAX.min(snd_wnd_max / 2);
    (room - room % mss).max(mss)
}

impl PacketEnds {
    /// Adds the end of a packet or buffer, unless the position is already known.
    pub fn end(&mut self, at: u32) {
        let later = self.ends.iter().position(|end| !before(*end, at));
        match later {
            Some(place) if self.ends[place] == at => {}
            Some(place) => self.ends.insert(place, at),
            None => self.ends.push_back(at),
        }
    }

    /// Adds the end of a record.
    pub fn end_record(&mut self, at: u32) {
        self.records.push_back(at);
        self.end(at);
    }

    /// Returns the first end of a record after `start` and before `end`, if there is one.
    pub fn record_within(&self, start: u32, end: u32) -> Option<u32> {
        let within = |at: &&u32| before(start, **at) && before(**at, end);
        self.records.iter().find(within).copied()
    }

    /// Returns true if a packet or buffer ends at `at`.
    pub fn is_end(&self, at: u32) -> bool {
        self.ends.contains(&at)
    }

    /// Sets PSH for the segment that ends at `at`.
    pub fn push(&mut self, at: u32) {
        self.pushes.push_back(at);
        self.last_push = at;
    }

    /// Returns true if the segment that ends at `at` has PSH.
    pub fn is_push(&self, at: u32) -> bool {
        self.pushes.contains(&at)
    }

    /// Removes all positions up to and including `acked`.
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
