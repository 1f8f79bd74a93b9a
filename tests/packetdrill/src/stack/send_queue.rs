//! The model of Linux's send queue ([`crate::queue`]) applied to the writes of a stack: the buffers
//! (skbs), SO_SNDBUF and PSH.

use tidelane_engine::FlowId;

use super::{Fd, Stack};
use crate::{
    errno::{CallResult, Errno},
    queue::{before, buffer_len},
};

/// Bytes that Linux accounts for a buffer of the send queue in addition to its payload.
const BUFFER_OVERHEAD: u32 = 896;
/// Assumed number of segments in a buffer that is in flight, from which the number of these buffers
/// is estimated. Linux splits a buffer when a part of it leaves in a packet. The value is about an
/// initial window.
const BURST_SEGMENTS: u32 = 10;

impl Stack {
    /// Returns the number of bytes that the next write may append to one buffer, or 0 if the queue
    /// is full.
    ///
    /// A write first fills the last buffer. If the last buffer is full, ends a record or is sent
    /// completely, a write starts a new buffer, unless the queue has reached SO_SNDBUF or
    /// TCP_NOTSENT_LOWAT.
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
    /// `tcp_new_space` does. Does nothing if the program set SO_SNDBUF.
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
    /// A part has PSH if `last` is true: for the last part of a write without MSG_MORE, and for the
    /// last part that fits. Any other part has PSH if the part ends more than half the largest
    /// offered window after the last PSH.
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
