//! State of a flow (connection) for `TCP_INFO` and `ss -ti`.

use std::ops::Range;

use tidelane_flow::{Driver, EngineConfig, FlowInfo, FlowState, State, Timeouts, Traffic, flags};
use tidelane_time::Duration;
use tidelane_wire::Segment;

use crate::{Connection, SlowPath};

impl Connection {
    /// Returns the present state of the flow.
    pub fn info(&self, flow: &FlowState, config: &EngineConfig) -> FlowInfo {
        let (srtt_us, rttvar_us) = (u64::from(flow.srtt >> 3), u64::from(flow.rttvar >> 2));
        let (sacked, lost, retrans_out) = match &self.scoreboard {
            Some(board) => (board.sacked(), board.lost(), board.retrans_out()),
            None => (0, 0, 0),
        };
        let sampler = self.pacing.sampler.as_ref();
        let (delivery_rate, app_limited) = sampler.map_or((0, true), |sampler| sampler.rate());
        let rto = flow.rto_ms_after(&Timeouts::of(config), self.backoff);
        FlowInfo {
            key: flow.key,
            state: flow.state,
            ca_state: self.ca_state,
            congestion: self.controller.algorithm().name(),
            cc_info: self.controller.cc_info(),
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
            fast_open_pending: self.fast_open.accepted_early && flow.state == State::SynReceived,
            flight_size: flow.flight_size(),
            sacked,
            lost,
            retrans_out,
            reordering: self.reordering.degree,
            reorder_seen: self.reordering.seen,
            unsent: flow.unsent(),
            unread: flow.rx_head().wrapping_sub(flow.rx_read),
            ooo_segs_in: self.sack_report.segments,
            ooo_ranges: self.ooo.len() as u32,
            bytes_acked: flow.traffic.acked(flow.tx_acked()),
            bytes_received: self.reads.total(flow.rx_read)
                + u64::from(flow.rx_head().wrapping_sub(flow.rx_read)),
            retrans: self.retrans.segments,
            retrans_bytes: self.retrans.bytes,
            traffic: flow.traffic,
            delivered: self.delivered_segments(flow),
            delivered_ce: self.ecn.delivered_ce,
            delivery_rate,
            app_limited,
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

    /// Returns the number of segments that the peer has acknowledged or SACKed, the SYN included
    /// (Linux: `tcpi_delivered`). The number is an estimate, because all data in flight counts as
    /// full segments.
    fn delivered_segments(&self, flow: &FlowState) -> u32 {
        let syn = flow.snd_una.after(flow.iss) && flow.state != State::SynReceived;
        let sent = flow.traffic.data_segs_out;
        let originals = sent.wrapping_sub(self.retrans.data_segments);
        let sacked = self.scoreboard.as_ref().map_or(0, |board| board.sacked());
        // A FIN that was sent with data belongs to the last data segment, so the sequence number of
        // the FIN must not count as a further segment.
        let joined = flow.has(flags::FIN_SENT) && !self.fin_without_data;
        let fin = u32::from(joined && flow.snd_una != flow.snd_nxt);
        let left = flow.flight_size().saturating_sub(sacked + fin);
        let left = left.div_ceil(flow.mss.max(1).into());
        // Linux counts a SYN with data as one segment.
        let twice = self.listener.is_none() && self.fast_open.syn_data_acked;
        (u32::from(syn) + u32::from(self.fin_without_data))
            .wrapping_add(originals)
            .saturating_sub(left + u32::from(twice))
    }

    /// Returns the stream positions of the bytes that have arrived and that the application has not
    /// read: first the range that is in order, then each out-of-order range.
    pub fn received(&self, flow: &FlowState) -> impl Iterator<Item = Range<u32>> {
        let in_order = flow.rx_read()..flow.rx_head();
        let behind_holes = self.ooo.iter();
        let position = |seq| flow.rx_pos(seq);
        let behind_holes = behind_holes.map(move |(start, end)| position(start)..position(end));
        std::iter::once(in_order).chain(behind_holes)
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Begins the segment counts of a connection that `segment` establishes. A passive open counts
    /// the peer's SYN and `segment`, but not our SYN,ACK (as in Linux).
    pub(crate) fn begin_counts(&mut self, segment: &Segment<'_>) {
        if self.cold.listener.is_some() {
            self.hot.traffic = Traffic::after_syn(self.clock.ms);
            self.hot.traffic.on_arrival(!segment.payload.is_empty());
        } else {
            self.hot.traffic.establish(self.clock.ms);
        }
    }
}
