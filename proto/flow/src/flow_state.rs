//! The hot state of a flow: all that fast path and slow path share, two cache lines.
//!
//! |  at | field           | RFC name, or what it is                       | written by          |
//! |-----|-----------------|-----------------------------------------------|---------------------|
//! |   0 | `rcv_nxt`       | RCV.NXT                                       | receive, slow       |
//! |   4 | `rcv_adv`       | right edge advertised: RCV.NXT + RCV.WND      | send (any ACK)      |
//! |   8 | `last_ack_sent` | Last.ACK.sent (RFC 7323)                      | send (any ACK)      |
//! |  12 | `ts_recent`     | TS.Recent (RFC 7323)                          | receive, slow       |
//! |  16 | `snd_una`       | SND.UNA                                       | receive, slow       |
//! |  20 | `snd_nxt`       | SND.NXT; also SND.MAX, as it never goes back  | send, slow          |
//! |  24 | `snd_wnd`       | SND.WND in bytes                              | receive, slow       |
//! |  28 | `irs`           | IRS                                           | slow (open)         |
//! |  32 | `iss`           | ISS                                           | slow (open)         |
//! |  36 | `tx_end`        | sequence number after the last byte written   | tx_advance          |
//! |  40 | `rto_deadline`  | retransmission, probe or persist timeout      | send, receive, slow |
//! |  44 | `flags`         | bits of [`flags`]                             | all                 |
//! |  48 | `state`         | RFC 9293 §3.3.2                               | slow                |
//! |  49 | `scales`        | Snd.Wind.Shift (high), Rcv.Wind.Shift (low)   | slow (open)         |
//! |  50 | `rcv_mss`       | largest recent segment of the peer            | receive, slow       |
//! |  52 | `delack_at`     | low bits of the delayed ACK's deadline in ms  | engine (batch end)  |
//! |  54 | `last_arrival`  | low bits of the last arrival in s (keepalive) | receive, slow       |
//! |  56 | `rtt_seq`       | the timed segment's end                       | send                |
//! |  60 | `rtt_stamp`     | when it was sent, us                          | send                |
//! |  64 | `key`           | both ends; compared by the lookup             | slow (open)         |
//! | 100 | `link`          | where to send                                 | slow                |
//! | 102 | `mss`           | Eff.snd.MSS                                   | slow                |
//! | 104 | `cwnd`          | cwnd, bytes                                   | slow                |
//! | 108 | `rcv_wnd_limit` | quota of the receive window                   | slow                |
//! | 112 | `rx_read`       | stream position that the program has read to  | rx_advance          |
//! | 116 | `srtt`          | SRTT, us times 8 (RFC 6298)                   | receive, slow       |
//! | 120 | `rttvar`        | RTTVAR, us times 4                            | receive, slow       |
//! | 124 | `wheel_at`      | when the flow's one wheel entry fires         | engine              |
//!
//! Receiving in-order data touches the first line only, apart from the lookup's look at `key`.
//! SND.WL1 lives with the slow path: what the fast path accepts has SEG.SEQ = RCV.NXT.

use tidelane_wire::{FlowKey, SeqNumber};

use crate::{clock::Millis, ids::LinkId, state::State};

/// Bits of [`FlowState::flags`].
pub mod flags {
    /// Timestamps are in use (RFC 7323).
    pub const TIMESTAMPS: u32 = 1 << 0;
    /// SACK is in use (RFC 2018).
    pub const SACK: u32 = 1 << SACK_SHIFT;
    /// The place of [`SACK`].
    pub const SACK_SHIFT: u32 = 1;
    /// No Nagle.
    pub const NODELAY: u32 = 1 << 2;
    /// Full segments only.
    pub const CORK: u32 = 1 << 3;
    /// Acknowledge at once.
    pub const QUICKACK: u32 = 1 << 4;
    /// The fast path may receive: ESTABLISHED, nothing out of order, no loss being repaired.
    pub const FAST_RECEIVE: u32 = 1 << 5;
    /// The fast path may send: no loss being repaired, so transmissions need no record.
    pub const FAST_SEND: u32 = 1 << 6;
    /// Something arrived that is not acknowledged yet.
    pub const ACK_OWED: u32 = 1 << 7;
    /// The acknowledgment must not wait for a timer.
    pub const ACK_NOW: u32 = 1 << 8;
    /// The flow is in the list that batch end works off.
    pub const PENDING: u32 = 1 << 9;
    /// Batch end should try to send data.
    pub const SEND_WANTED: u32 = 1 << 10;
    /// `rto_deadline` holds.
    pub const RTO_ARMED: u32 = 1 << 11;
    /// `delack_at` holds.
    pub const DELACK_ARMED: u32 = 1 << 12;
    /// The flow has a wheel entry, and `wheel_at` holds.
    pub const WHEEL_ARMED: u32 = 1 << 13;
    /// `rtt_seq` and `rtt_stamp` hold.
    pub const RTT_TIMING: u32 = 1 << 14;
    /// FIN goes after `tx_end`.
    pub const FIN_QUEUED: u32 = 1 << 15;
    /// FIN was sent: it is part of `snd_nxt`.
    pub const FIN_SENT: u32 = 1 << 16;
    /// FIN of the peer is in order: it is part of `rcv_nxt`.
    pub const FIN_RECEIVED: u32 = 1 << 17;
    /// The window's right edge moves with the next segment that is sent.
    pub const EDGE_MOVES: u32 = 1 << 18;
    /// The congestion window stopped the last send: the controller may be asked for more.
    pub const CWND_LIMITED: u32 = 1 << 19;
    /// A segment that was not full was sent since all was last acknowledged (Minshall's addition to
    /// Nagle).
    pub const SMALL_SENT: u32 = 1 << 20;
    /// Every segment echoes congestion: ECE (RFC 3168 §6.1.3), or DCTCP.CE (RFC 8257 §3.2).
    pub const ECE: u32 = 1 << ECE_SHIFT;
    /// The place of [`ECE`].
    pub const ECE_SHIFT: u32 = 21;
    /// `rto_deadline` is the persist timeout.
    pub const PERSIST: u32 = 1 << 22;
    /// `rto_deadline` is a tail loss probe's.
    pub const PROBE: u32 = 1 << PROBE_SHIFT;
    /// The place of [`PROBE`].
    pub const PROBE_SHIFT: u32 = 23;
    /// All that says what `rto_deadline` is.
    pub const TIMER: u32 = RTO_ARMED | PERSIST | PROBE;
    /// The slow path has a deadline of its own (keepalive, FIN-WAIT-2, path MTU).
    pub const SLOW_DEADLINE: u32 = 1 << 24;
    /// ECN is in use: new data is sent as ECT (RFC 3168).
    pub const ECN: u32 = 1 << 25;
    /// The flow can be found by its key.
    pub const INDEXED: u32 = 1 << 26;
    /// The slot is in use.
    pub const USED: u32 = 1 << 27;
    /// What a flow has that is found by its ends.
    pub const FOUND: u32 = INDEXED | USED;
    /// What any segment that is sent does away with.
    pub const ACK_DUTIES: u32 = ACK_OWED | ACK_NOW | DELACK_ARMED;
    /// Acknowledgments still to be sent at once (quick-ack mode): four bits.
    pub const QUICK_SHIFT: u32 = 28;
}

/// Phase of the sender, in Linux' terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open,
    /// Duplicate acknowledgments or SACK blocks came; not sure of a loss yet.
    Disorder,
    /// The window is being reduced without loss.
    Cwr,
    /// Fast retransmit.
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// See the module's table.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct FlowState {
    /// RCV.NXT.
    pub rcv_nxt: SeqNumber,
    /// Right edge of the window as advertised; never goes back.
    pub rcv_adv: SeqNumber,
    /// Last.ACK.sent.
    pub last_ack_sent: SeqNumber,
    /// TS.Recent.
    pub ts_recent: u32,
    /// SND.UNA.
    pub snd_una: SeqNumber,
    /// SND.NXT.
    pub snd_nxt: SeqNumber,
    /// SND.WND in bytes.
    pub snd_wnd: u32,
    /// IRS.
    pub irs: SeqNumber,
    /// ISS.
    pub iss: SeqNumber,
    /// After the last byte that the program wrote.
    pub tx_end: SeqNumber,
    /// See [`flags::RTO_ARMED`].
    pub rto_deadline: Millis,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Connection state.
    pub state: State,
    /// Snd.Wind.Shift in the high half, Rcv.Wind.Shift in the low.
    pub scales: u8,
    /// Largest recent payload of the peer.
    pub rcv_mss: u16,
    /// See [`flags::DELACK_ARMED`].
    pub delack_at: u16,
    /// Units of 1024 ms.
    pub last_arrival: u16,
    /// See [`flags::RTT_TIMING`].
    pub rtt_seq: SeqNumber,
    /// Microseconds.
    pub rtt_stamp: u32,
    /// Both ends.
    pub key: FlowKey,
    /// Where to send.
    pub link: LinkId,
    /// Eff.snd.MSS: payload of a full segment, options deducted.
    pub mss: u16,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Receive quota, bytes.
    pub rcv_wnd_limit: u32,
    /// Stream position read to.
    pub rx_read: u32,
    /// SRTT in us, times 8; zero before the first sample.
    pub srtt: u32,
    /// RTTVAR in us, times 4.
    pub rttvar: u32,
    /// See [`flags::WHEEL_ARMED`].
    pub wheel_at: Millis,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<FlowState>() == 128);
    assert!(align_of::<FlowState>() == 64);
    // What receiving in-order data touches is the first line.
    assert!(offset_of!(FlowState, rcv_nxt) == 0);
    assert!(offset_of!(FlowState, flags) == 44);
    assert!(offset_of!(FlowState, rtt_stamp) == 60);
    // What sending and the lookup need besides is the second.
    assert!(offset_of!(FlowState, key) == 64);
    assert!(offset_of!(FlowState, wheel_at) == 124);
};

impl FlowState {
    /// Both ends.
    pub const fn key(&self) -> FlowKey {
        self.key
    }

    /// Connection state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Stream position after the last in-order byte received.
    #[inline]
    pub const fn rx_head(&self) -> u32 {
        let fin = (self.flags & flags::FIN_RECEIVED != 0) as u32;
        self.rx_pos(self.rcv_nxt).wrapping_sub(fin)
    }

    /// Stream position that the program has read to.
    pub const fn rx_read(&self) -> u32 {
        self.rx_read
    }

    /// Stream position after the last byte written.
    #[inline]
    pub const fn tx_head(&self) -> u32 {
        self.tx_pos(self.tx_end)
    }

    /// Stream position after the last byte that the peer acknowledged.
    #[inline]
    pub const fn tx_acked(&self) -> u32 {
        if self.snd_una.after(self.tx_end) {
            return self.tx_head();
        }
        match self.state {
            State::SynSent | State::SynReceived => 0,
            _ => self.tx_pos(self.snd_una),
        }
    }

    /// Stream position after the last byte that was sent.
    pub const fn tx_sent(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived => 0,
            _ => self.tx_pos(self.snd_nxt.earlier_of(self.tx_end)),
        }
    }

    /// Bytes of receive window that the program may count on. It grows with use, so a driver that
    /// tells the program when to announce reads reads this again with each event.
    pub const fn rx_window(&self) -> u32 {
        self.rcv_wnd_limit
    }

    /// Stream position of `seq` in the receive direction.
    #[inline]
    pub const fn rx_pos(&self, seq: SeqNumber) -> u32 {
        seq.0.wrapping_sub(self.irs.0).wrapping_sub(1)
    }

    /// Stream position of `seq` in the send direction.
    #[inline]
    pub const fn tx_pos(&self, seq: SeqNumber) -> u32 {
        seq.0.wrapping_sub(self.iss.0).wrapping_sub(1)
    }

    /// Whether all of `bits` are set.
    #[inline]
    pub const fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }

    /// Whether any of `bits` is set.
    #[inline]
    pub const fn has_any(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }

    /// Whether the flow is found by its ends: they may have another one by now.
    #[inline]
    pub const fn is_found(&self) -> bool {
        self.has(flags::FOUND)
    }

    /// Sets `bits`.
    #[inline]
    pub const fn set(&mut self, bits: u32) {
        self.flags |= bits;
    }

    /// Clears `bits`.
    #[inline]
    pub const fn clear(&mut self, bits: u32) {
        self.flags &= !bits;
    }

    /// Sets or clears `bits`.
    pub const fn put(&mut self, bits: u32, on: bool) {
        if on {
            self.set(bits);
        } else {
            self.clear(bits);
        }
    }

    /// FlightSize (RFC 5681): sent and not acknowledged, SYN and FIN included.
    #[inline]
    pub const fn flight_size(&self) -> u32 {
        self.snd_nxt.distance_from(self.snd_una)
    }

    /// Snd.Wind.Shift.
    #[inline]
    pub const fn snd_wscale(&self) -> u8 {
        self.scales >> 4
    }

    /// Rcv.Wind.Shift.
    #[inline]
    pub const fn rcv_wscale(&self) -> u8 {
        self.scales & 15
    }

    /// Acknowledgments left in quick-ack mode.
    #[inline]
    pub const fn quick_acks(&self) -> u32 {
        self.flags >> flags::QUICK_SHIFT
    }

    /// Sets how many acknowledgments are sent at once, at most 15.
    pub const fn set_quick_acks(&mut self, count: u32) {
        let count = if count > 15 { 15 } else { count };
        self.flags = self.flags & !(15 << flags::QUICK_SHIFT) | count << flags::QUICK_SHIFT;
    }
}
