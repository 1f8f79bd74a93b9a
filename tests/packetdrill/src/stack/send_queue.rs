//! Applies the model of Linux's send queue ([`crate::queue`]) to the writes of a stack. The model
//! covers the buffers (skbs) of the queue, SO_SNDBUF and PSH.

use tidelane_engine::FlowId;

use super::{Fd, Stack};
use crate::{
    errno::{CallResult, Errno},
    queue::{before, buffer_len},
};

/// Bytes that Linux accounts for a buffer of the send queue in addition to its payload.
const BUFFER_OVERHEAD: u32 = 896;
/// Assumed number of segments in each buffer that is in flight, from which the number of these
/// buffers is estimated. If a window lets Linux send only a part of a buffer, Linux splits the
/// buffer there. A buffer in flight is therefore assumed to hold one burst, of about an initial
/// window.
const BURST_SEGMENTS: u32 = 10;

impl Stack {
    /// Returns the number of bytes that the next write may append to one buffer, or 0 if the queue
    /// is full.
    ///
    /// A write first fills the last buffer of the queue. A write needs a new buffer if the last
    /// buffer is full, ends a record (the data up to the end of a write with MSG_EOR), or is sent
    /// completely. The queue is full if a new buffer is needed and the queue has reached SO_SNDBUF
    /// or TCP_NOTSENT_LOWAT.
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

    /// Grows SO_SNDBUF if the flow (connection) has less than a congestion window in flight, as
    /// Linux's `tcp_new_space` does. Does nothing if the program set SO_SNDBUF.
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

    /// Decides whether the segment that ends at the stream position `end` has PSH. A part of a
    /// write ends at `end`.
    ///
    /// The segment has PSH if `last` is true. The caller sets `last` for the last part of a write
    /// without MSG_MORE, and for the last part that fits into the send queue. If `last` is false,
    /// the segment has PSH only if `end` is far enough after the previous PSH: by more than half of
    /// the largest window that the peer has offered.
    pub(crate) fn mark_push(&mut self, id: FlowId, end: u32, last: bool) {
        let window = self.flow_info(id).map_or(0, |info| info.snd_wnd_max);
        let packet_ends = &mut self.wire.streams(id).packet_ends;
        let forced = end.wrapping_sub(packet_ends.last_push) > window / 2;
        if last || forced {
            packet_ends.push(end);
        }
    }

    /// Returns the payload length of a full buffer of the flow `id`, in bytes.
    fn buffer_goal(&self, id: FlowId) -> u32 {
        let info = self.flow_info(id);
        let (mss, wnd) = info.map_or((1, 0), |info| (info.mss.max(1), info.snd_wnd_max));
        buffer_len(mss, wnd)
    }

    /// Returns the number of bytes that Linux would account for the send queue: the payload and an
    /// estimate of the buffers' overhead.
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
