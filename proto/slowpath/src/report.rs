//! A flow in the words of `ss -ti`, and ICMP errors about it.

use tidelane_flow::{CloseCause, EngineConfig, Env, FlowInfo, FlowState, State, Timeouts, flags};
use tidelane_time::Duration;
use tidelane_wire::{IcmpError, IcmpErrorKind};

use crate::{Connection, Fate, Slow};

/// IPv4 and TCP headers without options.
const HEADERS_LEN: u16 = 40;
/// Least path MTU that an ICMP error may ask for: below it is an attack (Linux: 552).
const PATH_MTU_MIN: u16 = 552;

impl Connection {
    /// What there is to know.
    pub fn info(&self, flow: &FlowState, config: &EngineConfig) -> FlowInfo {
        let srtt_us = u64::from(flow.srtt >> 3);
        let rttvar_us = u64::from(flow.rttvar >> 2);
        let rto = flow.rto_ms_after(&Timeouts::of(config), self.backoff);
        FlowInfo {
            key: flow.key,
            state: flow.state,
            ca_state: self.ca_state,
            congestion: self.controller.algorithm().name(),
            srtt: Duration::from_micros(srtt_us),
            rttvar: Duration::from_micros(rttvar_us),
            rtt_min: Duration::from_micros(u64::from(self.rtt_min_us)),
            rto: Duration::from_millis(u64::from(rto)),
            cwnd: flow.cwnd,
            ssthresh: self.controller.ssthresh(),
            mss: u32::from(flow.mss),
            rcv_mss: u32::from(flow.rcv_mss),
            snd_wnd: flow.snd_wnd,
            rcv_wnd: flow.rcv_adv.distance_from(flow.rcv_nxt),
            snd_wscale: flow.snd_wscale(),
            rcv_wscale: flow.rcv_wscale(),
            timestamps: flow.has(flags::TIMESTAMPS),
            sack: flow.has(flags::SACK),
            flight_size: flow.flight_size(),
            unsent: if flow.tx_end.after(flow.snd_nxt) {
                flow.tx_end.distance_from(flow.snd_nxt)
            } else {
                0
            },
            unread: flow.rx_head().wrapping_sub(flow.rx_read),
            ooo_ranges: self.ooo.len() as u32,
            bytes_acked: u64::from(flow.tx_acked()),
            bytes_received: u64::from(flow.rx_head()),
            retrans: self.retrans,
            backoff: self.backoff,
            link: flow.link,
            listener: self.listener,
        }
    }
}

impl<E: Env> Slow<'_, E> {
    /// An ICMP error that quotes this flow: hard before the connection is established, a hint after
    /// (RFC 9293 §3.9.2.2; RFC 5927 §4.1: the quoted number must be outstanding).
    pub fn icmp_error(&mut self, error: &IcmpError) -> Fate {
        let flight = self.hot.flight_size().max(1);
        if !error.seq.in_window(self.hot.snd_una, flight) {
            let reason = tidelane_wire::DropReason::IcmpOutOfWindow;
            self.counters.drops[reason.index()] += 1;
            return Fate::Keep;
        }
        self.counters.icmp_errors += 1;
        let cause = match error.kind {
            IcmpErrorKind::FragmentationNeeded { mtu } => {
                self.shrink_mss(mtu);
                return Fate::Keep;
            }
            IcmpErrorKind::PortUnreachable => CloseCause::Refused,
            IcmpErrorKind::NetUnreachable => CloseCause::NetUnreachable,
            _ => CloseCause::HostUnreachable,
        };
        if self.hot.state == State::SynSent {
            self.counters.attempt_fails += 1;
            return self.end(cause);
        }
        self.cold.soft_error = Some(cause);
        Fate::Keep
    }

    fn shrink_mss(&mut self, mtu: u16) {
        let path = mtu.max(PATH_MTU_MIN) - HEADERS_LEN;
        if path >= self.cold.path_mss.min(self.cold.smss) {
            return;
        }
        self.counters.pmtu_lowered += 1;
        self.cold.path_mss = path;
        self.cold.refresh_mss(self.config, self.hot);
        if self.hot.state.is_synchronized() {
            self.resend_all();
        }
    }
}
