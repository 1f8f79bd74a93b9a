//! Established flows in the common case: in-order data, acknowledgments that advance, new data out.
//!
//! Nothing here allocates, waits or looks anything up. What is not recognised is punted, untouched,
//! to whoever called.
#![forbid(unsafe_code)]

use tidelane_flow::{Clock, Env, Event, FlowId, FlowState, TxFull, flags};
use tidelane_wire::{Segment, SeqNumber, TcpFlags};

/// The fast path did not take the segment; the flow is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Punt;

/// Header prediction after Van Jacobson: a segment of an established flow that is next in order, or
/// a pure acknowledgment, with nothing unusual in it.
#[inline]
pub fn receive<E: Env>(
    clock: &Clock,
    id: FlowId,
    flow: &mut FlowState,
    segment: &Segment<'_>,
    env: &mut E,
) -> Result<(), Punt> {
    let usual = TcpFlags(segment.flags.0 & !TcpFlags::PSH.0) == TcpFlags::ACK;
    if !usual || flow.flags & flags::FAST_RECEIVE == 0 || segment.seq != flow.rcv_nxt {
        return Err(Punt);
    }
    let len = segment.payload.len() as u32;
    let acked = segment.ack.distance_from(flow.snd_una);
    let outstanding = flow.snd_nxt.distance_from(flow.snd_una);
    let wnd = u32::from(segment.wnd) << flow.snd_wscale();
    // A pure duplicate, or an acknowledgment of what was not sent, or a window that closes or shrinks
    // while data waits: the slow path's.
    let opens = acked > 0 || wnd == flow.snd_wnd;
    if acked > outstanding || len > flow.rcv_adv.distance_from(flow.rcv_nxt) || !opens || wnd == 0 {
        return Err(Punt);
    }
    if len == 0 && acked == 0 {
        return Err(Punt);
    }
    // The controller is asked for more only while the window limits.
    if acked > 0 && flow.flags & flags::CWND_LIMITED != 0 {
        return Err(Punt);
    }
    if !segment.options.sack.is_empty() {
        return Err(Punt);
    }
    if flow.flags & flags::TIMESTAMPS != 0 {
        // PAWS (RFC 7323 §5.3 R1) in the common direction.
        match segment.options.timestamps {
            Some(t) if (t.tsval.wrapping_sub(flow.ts_recent) as i32) >= 0 => {}
            _ => return Err(Punt),
        }
    }
    if len > 0 {
        if !env.place(id, flow.rx_pos(segment.seq), segment.payload) {
            return Err(Punt);
        }
        flow.rcv_nxt = flow.rcv_nxt.add(len);
        note_data(flow, len);
        env.event(id, Event::Readable);
    }
    if let Some(t) = segment.options.timestamps
        && flow.flags & flags::TIMESTAMPS != 0
    {
        flow.ts_recent = t.tsval;
    }
    flow.snd_wnd = wnd;
    if acked > 0 {
        acknowledge(clock, flow, segment.ack);
        env.event(id, Event::Writable);
    }
    Ok(())
}

/// An acknowledgment is owed for `len` more bytes (RFC 9293 §3.8.6.3; RFC 5681 §4.2).
#[inline]
fn note_data(flow: &mut FlowState, len: u32) {
    let full = u32::from(flow.rcv_mss);
    if len > full {
        flow.rcv_mss = len.min(0xffff) as u16;
    }
    let unacked = flow.rcv_nxt.distance_from(flow.last_ack_sent);
    if unacked >= 2 * u32::from(flow.rcv_mss) || flow.flags & flags::QUICKACK != 0 {
        flow.flags |= flags::ACK_NOW;
    }
    flow.flags |= flags::ACK_OWED;
}

/// `ack` is new: moves SND.UNA, takes a round-trip sample, and restarts the timer (RFC 6298 (5.3)).
#[inline]
fn acknowledge(clock: &Clock, flow: &mut FlowState, ack: SeqNumber) {
    flow.snd_una = ack;
    if flow.flags & flags::RTT_TIMING != 0 && flow.rtt_seq.at_or_before(ack) {
        flow.flags &= !flags::RTT_TIMING;
        flow.sample_rtt(clock.us.wrapping_sub(flow.rtt_stamp));
    }
    flow.flags |= flags::SEND_WANTED;
    if flow.snd_una == flow.snd_nxt {
        flow.flags &= !flags::RTO_ARMED;
    } else {
        arm_rto(clock, flow);
    }
}

/// RTO in ms (RFC 6298 (2.3), with Linux' lower bound of 200 ms on the variance term).
#[inline]
pub fn rto_ms(flow: &FlowState) -> u32 {
    if flow.srtt == 0 {
        return 1000;
    }
    ((flow.srtt >> 3) / 1000 + (flow.rttvar / 1000).max(200)).min(120_000)
}

/// Starts the retransmission timer anew, or the tail loss probe's (RFC 8985 §7.2) when more than one
/// segment is in flight: the acknowledgment of a single one may be delayed.
#[inline]
pub fn arm_rto(clock: &Clock, flow: &mut FlowState) {
    flow.flags |= flags::RTO_ARMED;
    flow.flags &= !(flags::PERSIST | flags::PROBE);
    let rto = rto_ms(flow);
    let several = flow.flight_size() > u32::from(flow.mss);
    if several && flow.flags & flags::SACK != 0 && flow.srtt != 0 {
        let pto = ((flow.srtt >> 2) / 1000 + 2).max(10);
        if pto < rto {
            flow.flags |= flags::PROBE;
            flow.rto_deadline = clock.ms.plus(pto);
            return;
        }
    }
    flow.rto_deadline = clock.ms.plus(rto + 1);
}

/// Sends what window, congestion window and Nagle allow.
///
/// Returns whether everything that may go is gone; `Err` if the driver has no frame.
#[inline]
pub fn send<E: Env>(
    clock: &Clock,
    id: FlowId,
    flow: &mut FlowState,
    env: &mut E,
) -> Result<u32, TxFull> {
    let mss = u32::from(flow.mss);
    let usable_end = flow.snd_una.add(flow.snd_wnd.min(flow.cwnd));
    let mut sent = 0;
    loop {
        let unsent = flow.tx_end.distance_from(flow.snd_nxt);
        if unsent == 0 || flow.snd_nxt.after(flow.tx_end) {
            flow.flags &= !flags::CWND_LIMITED;
            return Ok(sent);
        }
        let room = if usable_end.after(flow.snd_nxt) {
            usable_end.distance_from(flow.snd_nxt)
        } else {
            0
        };
        let len = unsent.min(mss);
        if len > room {
            // Sender's silly window avoidance (RFC 9293 §3.8.6.2.1): no part of a segment, unless
            // nothing is in flight and the peer's window never was larger.
            flow.flags |= flags::CWND_LIMITED;
            return Ok(sent);
        }
        let last = len == unsent;
        if len < mss
            && flow.flags & (flags::NODELAY | flags::CORK | flags::FIN_QUEUED) != flags::NODELAY
        {
            let idle = flow.snd_nxt == flow.snd_una;
            let fin = flow.flags & flags::FIN_QUEUED != 0;
            let cork = flow.flags & flags::CORK != 0;
            // Nagle (RFC 9293 §3.7.4), or a cork.
            if !fin && (cork || (!idle && flow.flags & flags::NODELAY == 0)) {
                return Ok(sent);
            }
        }
        let control = if last { TcpFlags::PSH } else { TcpFlags::NONE };
        let owed = flow.flags & (flags::ACK_OWED | flags::ACK_NOW | flags::DELACK_ARMED);
        let adv = (flow.rcv_adv, flow.last_ack_sent);
        let out = flow.segment_out(id, clock, flow.snd_nxt, control, len);
        if let Err(full) = env.transmit(&out) {
            flow.flags |= owed;
            (flow.rcv_adv, flow.last_ack_sent) = adv;
            return Err(full);
        }
        flow.snd_nxt = flow.snd_nxt.add(len);
        if flow.flags & flags::RTT_TIMING == 0 {
            flow.flags |= flags::RTT_TIMING;
            flow.rtt_seq = flow.snd_nxt;
            flow.rtt_stamp = clock.us;
        }
        if flow.flags & flags::RTO_ARMED == 0 {
            arm_rto(clock, flow);
        }
        sent += 1;
    }
}
