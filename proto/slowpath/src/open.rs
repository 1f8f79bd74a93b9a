//! Connection setup: the state of new flows, and the options of SYN and SYN,ACK.

use tidelane_cc::Controller;
use tidelane_flow::{CaState, Clock, EngineConfig, FlowState, Millis, SocketOptions, flags};
use tidelane_time::TimerHandle;
use tidelane_wire::{Segment, SeqNumber};

use crate::{
    connection::{Connection, Flight, Retransmitted},
    delivered_data::DeliveredData,
    ecn::EcnSender,
    fast_open::FastOpen,
    frto::Frto,
    ip_sizes::ip_sizes,
    mtu::MtuSearch,
    pacing::Pacing,
    peer_syn::PeerSyn,
    ranges::Ranges,
    reads::Reads,
    reorder::Reordering,
    rmss::rmss,
    rtt_min::RttMin,
    sack_blocks::SackReport,
    send_times::SendTimes,
    ts_recent_age::TsRecentAge,
    urgent::Urgent,
};

/// Least MSS of a peer, as in Linux. A lower MSS in a SYN counts as this MSS, which limits the cost
/// of tiny segments.
const MSS_MIN: u16 = 48;
/// Largest window of the peer, in bytes, that a single segment may fill. If the window is larger, a
/// segment may fill at most half of the window.
const SMALL_WINDOW: u32 = 536;
/// Length of the timestamps option with padding, in bytes.
const TIMESTAMPS_LEN: u16 = 12;

/// The largest window shift, ours and the peer's (RFC 7323 §2.3).
const WSCALE_MAX: u8 = 14;

/// Returns true if the SYN announces a window shift above 14 (RFC 7323 §2.3).
pub fn has_invalid_wscale(segment: &Segment<'_>) -> bool {
    segment
        .options
        .wscale
        .is_some_and(|shift| shift > WSCALE_MAX)
}

/// Returns the receive window of a new flow in bytes.
pub fn initial_window(config: &EngineConfig, rmss: u16, options: &SocketOptions) -> u32 {
    let least = 2 * u32::from(rmss);
    let tuned = config.rx_window_initial.max(least);
    let quota = options.window.size(tuned, config.rx_window_max);
    // If the application set the window, and the window has more than two segments, offer whole
    // segments, as in Linux.
    match quota % u32::from(rmss) {
        rest if quota > least && !options.window.is_tuned() => quota - rest,
        _ => quota,
    }
}

/// Returns Rcv.Wind.Shift: the least shift, up to 14, with which the largest window that the
/// options allow fits into the 16-bit window field (RFC 7323 §2.3).
pub fn window_scale(config: &EngineConfig, options: &SocketOptions) -> u8 {
    let largest = options.window.size_max(config.rx_window_max);
    (32 - (largest >> 16).leading_zeros()).min(WSCALE_MAX.into()) as u8
}

/// Initializes the hot state (the state that the fast path uses) of a flow that is being opened.
/// Returns the MSS to announce.
fn begin(
    config: &EngineConfig,
    hot: &mut FlowState,
    mtu: u32,
    iss: SeqNumber,
    options: &SocketOptions,
) -> u16 {
    let rmss = rmss(config, hot.key.peer.addr, mtu, options);
    hot.iss = iss;
    hot.snd_una = iss;
    hot.snd_nxt = iss;
    hot.tx_end = iss.add(1);
    // IRS is unknown until the peer's SYN arrives. RCV.NXT stands for stream position 0.
    hot.rcv_nxt = hot.irs.add(1);
    hot.mss = ip_sizes(hot.key.peer.addr).mss_default.min(rmss);
    hot.rcv_mss = hot.mss;
    hot.rcv_wnd_limit = initial_window(config, rmss, options);
    hot.scales = window_scale(config, options);
    hot.set_quick_acks(if config.eager_acks { 15 } else { 8 });
    set_option_flags(hot, options);
    rmss
}

/// Sets the flags for the application's socket options.
pub fn set_option_flags(hot: &mut FlowState, options: &SocketOptions) {
    hot.assign(flags::NODELAY, options.nodelay);
    hot.assign(flags::CORK, options.cork);
    hot.assign(flags::QUICKACK, options.quickack);
}

/// Returns the largest window that this flow can advertise.
pub fn window_max(config: &EngineConfig, hot: &FlowState) -> u32 {
    config.rx_window_max.min(0xffff << hot.rcv_wscale())
}

/// Creates the congestion control that the application chose, or the engine's default.
fn first_controller(config: &EngineConfig, options: &SocketOptions, mss: u16) -> Controller {
    let algorithm = options.congestion.unwrap_or(config.congestion);
    Controller::new(algorithm, u32::from(mss), config.initial_window)
}

/// Initializes the hot state of a flow that is being opened. Returns the cold state, which only the
/// slow path uses. `mtu` is the MTU of the link.
pub fn new_connection(
    config: &EngineConfig,
    clock: &Clock,
    (mtu, options): (u32, SocketOptions),
    hot: &mut FlowState,
    iss: SeqNumber,
) -> Connection {
    let rmss = begin(config, hot, mtu, iss, &options);
    Connection {
        controller: first_controller(config, &options, hot.mss),
        ca_state: CaState::Open,
        scoreboard: None,
        loss_suspected: false,
        send_times: SendTimes::default(),
        loss_suspected_at: clock.ms,
        ooo: Ranges::default(),
        sack_report: SackReport::default(),
        dup_acks: 0,
        recovery_point: iss,
        reduced_until: iss,
        ignore_cwnd_once: false,
        undo: None,
        prr: None,
        pacing: Pacing::new(),
        delivered: DeliveredData::default(),
        urgent: Urgent::default(),
        frto: Frto::Off,
        ecn: EcnSender::default(),
        reordering: Reordering::new(),
        probe_end: None,
        dsack: None,
        reorder_deadline: None,
        probe_sent: false,
        timeouts: 0,
        backoff: 0,
        fin_without_data: false,
        snd_una_seen: iss,
        flight: Flight::none(iss),
        snd_wl1: SeqNumber(0),
        snd_wnd_max: 0,
        listener: None,
        accept_queue_full: false,
        deferred: false,
        options,
        rmss,
        path_mss: rmss,
        mtu: MtuSearch::default(),
        mss_bounded_by_window: false,
        peer_mss: ip_sizes(hot.key.peer.addr).mss_default,
        offer_wscale: true,
        fast_open: FastOpen::default(),
        cause: None,
        fin_at: None,
        keepalive_deadline: None,
        unanswered_probes: 0,
        answered_at: Millis(clock.ms.0.wrapping_sub(1 << 30)),
        last_arrival: clock.ms,
        ts_recent_age: TsRecentAge::at(clock),
        reads: Reads::default(),
        path_deadline: None,
        retrans_since: None,
        persist_since: None,
        timer: TimerHandle::NULL,
        is_orphan: false,
        tx_blocked: false,
        retrans: Retransmitted::default(),
        rtt_min: RttMin::default(),
        soft_error: None,
    }
}

impl Connection {
    /// Applies the peer's SYN (RFC 9293 §3.7.1, RFC 7323 §2.2 and §3.2, RFC 2018 §2).
    pub fn apply_syn(&mut self, config: &EngineConfig, hot: &mut FlowState, syn: &PeerSyn) {
        hot.irs = syn.irs;
        hot.rcv_nxt = syn.irs.add(1);
        hot.rcv_adv = hot.rcv_nxt;
        hot.last_ack_sent = hot.rcv_nxt;
        self.snd_wl1 = syn.irs;
        hot.snd_wnd = u32::from(syn.wnd);
        self.snd_wnd_max = hot.snd_wnd;
        let mss_default = ip_sizes(hot.key.peer.addr).mss_default;
        self.peer_mss = syn.options.mss.unwrap_or(mss_default).max(MSS_MIN);
        match syn.options.wscale {
            Some(shift) => hot.scales = (shift.min(WSCALE_MAX) << 4) | (hot.scales & 15),
            None => {
                hot.scales = 0;
                self.offer_wscale = false;
                hot.rcv_wnd_limit = hot.rcv_wnd_limit.min(window_max(config, hot));
            }
        }
        let timestamps = config.timestamps && syn.options.timestamps.is_some();
        hot.assign(flags::TIMESTAMPS, timestamps);
        if let Some(t) = syn.options.timestamps {
            hot.ts_recent = t.tsval;
        }
        hot.assign(flags::SACK, config.sack && syn.options.sack_permitted);
        self.refresh_mss(config, hot);
        hot.assign(flags::ECN, syn.agrees_to_ecn(config, &self.options));
        let algorithm = self.algorithm(config);
        self.controller = Controller::new(algorithm, u32::from(hot.mss), config.initial_window);
        if self.timeouts > 0 {
            // A lost SYN reduces the initial window (RFC 5681 §3.1).
            self.controller.on_handshake_retransmit();
        }
        hot.cwnd = self.controller.cwnd();
    }

    /// Recomputes Eff.snd.MSS (RFC 9293 §3.7.1, MUST-16): the lesser of the peer's MSS and the MSS
    /// of the path, minus the options of each segment. The peer's largest window is a further
    /// limit, so that a receiver with a small buffer can always take a segment: a segment has at
    /// most half of this window, or the whole window if the window has at most 536 bytes.
    pub fn refresh_mss(&mut self, config: &EngineConfig, hot: &mut FlowState) {
        let options = if hot.has(flags::TIMESTAMPS) {
            TIMESTAMPS_LEN
        } else {
            0
        };
        let whole = self.peer_mss.min(self.path_mss).min(config.segment_max);
        let of_window = if self.snd_wnd_max > SMALL_WINDOW {
            self.snd_wnd_max / 2
        } else {
            self.snd_wnd_max.max(u32::from(MSS_MIN))
        };
        let mss = whole
            .saturating_sub(options)
            .min(of_window.min(u32::from(u16::MAX)) as u16)
            .max(MSS_MIN - TIMESTAMPS_LEN);
        if mss != hot.mss {
            hot.mss = mss;
            hot.update_window_edge_moves();
            self.controller.set_smss(u32::from(mss));
            hot.cwnd = self.controller.cwnd();
        }
        self.mss_bounded_by_window = u32::from(whole) > of_window;
    }
}
