//! State of a flow for `TCP_INFO` and `ss -ti`.

use std::ops::Range;

use tidelane_flow::{EngineConfig, FlowInfo, FlowState, State, Timeouts, flags};
use tidelane_time::Duration;

use crate::Connection;

impl Connection {
    /// Returns the present state of the flow.
    pub fn info(&self, flow: &FlowState, config: &EngineConfig) -> FlowInfo {
        let srtt_us = u64::from(flow.srtt >> 3);
        let rttvar_us = u64::from(flow.rttvar >> 2);
        let rto = flow.rto_ms_after(&Timeouts::of(config), self.backoff);
        FlowInfo {
            key: flow.key,
            state: flow.state,
            ca_state: self.ca_state,
            congestion: self.controller.algorithm().name(),
            details: self.controller.details(),
            srtt: Duration::from_micros(srtt_us),
            rttvar: Duration::from_micros(rttvar_us),
            rtt_min: Duration::from_micros(u64::from(self.rtt_min.us())),
            rto: Duration::from_millis(u64::from(rto)),
            cwnd: flow.cwnd,
            pacing_rate: self.pacing_rate(flow),
            pacing_rate_max: self.options.pacing_rate_max,
            ssthresh: self.controller.ssthresh(),
            mss: u32::from(flow.mss),
            rcv_mss: u32::from(flow.rcv_mss),
            snd_wnd: flow.snd_wnd,
            snd_wnd_max: self.snd_wnd_max.max(flow.snd_wnd),
            rcv_wnd: flow.rcv_adv.distance_from(flow.rcv_nxt),
            snd_wscale: flow.snd_wscale(),
            rcv_wscale: flow.rcv_wscale(),
            timestamps: flow.has(flags::TIMESTAMPS),
            sack: flow.has(flags::SACK),
            ecn: flow.has(flags::ECN),
            syn_data: self.fast_open.syn_data_acked,
            fast_open_pending: self.fast_open.pending && flow.state == State::SynReceived,
            flight_size: flow.flight_size(),
            sacked: self
                .scoreboard
                .as_ref()
                .map_or(0, |scoreboard| scoreboard.sacked()),
            lost: self
                .scoreboard
                .as_ref()
                .map_or(0, |scoreboard| scoreboard.lost()),
            retrans_out: self
                .scoreboard
                .as_ref()
                .map_or(0, |scoreboard| scoreboard.retrans_out()),
            reordering: self.reordering.degree,
            reorder_seen: self.reordering.seen,
            unsent: if flow.tx_end.after(flow.snd_nxt) {
                flow.tx_end.distance_from(flow.snd_nxt)
            } else {
                0
            },
            unread: flow.rx_head().wrapping_sub(flow.rx_read),
            ooo_ranges: self.ooo.len() as u32,
            bytes_acked: u64::from(flow.tx_acked()),
            bytes_received: u64::from(flow.rx_head()),
            retrans: self.retrans.segments,
            retrans_bytes: self.retrans.bytes,
            timeouts: self.timeouts,
            backoff: self.backoff,
            probes: if flow.has(flags::PERSIST) {
                self.unanswered_probes
            } else {
                0
            },
            dsacks: self.reordering.dsacks,
            path_mss: self.path_mss.into(),
            link: flow.link,
            listener: self.listener,
        }
    }

    /// Returns the stream positions of the bytes that were received and not read: the range in
    /// order, then each out-of-order range.
    pub fn received(&self, flow: &FlowState) -> impl Iterator<Item = Range<u32>> {
        let in_order = flow.rx_read()..flow.rx_head();
        let behind_holes = self.ooo.iter();
        let position = |seq| flow.rx_pos(seq);
        let behind_holes = behind_holes.map(move |(start, end)| position(start)..position(end));
        std::iter::once(in_order).chain(behind_holes)
    }
}
