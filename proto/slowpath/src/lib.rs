//! The slow path of the TCP engine: setup, teardown, out-of-order data, loss recovery and timeouts.
//! The crate `tidelane-engine` calls the slow path for everything that the fast path does not
//! handle. The fast path is limited to in-order data, new ACKs and new data to send, on established
//! flows (connections) without losses.
//!
//! [`SlowPath`] borrows the state of one flow for one slow-path call. The module `arrive` splits
//! SEGMENT ARRIVES into the eight checks of RFC 9293 §3.10.7.4. The module `recover` detects
//! losses, `output` builds the segments to send, and `timeout` handles expired timers.
#![forbid(unsafe_code)]

mod ack_effects;
mod answer;
mod arrive;
mod connection;
mod delivered_data;
mod delivery_rate;
mod ecn;
mod fast_open;
mod frto;
mod icmp;
mod ip_sizes;
mod mtu;
mod open;
mod output;
mod pacing;
mod path_mtu;
mod paws;
mod peer_syn;
mod prr;
pub mod ranges;
mod reads;
mod recover;
mod reorder;
mod report;
mod rmss;
mod rtt_min;
mod rtt_sample;
mod sack_blocks;
mod scoreboard;
mod send_times;
mod text;
mod timeout;
mod tlp;
mod tracking;
mod ts_recent_age;
mod undo;
mod urgent;

pub use answer::{ANSWER_INTERVAL_MS, is_rate_limited};
pub use connection::Connection;
pub use fast_open::{FastOpen, FastOpenAnswer, syn_room};
pub use ip_sizes::ip_sizes;
pub use open::{
    has_invalid_wscale, initial_window, new_connection, set_option_flags, window_max, window_scale,
};
pub use path_mtu::{PathMtu, PathMtuStore};
pub use peer_syn::PeerSyn;
pub use reads::Reads;
pub use rmss::rmss;
pub use sack_blocks::WithSackBlocks;
pub use ts_recent_age::TS_RECENT_CHECK_INTERVAL;
pub use urgent::Urgent;

use tidelane_flow::{
    Clock, Counters, EngineConfig, Event, FlowId, FlowState, State, Timeouts, flags,
};

/// Outcome of a slow-path call: whether the engine keeps or frees the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The flow stays in the table.
    Keep,
    /// The flow enters TIME-WAIT. The engine's table for TIME-WAIT stores only the state that
    /// answers need: 4-tuple, sequence numbers, TS.Recent, link and DiffServ field. The engine
    /// frees the flow once the application has closed the socket.
    TimeWait,
    /// The connection is over. The engine frees the flow and its id.
    Release,
}

/// A flow and its surroundings, borrowed for one slow-path call.
pub struct SlowPath<'a, E> {
    /// Id of the flow.
    pub id: FlowId,
    /// State that the fast path and the slow path share.
    pub hot: &'a mut FlowState,
    /// State that only the slow path uses.
    pub cold: &'a mut Connection,
    /// Current time.
    pub clock: Clock,
    /// Configuration of the engine.
    pub config: &'a EngineConfig,
    /// Timeouts of `config`, converted to milliseconds and microseconds.
    pub timeouts: &'a Timeouts,
    /// Counters of the engine.
    pub counters: &'a mut Counters,
    /// Path MTUs that earlier connections have found, by destination.
    pub path_mtus: &'a mut dyn PathMtuStore,
    /// Number of challenge ACKs that the engine may still send in this second (RFC 5961 §7).
    pub challenges: &'a mut u32,
    /// The driver, which is the program that runs the engine, transmits segments and delivers
    /// events to the application.
    pub driver: &'a mut E,
}

impl<E: tidelane_flow::Driver> SlowPath<'_, E> {
    /// Recomputes the flags that the fast path and the engine check. FAST_RECEIVE allows the fast
    /// path to handle arriving segments, and FAST_SEND allows the fast path to send new data.
    /// SLOW_DEADLINE is set if the slow path has a keepalive, FIN-WAIT-2 or path MTU deadline.
    pub fn update_fast_path(&mut self) {
        // The fast path handles neither the persist timer nor a backed-off RTO.
        let eligible = self.config.fast_path
            && self.hot.state == State::Established
            && !self.hot.has(flags::PERSIST)
            && self.cold.ca_state == tidelane_flow::CaState::Open
            && self.cold.backoff == 0
            && self.cold.urgent.is_over()
            && self.cold.scoreboard.is_none();
        let receive = eligible
            && self.cold.ooo.is_empty()
            && self.cold.dsack.is_none()
            && self.cold.fin_at.is_none()
            && !self.cold.snd_wl1.after(self.hot.rcv_nxt)
            && !self.cold.mss_bounded_by_window
            // DCTCP must count the bytes of every ACK, with or without ECE (RFC 8257 §3.3).
            && !self.is_dctcp();
        self.hot
            .assign(flags::FAST_RECEIVE, receive && !self.cold.is_orphan);
        // The fast path sends plain data segments: no CWR, no SACK blocks.
        let no_options = self.cold.ecn.cwr_queued == tidelane_wire::TcpFlags::NONE
            && (self.cold.ooo.is_empty() || !self.hot.has(flags::SACK));
        let is_searching_mtu = self.cold.mtu.is_searching(self.cold.path_mss);
        let plain_data = no_options && !self.is_paced() && !is_searching_mtu;
        self.hot.assign(flags::FAST_SEND, eligible && plain_data);
        self.hot.update_window_edge_moves();
        let deadline = self.cold.keepalive_deadline.or(self.cold.path_deadline);
        self.hot.assign(flags::SLOW_DEADLINE, deadline.is_some());
    }

    /// Moves the flow to CLOSED. If the application has closed the socket, the engine then frees
    /// the flow. Otherwise the application gets an event with the cause (RFC 9293 MUST-12), except
    /// if an earlier event has reported a cause. Without a close, the engine keeps the flow until
    /// the application closes the socket.
    pub fn end(&mut self, cause: tidelane_flow::CloseCause) -> Outcome {
        self.hot.state = State::Closed;
        self.hot.clear(
            flags::RTO_ARMED
                | flags::DELACK_ARMED
                | flags::ACK_OWED
                | flags::ACK_NOW
                | flags::FAST_RECEIVE
                | flags::FAST_SEND
                | flags::SEND_WANTED,
        );
        self.cold.keepalive_deadline = None;
        self.cold.path_deadline = None;
        self.cold.reorder_deadline = None;
        self.cold.pacing.deadline = None;
        let is_first = self.cold.cause.is_none();
        if is_first {
            self.cold.cause = Some(cause);
        }
        if self.cold.is_orphan {
            return Outcome::Release;
        }
        if is_first {
            self.driver.event(self.id, Event::Closed(cause));
        }
        Outcome::Keep
    }
}

/// Builds the RST, with the IP fields `ip`, that answers a segment for which no connection exists
/// (RFC 9293 §3.10.7.1). Returns `None` if the segment is itself a RST.
pub fn reset_reply(
    segment: &tidelane_wire::Segment<'_>,
    key: tidelane_wire::FlowKey,
    link: tidelane_flow::LinkId,
    ip: tidelane_wire::IpFields,
) -> Option<tidelane_flow::SegmentOut> {
    use tidelane_wire::{Ecn, SeqNumber, TcpFlags, TcpOptions};
    if segment.flags.contains(TcpFlags::RST) {
        return None;
    }
    let (seq, ack, control) = if segment.flags.contains(TcpFlags::ACK) {
        (segment.ack, SeqNumber(0), TcpFlags::RST)
    } else {
        (
            SeqNumber(0),
            segment.seq.add(segment.len()),
            TcpFlags::RST | TcpFlags::ACK,
        )
    };
    Some(tidelane_flow::SegmentOut {
        origin: tidelane_flow::Origin::NoFlow(ip),
        key,
        link,
        seq,
        ack,
        flags: control,
        wnd: 0,
        urgent: 0,
        options: TcpOptions::NONE,
        payload_pos: 0,
        payload_len: 0,
        segment_size: 0,
        ecn: Ecn::NotEct,
    })
}
