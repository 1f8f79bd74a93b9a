//! A model of Linux's send queue, which consists of skbs ("buffers" here) of several segments.
//!
//! The engine's send queue is a stream of bytes without buffers. In Linux, a packet also ends where
//! a buffer ends, and a packet of one segment has PSH only at the end of a write, or half a window
//! after the last PSH. This module keeps track of these positions, and accounts the memory of the
//! buffers against SO_SNDBUF.

use std::collections::VecDeque;

use tidelane_engine::FlowId;

use crate::{
    errno::{CallResult, Errno},
    stack::{Fd, Stack},
};

/// Bytes that Linux accounts for a buffer of the send queue in addition to its payload.
const BUFFER_OVERHEAD: u32 = 896;
/// Largest payload of a buffer in bytes: the limit of segmentation offload without headers.
const BUFFER_MAX: u32 = 65_536 - 320;
/// Assumed number of segments in a buffer that is in flight, from which the number of these buffers
/// is estimated. Linux splits a buffer when a part of it leaves in a packet. The value is about an
/// initial window.
const BURST_SEGMENTS: u32 = 10;

/// The positions in the send stream of a flow at which Linux ends packets or sets PSH.
#[derive(Debug, Default)]
pub struct PacketEnds {
    /// Ends of sent packets and of buffers, ascending.
    ends: VecDeque<u32>,
    /// Ends of records. A record ends where a write with the flag MSG_EOR ends. No packet crosses
    /// the end of a record, not even a retransmission.
    records: VecDeque<u32>,
    /// Positions at which a segment that ends there has PSH.
    pushes: VecDeque<u32>,
    /// The newest position in `pushes`.
    last_push: u32,
    /// Stream position at which the last buffer starts.
    tail: u32,
}

/// Returns true if the stream position `a` is before `b`, modulo 2^32.
const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Returns the payload of a full buffer in bytes: as many whole segments as fit into half of the
/// largest window that the peer has offered and into [`BUFFER_MAX`], and at least one segment.
fn buffer_len(mss: u32, snd_wnd_max: u32) -> u32 {
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

impl Stack {
    /// Returns the bytes that the next write may append to one buffer, or 0 if the queue is full.
    ///
    /// A write first fills the last buffer. If that buffer is full or ends a record, a write starts
    /// a new buffer, unless the queue has reached SO_SNDBUF or TCP_NOTSENT_LOWAT.
    pub(crate) fn room(&mut self, fd: Fd, id: FlowId) -> CallResult<u32> {
        let flow = self.flow(id).ok_or(Errno(libc::EPIPE))?;
        let (sent, known) = (flow.tx_pos(flow.snd_nxt), flow.tx_head());
        let goal = self.buffer_goal(id);
        let options = &self.socket(fd)?.options;
        let (sndbuf, unsent_max) = (options.sndbuf, options.unsent_max());
        let full = self.queued(id) >= sndbuf || self.unsent_of(id) >= unsent_max;
        let streams = self.wire.streams(id);
        let written = streams.written.unwrap_or(known);
        let begin = match before(streams.packet_ends.tail, sent) {
            true => sent,
            false => streams.packet_ends.tail,
        };
        let tail = written.wrapping_sub(begin);
        let ended = streams.record_ends.back() == Some(&written);
        if tail > 0 && tail < goal && !ended {
            return Ok(goal - tail);
        }
        if full {
            return Ok(0);
        }
        streams.packet_ends.tail = written;
        if tail > 0 {
            streams.packet_ends.end(written);
        }
        Ok(goal)
    }

    /// Grows SO_SNDBUF if the flow has less than a congestion window in flight, as Linux's
    /// `tcp_sndbuf_expand` does. Does nothing if the program set SO_SNDBUF.
    pub(crate) fn expand_sndbuf(&mut self, fd: Fd, id: FlowId) {
        let most = self.settings.sndbuf_max();
        let Some(info) = self.flow_info(id) else {
            return;
        };
        let window = info.cwnd / info.mss.max(1);
        let each = (info.mss + 640).next_power_of_two() + 256;
        let wanted = (2 * window.max(10)).saturating_mul(each).min(most);
        if info.flight_size < info.cwnd
            && let Ok(socket) = self.socket_mut(fd)
            && !socket.options.sndbuf_fixed
        {
            socket.options.sndbuf = socket.options.sndbuf.max(wanted);
        }
    }

    /// Decides whether the segment that ends at `end`, the end of a part of a write, has PSH.
    ///
    /// A part has PSH if `last` is true, which is the case for the last part of a write without
    /// MSG_MORE. Any other part has PSH if it ends more than half the largest offered window after
    /// the last PSH.
    pub(crate) fn mark_push(&mut self, id: FlowId, end: u32, last: bool) {
        let window = self.flow_info(id).map_or(0, |info| info.snd_wnd_max);
        let packet_ends = &mut self.wire.streams(id).packet_ends;
        let forced = end.wrapping_sub(packet_ends.last_push) > window / 2;
        if last || forced {
            packet_ends.push(end);
        }
    }

    /// Returns the payload of a full buffer of a flow in bytes.
    fn buffer_goal(&self, id: FlowId) -> u32 {
        let info = self.flow_info(id);
        let (mss, wnd) = info.map_or((1, 0), |info| (info.mss.max(1), info.snd_wnd_max));
        buffer_len(mss, wnd)
    }

    /// Returns the bytes that Linux would account for the send queue: the payload and an estimate
    /// of the buffers' overhead.
    pub(crate) fn queued(&self, id: FlowId) -> u32 {
        let Some(info) = self.flow_info(id) else {
            return 0;
        };
        let burst = BURST_SEGMENTS * info.mss.max(1);
        let in_flight = info.flight_size.div_ceil(burst);
        let unsent = self.unsent_of(id);
        let waiting = unsent.div_ceil(self.buffer_goal(id));
        info.flight_size + unsent + (in_flight + waiting) * BUFFER_OVERHEAD
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
