//! All that the fast path does not take: opening, closing, anything out of order, loss, timeouts.
//!
//! [`Slow`] is one flow in the slow path's hands. SEGMENT ARRIVES is split by the eight checks of
//! RFC 9293 §3.10.7.4, in `arrive`; `recover` decides what is lost; `output` builds what is sent;
//! `timeout` does what is due.
#![forbid(unsafe_code)]

mod answer;
mod arrive;
mod blocks;
mod connection;
pub mod cookies;
mod delivered;
mod delivery;
mod ecn;
mod fast_open;
mod frto;
mod heard;
pub mod iss;
mod marks;
mod mtu;
mod open;
mod output;
mod pacing;
mod path;
mod paths;
mod paws;
mod probe;
mod prr;
pub mod ranges;
mod records;
mod recover;
mod reorder;
mod report;
mod rtt;
mod rtt_min;
mod scoreboard;
mod text;
mod timeout;
mod undo;
mod urgent;
mod version;

pub use answer::{ANSWER_INTERVAL_MS, is_limited};
pub use blocks::WithBlocks;
pub use connection::Connection;
pub use fast_open::{Answer, FastOpen, syn_room};
pub use heard::HEARD_INTERVAL;
pub use open::{SynSeen, is_wscale_impossible, new_connection, put_options, window_most};
pub use paths::{Path, Paths};
pub use urgent::Urgent;

use tidelane_flow::{
    Clock, Counters, EngineConfig, Event, FlowId, FlowState, State, Timeouts, flags,
};

/// What becomes of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It goes on.
    Keep,
    /// It is in TIME-WAIT: only its ends and numbers have to be kept.
    TimeWait,
    /// It is over, and nobody needs its number.
    Release,
}

/// One flow with all that the slow path needs.
pub struct Slow<'a, E> {
    /// Its number.
    pub id: FlowId,
    /// Hot state.
    pub hot: &'a mut FlowState,
    /// Cold state.
    pub cold: &'a mut Connection,
    /// The time.
    pub clock: Clock,
    /// Policy.
    pub config: &'a EngineConfig,
    /// The same, in the unit of flows.
    pub timeouts: &'a Timeouts,
    /// Counters.
    pub counters: &'a mut Counters,
    /// What is known of the paths to all destinations.
    pub paths: &'a mut Paths,
    /// Challenge ACKs left in this second (RFC 5961 §10).
    pub challenges: &'a mut u32,
    /// The driver.
    pub env: &'a mut E,
}

impl<E: tidelane_flow::Env> Slow<'_, E> {
    /// Whether the fast path may have the flow again.
    pub fn settle(&mut self) {
        // The fast path knows nothing of the persist timer, nor of doubled timeouts.
        let calm = self.config.fast_path
            && self.hot.state == State::Established
            && !self.hot.has(flags::PERSIST)
            && self.cold.ca_state == tidelane_flow::CaState::Open
            && self.cold.backoff == 0
            && self.cold.urgent.is_over()
            && self.cold.board.is_none();
        let receive = calm
            && self.cold.ooo.is_empty()
            && self.cold.dsack.is_none()
            && self.cold.fin_at.is_none()
            && !self.cold.snd_wl1.after(self.hot.rcv_nxt)
            && !self.cold.mss_bounded
            // DCTCP counts each window of acknowledgments (RFC 8257 §3.3), marked or not.
            && !self.is_dctcp();
        self.hot
            .put(flags::FAST_RECEIVE, receive && !self.cold.is_orphan);
        // Text that has more to say than its bytes.
        let plain = self.cold.cwr_queued == tidelane_wire::TcpFlags::NONE
            && (self.cold.ooo.is_empty() || !self.hot.has(flags::SACK));
        let searching = self.cold.mtu.is_open(self.cold.path_mss);
        let ordinary = plain && !self.is_paced() && !searching;
        self.hot.put(flags::FAST_SEND, calm && ordinary);
        self.hot.note_edge();
        let deadline = self.cold.slow_deadline.or(self.cold.path_deadline);
        self.hot.put(flags::SLOW_DEADLINE, deadline.is_some());
    }

    /// Tells the program that the connection is over (RFC 9293 MUST-12); the flow goes once the
    /// program has closed it.
    pub fn end(&mut self, cause: tidelane_flow::CloseCause) -> Fate {
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
        self.cold.slow_deadline = None;
        self.cold.path_deadline = None;
        self.cold.reorder_deadline = None;
        self.cold.pacing.deadline = None;
        if self.cold.is_orphan {
            return Fate::Release;
        }
        if self.cold.cause.is_none() {
            self.cold.cause = Some(cause);
            self.env.event(self.id, Event::Closed(cause));
        }
        Fate::Keep
    }
}

/// The RST that answers a segment without a flow (RFC 9293 §3.10.7.1); none for a RST.
pub fn reset_reply(
    segment: &tidelane_wire::Segment<'_>,
    key: tidelane_wire::FlowKey,
    link: tidelane_flow::LinkId,
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
        flow: None,
        key,
        link,
        seq,
        ack,
        flags: control,
        wnd: 0,
        options: TcpOptions::NONE,
        payload_pos: 0,
        payload_len: 0,
        segment_size: 0,
        ecn: Ecn::NotEct,
    })
}
