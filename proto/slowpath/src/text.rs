//! The seventh and the eighth check of SEGMENT ARRIVES (RFC 9293 §3.10.7.4): segment text and FIN.

use tidelane_flow::{CloseCause, Driver, Event, State, StateEvent, flags};
use tidelane_wire::{DropReason, Ecn, Segment, SeqNumber, TcpFlags};

use crate::{Outcome, SlowPath, arrive::Step, sack_blocks::QUICK_ACKS};

impl<E: Driver> SlowPath<'_, E> {
    /// Seventh check: segment text. Stores the payload, even out of order (RFC 9293 SHLD-31).
    /// Out-of-order data is acknowledged immediately (MAY-13).
    pub(crate) fn process_text(&mut self, segment: &Segment<'_>, ecn: Ecn) -> Step {
        if segment.payload.is_empty() {
            return Ok(());
        }
        if !self.hot.state.receives() {
            return Ok(());
        }
        if self.cold.is_orphan
            && segment
                .seq
                .add(segment.payload.len() as u32)
                .after(self.hot.rcv_nxt)
        {
            // New data for a socket that the application has closed is answered by a RST (RFC 9293
            // §3.10.7.4), as in Linux.
            self.counters.drops[DropReason::DataAfterClose.index()] += 1;
            self.counters.abort_on_data += 1;
            self.reset_for(segment, self.hot.key);
            return Err(self.end(CloseCause::Aborted));
        }
        let next = self.hot.rcv_nxt;
        let skip = if segment.seq.before(next) {
            next.distance_from(segment.seq)
        } else {
            0
        };
        let Some(payload) = segment.payload.get(skip as usize..) else {
            return Ok(());
        };
        let start = segment.seq.add(skip);
        let room = self.hot.rcv_adv.distance_from(start) as usize;
        let payload = &payload[..payload.len().min(room)];
        self.note_ecn(segment, ecn);
        self.end_run_before(start);
        let at_once = self.hot.has(flags::ACK_NOW);
        self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
        if payload.is_empty() {
            self.counters.drops[DropReason::OutOfWindow.index()] += u64::from(room == 0);
            return Ok(());
        }
        let end = start.add(payload.len() as u32);
        if self.cold.fin_at.is_some_and(|fin| end.after(fin)) {
            return self.drop(DropReason::DataAfterFin);
        }
        if start != next && self.cold.ooo.len() >= crate::ranges::RANGES_MAX {
            return self.drop(DropReason::ReassemblyFull);
        }
        if !self.driver.place(self.id, self.hot.rx_pos(start), payload) {
            return self.drop(DropReason::RxBufferFull);
        }
        let duplicate = match skip {
            0 => self.cold.ooo.overlap(start, end),
            _ => Some((segment.seq, next)),
        };
        self.record_placed(start, end, duplicate);
        if start != next {
            return Ok(());
        }
        let in_order_before = self.cold.ooo.is_empty();
        self.advance_rcv_nxt(end);
        // A segment that fills a hole (data missing before out-of-order data) or that contains
        // duplicate data is acknowledged immediately (RFC 5681 §4.2).
        let at_once = at_once || !in_order_before || duplicate.is_some();
        self.hot.assign(flags::ACK_NOW, at_once);
        self.hot.schedule_ack(payload.len() as u32, self.timeouts);
        self.driver.event(self.id, Event::READABLE);
        Ok(())
    }

    /// Ends the run of consecutive segments in this batch if data from `start` does not continue
    /// the run. A batch is a burst of segments that the driver (the program that runs the engine)
    /// passes to the engine together.
    fn end_run_before(&mut self, start: SeqNumber) {
        let in_order = self.cold.ooo.is_empty() && start == self.hot.rcv_nxt;
        if !in_order && !self.cold.sack_report.continues_at(start, &self.cold.ooo) {
            self.end_run();
        }
    }

    /// Ends the run after a segment that filled a hole. A segment with PSH also ends the run in two
    /// cases: there is out-of-order data, or the flow (connection) already had work in this batch
    /// before the segment (`PENDING`). `next` is RCV.NXT before the segment. `had_ooo` is true if
    /// there was out-of-order data before the segment.
    pub(crate) fn end_run_after(&mut self, segment: &Segment<'_>, next: SeqNumber, had_ooo: bool) {
        let filled = had_ooo && self.hot.rcv_nxt != next;
        let behind = !self.cold.ooo.is_empty() || self.hot.has(flags::PENDING);
        if filled || behind && segment.flags.contains(TcpFlags::PSH) {
            self.end_run();
            if self.hot.owes_ack_for_full_segment() {
                self.hot.set(flags::ACK_NOW);
            }
        }
    }

    /// Acknowledges a run of consecutive segments at its end, instead of at the end of the batch,
    /// if ACK_NOW is set. Each run gets an ACK of its own, as in Linux, where GRO joins the
    /// segments of a run up to PSH. If each batch had one ACK only, the loss of this ACK would make
    /// a peer in recovery or with a small window wait for its RTO.
    fn end_run(&mut self) {
        if self.hot.has(flags::ACK_NOW) {
            // If no transmit frame (packet buffer) is free, the ACK is sent at the end of the
            // batch.
            let _ = self.send_ack();
        }
    }

    /// Records that the driver has stored the payload `[start, end)`. `duplicate` is a range of the
    /// segment that had arrived before, if any: the bytes before `start`, or else the first part of
    /// `[start, end)` that is in the out-of-order data.
    fn record_placed(
        &mut self,
        start: SeqNumber,
        end: SeqNumber,
        duplicate: Option<(SeqNumber, SeqNumber)>,
    ) {
        self.cold.sack_report.sent = false;
        if start != self.hot.rcv_nxt {
            self.counters.ofo_queue += 1;
            let count = &mut self.cold.sack_report.segments;
            *count = count.wrapping_add(1);
            self.hot.set_quick_acks(QUICK_ACKS);
            self.cold.ooo.insert(start, end);
            self.cold.sack_report.arrived(start, &self.cold.ooo);
        }
        if let Some((left, right)) = duplicate {
            self.report_duplicate(left, right);
        }
    }

    /// Moves RCV.NXT to `end`, and then over the out-of-order ranges that adjoin or overlap.
    fn advance_rcv_nxt(&mut self, end: SeqNumber) {
        let mut next = end;
        // A segment may fill several holes.
        for (left, right) in self.cold.ooo.iter() {
            if left.after(next) {
                break;
            }
            next = right.later_of(next);
        }
        self.hot.rcv_nxt = next;
        self.hot.traffic.data_received_at = self.clock.ms;
        self.cold.ooo.remove_below(next);
    }

    /// Eighth check: FIN. A FIN beyond a hole waits in `fin_at` until the hole is filled.
    pub(crate) fn check_fin(&mut self, segment: &Segment<'_>) -> Step {
        if segment.flags.contains(TcpFlags::FIN) {
            let at = segment.seq.add(segment.payload.len() as u32);
            if at.in_window(
                self.hot.rcv_nxt,
                self.hot.rcv_adv.distance_from(self.hot.rcv_nxt) + 1,
            ) && self.hot.state.receives()
            {
                self.cold.fin_at = Some(at);
            }
        }
        if self.cold.fin_at != Some(self.hot.rcv_nxt) || !self.hot.state.receives() {
            if segment.flags.contains(TcpFlags::FIN) {
                self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
            }
            return Ok(());
        }
        self.cold.fin_at = None;
        self.hot.rcv_nxt = self.hot.rcv_nxt.add(1);
        self.hot.rcv_adv = self.hot.rcv_adv.later_of(self.hot.rcv_nxt);
        self.hot.set(flags::FIN_RECEIVED | flags::ACK_OWED);
        self.hot.state = self.hot.state.next(StateEvent::FinReceived);
        if self.hot.state != State::CloseWait || self.config.eager_acks {
            // Only in CLOSE-WAIT may our own FIN follow soon and carry the ACK.
            self.hot.set(flags::ACK_NOW);
        }
        self.driver.event(self.id, Event::PeerClosed);
        if self.hot.state == State::TimeWait {
            let _ = self.send_ack();
            return Err(self.finish(Outcome::TimeWait));
        }
        Ok(())
    }
}
