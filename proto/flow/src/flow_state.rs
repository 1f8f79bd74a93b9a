//! The hot state of a flow (a connection): three cache lines with the fields that the fast path
//! uses. The fast path is the TCP engine's code for in-order data and ACKs of established flows.
//! The slow path, the code for all other segments, shares these fields and adds its own.
//!
//! A stream position is the offset of a byte in the stream of one direction, modulo 2^32. A link is
//! a NIC queue, or the local path between programs of one host. A batch consists of the segments
//! and requests that the driver (the program that runs the engine) passes to the engine before the
//! driver calls `batch_end`.
//!
//! |  at | field           | RFC name, or meaning                          | written by          |
//! |-----|-----------------|-----------------------------------------------|---------------------|
//! |   0 | `rcv_nxt`       | RCV.NXT                                       | receive, slow       |
//! |   4 | `rcv_adv`       | right edge advertised: RCV.NXT + RCV.WND      | send, slow          |
//! |   8 | `last_ack_sent` | Last.ACK.sent (RFC 7323)                      | send, slow          |
//! |  12 | `ts_recent`     | TS.Recent (RFC 7323)                          | receive, slow       |
//! |  16 | `snd_una`       | SND.UNA                                       | receive, slow       |
//! |  20 | `snd_nxt`       | SND.NXT; after the handshake also SND.MAX     | send, slow          |
//! |  24 | `snd_wnd`       | SND.WND in bytes                              | receive, slow       |
//! |  28 | `irs`           | IRS                                           | slow (open)         |
//! |  32 | `iss`           | ISS                                           | slow (open)         |
//! |  36 | `tx_end`        | sequence number after the last byte written   | tx_advance, slow    |
//! |  40 | `rto_deadline`  | retransmission, probe or persist timeout      | send, receive, slow |
//! |  44 | `flags`         | bits of [`flags`]                             | all                 |
//! |  48 | `state`         | RFC 9293 §3.3.2                               | engine, slow        |
//! |  49 | `scales`        | Snd.Wind.Shift (high), Rcv.Wind.Shift (low)   | slow (open)         |
//! |  50 | `rcv_mss`       | largest payload of the peer's segments        | receive, slow       |
//! |  52 | `delack_at`     | low bits of the delayed ACK's deadline in ms  | engine (batch end)  |
//! |  54 | `last_arrival`  | last arrival in units of 1024 ms (keepalive)  | receive, slow       |
//! |  56 | `rtt_seq`       | end of the segment that is timed for an RTT   | send, slow          |
//! |  60 | `rtt_stamp`     | transmission time of the timed segment, us    | send, slow          |
//! |  64 | `key`           | 4-tuple; compared by the lookup               | flow table (open)   |
//! | 100 | `link`          | link to send on                               | engine (open)       |
//! | 102 | `mss`           | Eff.snd.MSS                                   | slow                |
//! | 104 | `cwnd`          | cwnd, bytes                                   | engine, slow        |
//! | 108 | `rcv_wnd_limit` | quota: largest receive window to offer, bytes | engine, slow        |
//! | 112 | `rx_read`       | stream position of the application's reads    | rx_advance          |
//! | 116 | `srtt`          | SRTT, us times 8 (RFC 6298)                   | receive, slow       |
//! | 120 | `rttvar`        | RTTVAR, us times 4                            | receive, slow       |
//! | 124 | `wheel_at`      | time at which the timer wheel's entry fires   | engine              |
//! | 128 | `traffic`       | counts and times for `TCP_INFO`               | all                 |
//! | 188 | `ts_offset`     | offset of TSval (RFC 7323 §7.1)               | engine (open)       |
//!
//! Apart from the comparison of `key` and the update of `traffic`, the reception of in-order data
//! touches only the first cache line. SND.WL1 is in the slow path's state, because every segment
//! that the fast path accepts has SEG.SEQ = RCV.NXT. The column "written by" names the code that
//! writes the field: `receive` and `send` of the fast path, the slow path, the flow table, or the
//! engine. The application reports written and read bytes by the engine's functions `tx_advance`
//! and `rx_advance`. The engine also writes `snd_nxt`, `rcv_adv` and `rtt_stamp` when the ACK of a
//! SYN cookie opens a flow.

use tidelane_interface::{LinkId, Millis, State, Traffic};
use tidelane_wire::{FlowKey, SeqNumber};

/// Bits of [`FlowState::flags`].
pub mod flags {
    /// Timestamps are in use (RFC 7323).
    pub const TIMESTAMPS: u32 = 1 << 0;
    /// SACK is in use (RFC 2018).
    pub const SACK: u32 = 1 << SACK_SHIFT;
    /// Bit number of [`SACK`].
    pub const SACK_SHIFT: u32 = 1;
    /// TCP_NODELAY: Nagle is off.
    pub const NODELAY: u32 = 1 << 2;
    /// TCP_CORK: only full segments are sent.
    pub const CORK: u32 = 1 << 3;
    /// TCP_QUICKACK: ACKs are sent at once.
    pub const QUICKACK: u32 = 1 << 4;
    /// The fast path may receive: the flow is in ESTABLISHED, without out-of-order or urgent data,
    /// loss recovery, persist timer, RTO backoff or DCTCP. `update_fast_path` in the crate
    /// `tidelane-slowpath` has the complete condition.
    pub const FAST_RECEIVE: u32 = 1 << 5;
    /// The fast path may send: the flow is in ESTABLISHED, and its transmissions need neither a
    /// record (for loss recovery) nor pacing, CWR, SACK blocks, MTU probes or an urgent pointer.
    /// `update_fast_path` has the complete condition.
    pub const FAST_SEND: u32 = 1 << 6;
    /// The flow owes an ACK for a received segment.
    pub const ACK_OWED: u32 = 1 << 7;
    /// The flow sends an ACK at the end of the batch, without delay.
    pub const ACK_NOW: u32 = 1 << 8;
    /// The flow is in the engine's list of pending flows, whose data and ACKs are sent at the end
    /// of the batch.
    pub const PENDING: u32 = 1 << 9;
    /// The engine tries to send data of the flow at the end of the batch.
    pub const SEND_WANTED: u32 = 1 << 10;
    /// `rto_deadline` is valid: the timeout of the retransmission timer or, as [`PERSIST`] and
    /// [`PTO_ARMED`] say, of the persist timer or the probe timer.
    pub const RTO_ARMED: u32 = 1 << 11;
    /// The timer of the delayed ACK runs, and `delack_at` is valid.
    pub const DELACK_ARMED: u32 = 1 << 12;
    /// The flow has an entry in the timer wheel, and `wheel_at` is valid.
    pub const WHEEL_ARMED: u32 = 1 << 13;
    /// A segment is being timed, and `rtt_seq` and `rtt_stamp` are valid.
    pub const RTT_TIMING: u32 = 1 << 14;
    /// A FIN follows `tx_end`.
    pub const FIN_QUEUED: u32 = 1 << 15;
    /// The FIN was sent, and `snd_nxt` is after the FIN.
    pub const FIN_SENT: u32 = 1 << 16;
    /// The peer's FIN has arrived in order, and `rcv_nxt` is after the FIN.
    pub const FIN_RECEIVED: u32 = 1 << 17;
    /// The next segment moves the right edge of the window.
    pub const WINDOW_EDGE_MOVES: u32 = 1 << 18;
    /// cwnd has stopped a transmission, or more than half of cwnd was in flight after all data was
    /// sent. The next ACK of new data may then grow cwnd.
    pub const CWND_LIMITED: u32 = 1 << 19;
    /// A small segment was sent after the most recent time at which no data was in flight
    /// (Minshall's variant of Nagle).
    pub const SMALL_SENT: u32 = 1 << 20;
    /// Segments carry ECE (RFC 3168 §6.1.3). With DCTCP, the flag is DCTCP.CE (RFC 8257 §3.2).
    pub const ECE: u32 = 1 << ECE_SHIFT;
    /// Bit number of [`ECE`].
    pub const ECE_SHIFT: u32 = 21;
    /// `rto_deadline` is the persist timeout.
    pub const PERSIST: u32 = 1 << 22;
    /// `rto_deadline` is the tail loss probe timeout.
    pub const PTO_ARMED: u32 = 1 << PTO_SHIFT;
    /// Bit number of [`PTO_ARMED`].
    pub const PTO_SHIFT: u32 = 23;
    /// The flags that determine the meaning of `rto_deadline`.
    pub const TIMER: u32 = RTO_ARMED | PERSIST | PTO_ARMED;
    /// The slow path has a deadline of its own (keepalive, FIN-WAIT-2, path MTU).
    pub const SLOW_DEADLINE: u32 = 1 << 24;
    /// ECN is in use: new data is sent as ECT (RFC 3168).
    pub const ECN: u32 = 1 << 25;
    /// The flow is in the index of the flow table, so that segments with its 4-tuple find the flow.
    pub const INDEXED: u32 = 1 << 26;
    /// The entry of the flow table is in use.
    pub const USED: u32 = 1 << 27;
    /// Flags that mark a flow to which the segments with its 4-tuple belong.
    pub const LOOKUP_FLAGS: u32 = INDEXED | USED;
    /// Flags that a transmitted segment clears if it acknowledges all received data.
    pub const ACK_FLAGS: u32 = ACK_OWED | ACK_NOW | DELACK_ARMED;
    /// Number of the lowest bit of the quick-ack counter, which has four bits. The counter is the
    /// number of ACKs that quick-ack mode still sends without delay. A flow is in quick-ack mode at
    /// its start and after a loss.
    pub const QUICK_SHIFT: u32 = 28;
}

/// Hot state of one flow: the fields that the fast path needs. The table in the module's
/// documentation describes these fields.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct FlowState {
    /// RCV.NXT.
    pub rcv_nxt: SeqNumber,
    /// Right edge of the advertised window: RCV.NXT + RCV.WND. The edge never moves left.
    pub rcv_adv: SeqNumber,
    /// Last.ACK.sent.
    pub last_ack_sent: SeqNumber,
    /// TS.Recent.
    pub ts_recent: u32,
    /// SND.UNA.
    pub snd_una: SeqNumber,
    /// SND.NXT. A loss does not move SND.NXT back, except when a SYN,ACK does not acknowledge all
    /// data of our SYN (RFC 7413).
    pub snd_nxt: SeqNumber,
    /// SND.WND in bytes.
    pub snd_wnd: u32,
    /// IRS.
    pub irs: SeqNumber,
    /// ISS.
    pub iss: SeqNumber,
    /// Sequence number after the last byte that the application has written.
    pub tx_end: SeqNumber,
    /// Deadline of the timer that [`flags::TIMER`] describes.
    pub rto_deadline: Millis,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Connection state.
    pub state: State,
    /// Snd.Wind.Shift in the high half, Rcv.Wind.Shift in the low.
    pub scales: u8,
    /// Largest payload of the peer's segments, in bytes; an estimate before the first payload.
    pub rcv_mss: u16,
    /// Low 16 bits of the delayed ACK's deadline in ms, valid with [`flags::DELACK_ARMED`].
    pub delack_at: u16,
    /// Arrival time of the last segment, in units of 1024 ms, modulo 2^16.
    pub last_arrival: u16,
    /// End of the timed segment, valid with [`flags::RTT_TIMING`].
    pub rtt_seq: SeqNumber,
    /// Transmission time of the timed segment, in microseconds modulo 2^32.
    pub rtt_stamp: u32,
    /// 4-tuple.
    pub key: FlowKey,
    /// Link to send on.
    pub link: LinkId,
    /// Eff.snd.MSS: payload of a full segment, in bytes. If timestamps are in use, the length of
    /// their option is already subtracted.
    pub mss: u16,
    /// Congestion window, in bytes.
    pub cwnd: u32,
    /// Quota of the receive window: the largest window that the flow may offer, in bytes.
    pub rcv_wnd_limit: u32,
    /// Stream position up to which the application has read.
    pub rx_read: u32,
    /// SRTT in us, times 8; zero before the first sample.
    pub srtt: u32,
    /// RTTVAR in us, times 4.
    pub rttvar: u32,
    /// Time at which the flow's entry in the timer wheel fires, valid with [`flags::WHEEL_ARMED`].
    pub wheel_at: Millis,
    /// Counts and times of the flow's segments.
    pub traffic: Traffic,
    /// Offset of TSval from the clock in ms (RFC 7323 §7.1).
    pub ts_offset: u32,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<FlowState>() == 192);
    assert!(align_of::<FlowState>() == 64);
    // The reception of in-order data touches the first cache line.
    assert!(offset_of!(FlowState, rcv_nxt) == 0);
    assert!(offset_of!(FlowState, flags) == 44);
    assert!(offset_of!(FlowState, rtt_stamp) == 60);
    // Transmission and lookup also touch the second cache line.
    assert!(offset_of!(FlowState, key) == 64);
    assert!(offset_of!(FlowState, wheel_at) == 124);
    assert!(offset_of!(FlowState, traffic) == 128);
};

impl FlowState {
    /// Returns the 4-tuple of the flow.
    pub const fn key(&self) -> FlowKey {
        self.key
    }

    /// Returns the connection state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the stream position after the last byte that was received in order.
    #[inline]
    pub const fn rx_head(&self) -> u32 {
        let fin = (self.flags & flags::FIN_RECEIVED != 0) as u32;
        self.rx_pos(self.rcv_nxt).wrapping_sub(fin)
    }

    /// Returns the stream position up to which the application has read.
    pub const fn rx_read(&self) -> u32 {
        self.rx_read
    }

    /// Returns the stream position after the last byte that the application has written.
    #[inline]
    pub const fn tx_head(&self) -> u32 {
        self.tx_pos(self.tx_end)
    }

    /// Returns the stream position after the last byte that the peer acknowledged; zero until the
    /// handshake is complete.
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

    /// Returns the stream position after the last byte that was sent; zero until the handshake is
    /// complete.
    pub const fn tx_sent(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived => 0,
            _ => self.tx_pos(self.snd_nxt.earlier_of(self.tx_end)),
        }
    }

    /// Returns the largest receive window that the flow may offer, in bytes. The application's
    /// reads and socket options change this value, so a driver calls the function again for each
    /// event.
    pub const fn rx_window(&self) -> u32 {
        self.rcv_wnd_limit
    }

    /// Returns the stream position of `seq` in the receive direction: the distance from IRS + 1.
    #[inline]
    pub const fn rx_pos(&self, seq: SeqNumber) -> u32 {
        seq.0.wrapping_sub(self.irs.0).wrapping_sub(1)
    }

    /// Returns the stream position of `seq` in the send direction: the distance from ISS + 1.
    #[inline]
    pub const fn tx_pos(&self, seq: SeqNumber) -> u32 {
        seq.0.wrapping_sub(self.iss.0).wrapping_sub(1)
    }

    /// Returns true if all of `bits` are set.
    #[inline]
    pub const fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }

    /// Returns true if any of `bits` is set.
    #[inline]
    pub const fn has_any(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }

    /// Returns true if segments with the flow's 4-tuple belong to this flow. A flow in CLOSED or
    /// TIME-WAIT has given up its 4-tuple, which another flow may use.
    #[inline]
    pub const fn is_indexed(&self) -> bool {
        self.has(flags::LOOKUP_FLAGS)
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

    /// Sets `bits` if `on` is true, and clears `bits` otherwise.
    pub const fn assign(&mut self, bits: u32, on: bool) {
        if on {
            self.set(bits);
        } else {
            self.clear(bits);
        }
    }

    /// Returns the number of bytes that the application has written and that are not sent.
    #[inline]
    pub fn unsent(&self) -> u32 {
        match self.tx_end.after(self.snd_nxt) {
            true => self.tx_end.distance_from(self.snd_nxt),
            false => 0,
        }
    }

    /// Returns FlightSize (RFC 5681): the bytes sent and not acknowledged, with SYN and FIN.
    #[inline]
    pub const fn flight_size(&self) -> u32 {
        self.snd_nxt.distance_from(self.snd_una)
    }

    /// Returns true if the peer's window, and not the congestion window, holds data back. `pipe` is
    /// the number of bytes in flight (RFC 6675).
    #[inline]
    pub const fn is_window_limited(&self, pipe: u32) -> bool {
        if !self.tx_end.after(self.snd_nxt) {
            return false;
        }
        let unsent = self.tx_end.distance_from(self.snd_nxt);
        let mss = self.mss as u32;
        let len = if unsent < mss { unsent } else { mss };
        len > self.snd_wnd.saturating_sub(self.flight_size()) && pipe < self.cwnd
    }

    /// Returns Snd.Wind.Shift.
    #[inline]
    pub const fn snd_wscale(&self) -> u8 {
        self.scales >> 4
    }

    /// Returns Rcv.Wind.Shift.
    #[inline]
    pub const fn rcv_wscale(&self) -> u8 {
        self.scales & 15
    }

    /// Returns the number of ACKs that quick-ack mode still sends without delay.
    #[inline]
    pub const fn quick_acks(&self) -> u32 {
        self.flags >> flags::QUICK_SHIFT
    }

    /// Sets the number of ACKs that quick-ack mode sends without delay: `count`, but at most 15.
    pub const fn set_quick_acks(&mut self, count: u32) {
        let count = if count > 15 { 15 } else { count };
        self.flags = self.flags & !(15 << flags::QUICK_SHIFT) | count << flags::QUICK_SHIFT;
    }
}
