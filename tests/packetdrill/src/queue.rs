//! The send queue as Linux has it: in buffers of several segments, some of whose ends are pushed.
//!
//! The engine knows only a stream of bytes. Where Linux ends a buffer, a packet ends too; and a
//! packet of one segment has PSH only at the end of a write (or half a window after the last).

use std::collections::VecDeque;

use tidelane_engine::FlowId;

use crate::{
    errno::{Answer, Errno},
    stack::{Fd, Stack},
};

/// What Linux counts for a buffer of the send queue besides its bytes.
const BUFFER_OVERHEAD: u32 = 896;
/// Most bytes in one such buffer: what segmentation offload takes.
const BUFFER_MAX: u32 = 65_536 - 320;
/// Segments that go to the device in one buffer at most: the rest of a buffer is split off.
const BURST_SEGMENTS: u32 = 10;

/// Positions in the send stream that matter to packets.
#[derive(Debug, Default)]
pub struct Marks {
    /// Ends of packets that were sent, and of buffers, ascending.
    ends: VecDeque<u32>,
    /// Ends of records: no packet goes beyond one, be it sent again.
    records: VecDeque<u32>,
    /// Ends of writes.
    pushes: VecDeque<u32>,
    /// The last of them.
    pushed: u32,
    /// Where the last buffer begins.
    tail: u32,
}

/// Whether position `a` is before `b`.
const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Marks {
    /// A packet or buffer ends here.
    pub fn end(&mut self, at: u32) {
        let later = self.ends.iter().position(|end| !before(*end, at));
        match later {
            Some(place) if self.ends[place] == at => {}
            Some(place) => self.ends.insert(place, at),
            None => self.ends.push_back(at),
        }
    }

    /// A record ends here.
    pub fn end_record(&mut self, at: u32) {
        self.records.push_back(at);
        self.end(at);
    }

    /// The first end of a record between `start` and `end`, if there is one.
    pub fn record_within(&self, start: u32, end: u32) -> Option<u32> {
        let within = |at: &&u32| before(start, **at) && before(**at, end);
        self.records.iter().find(within).copied()
    }

    /// Whether one does.
    pub fn is_end(&self, at: u32) -> bool {
        self.ends.contains(&at)
    }

    /// A write ends here.
    pub fn push(&mut self, at: u32) {
        self.pushes.push_back(at);
        self.pushed = at;
    }

    /// Whether one does.
    pub fn is_push(&self, at: u32) -> bool {
        self.pushes.contains(&at)
    }

    /// All before `acked` is done with.
    pub fn forget_before(&mut self, acked: u32) {
        for marks in [&mut self.ends, &mut self.pushes, &mut self.records] {
            while marks.front().is_some_and(|at| !before(acked, *at)) {
                marks.pop_front();
            }
        }
    }
}

impl Stack {
    /// How many bytes the next buffer of the send queue takes: what is left of the last one, or,
    /// while the queue is below its limit, a new one.
    pub(crate) fn room(&mut self, fd: Fd, id: FlowId) -> Answer<u32> {
        let flow = self.flow(id).ok_or(Errno(libc::EPIPE))?;
        let (sent, known) = (flow.tx_pos(flow.snd_nxt), flow.tx_head());
        let goal = self.buffer_goal(id);
        let options = &self.socket(fd)?.options;
        let (sndbuf, unsent_max) = (options.sndbuf, options.unsent_max());
        let full = self.queued(id) >= sndbuf || self.unsent_of(id) >= unsent_max;
        let streams = self.wire.streams(id);
        let written = streams.written.unwrap_or(known);
        let begin = match before(streams.marks.tail, sent) {
            true => sent,
            false => streams.marks.tail,
        };
        let tail = written.wrapping_sub(begin);
        let ended = streams.record_ends.back() == Some(&written);
        if tail > 0 && tail < goal && !ended {
            return Ok(goal - tail);
        }
        if full {
            return Ok(0);
        }
        streams.marks.tail = written;
        if tail > 0 {
            streams.marks.end(written);
        }
        Ok(goal)
    }

    /// A send buffer that is in the way of the congestion window grows with it (Linux'
    /// `tcp_sndbuf_expand`), unless the program set it.
    pub(crate) fn expand_buffer(&mut self, fd: Fd, id: FlowId) {
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

    /// Bytes go into the queue that end at `end`; `last`: and the write with them.
    pub(crate) fn mark_push(&mut self, id: FlowId, end: u32, last: bool) {
        let window = self.flow_info(id).map_or(0, |info| info.snd_wnd_max);
        let marks = &mut self.wire.streams(id).marks;
        let forced = end.wrapping_sub(marks.pushed) > window / 2;
        if last || forced {
            marks.push(end);
        }
    }

    /// Bytes of a full buffer: whole segments, at most half of the largest window that the peer
    /// offered.
    fn buffer_goal(&self, id: FlowId) -> u32 {
        let info = self.flow_info(id);
        let (mss, wnd) = info.map_or((1, 0), |info| (info.mss.max(1), info.snd_wnd_max));
        let most = BUFFER_MAX.min((wnd / 2).max(mss));
        most - most % mss
    }

    /// What the send queue counts for: bytes, and what each buffer costs besides.
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
    fn ends_stay_in_order_and_go_when_acknowledged() {
        let mut marks = Marks::default();
        for at in [300, 100, 200, 100] {
            marks.end(at);
        }
        marks.push(300);
        assert_eq!(marks.ends, [100, 200, 300]);
        marks.forget_before(200);
        assert!(!marks.is_end(200) && marks.is_end(300) && marks.is_push(300));
    }
}
