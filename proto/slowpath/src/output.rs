//! Segments that the slow path sends: SYN, pure ACKs, new data, retransmissions, FIN, RST. The slow
//! path is the TCP engine's code for everything that the fast path does not handle. The fast path
//! is the code for in-order segments and new data of established flows (connections) without
//! losses.

use tidelane_flow::{Driver, Origin, SegmentOut, State, TxFull, flags};
use tidelane_wire::{Ecn, SeqNumber, TcpFlags, TcpOptions, Timestamps};

use crate::{SlowPath, frto::Frto, sack_blocks::WithSackBlocks};

impl<E: Driver> SlowPath<'_, E> {
    /// Sends a pure ACK. If SACK is in use, SACK blocks report the out-of-order data (RFC 2018 §4)
    /// and a duplicate that was not reported yet (RFC 2883 §4).
    pub fn send_ack(&mut self) -> Result<(), TxFull> {
        let seq = self.hot.snd_nxt;
        let mut out = self
            .hot
            .segment_out(self.id, &self.clock, seq, TcpFlags::ACK, 0);
        if self.has_sack() {
            self.add_sack(&mut out.options);
        }
        self.transmit(&out)?;
        self.hot.note_ack_sent(out.wnd);
        self.cold.sack_report.sent = true;
        self.note_dsack_sent();
        self.hot
            .set_quick_acks(self.hot.quick_acks().saturating_sub(1));
        self.counters.pure_acks += 1;
        Ok(())
    }

    /// Sends a SYN, or a SYN,ACK in SYN-RECEIVED. Both carry an MSS option (RFC 9293 MUST-14,
    /// SHLD-5, MAY-3).
    pub fn send_syn(&mut self) -> Result<(), TxFull> {
        let passive = self.hot.state == State::SynReceived;
        let timestamps = if passive {
            self.hot.has(flags::TIMESTAMPS)
        } else {
            self.config.timestamps
        };
        let sack = if passive {
            self.hot.has(flags::SACK)
        } else {
            self.config.sack
        };
        let mut options = TcpOptions {
            mss: Some(self.cold.rmss),
            wscale: self.cold.offer_wscale.then_some(self.hot.rcv_wscale()),
            sack_permitted: sack,
            timestamps: timestamps.then_some(Timestamps {
                tsval: self.hot.tsval(&self.clock),
                tsecr: self.hot.ts_recent,
            }),
            ..TcpOptions::NONE
        };
        if let Some(option) = self.cold.fast_open.option {
            options.set_fast_open(option);
        }
        let data_len = self.syn_data_len();
        // Data of the peer's SYN (Fast Open) reduces the window until the application reads the
        // data.
        let unread = self.hot.rx_head().wrapping_sub(self.hot.rx_read);
        let quota = self.hot.rcv_wnd_limit.saturating_sub(unread);
        let wnd = quota.min(0xffff);
        let ack = if passive {
            self.hot.rcv_nxt
        } else {
            SeqNumber(0)
        };
        let control = if passive {
            TcpFlags::SYN | TcpFlags::ACK
        } else {
            TcpFlags::SYN
        };
        let out = SegmentOut {
            origin: Origin::Flow(self.id),
            key: self.hot.key,
            link: self.hot.link,
            seq: self.hot.iss,
            ack,
            flags: control | self.syn_ecn(),
            wnd: wnd as u16,
            urgent: 0,
            options,
            payload_pos: 0,
            payload_len: data_len,
            segment_size: data_len as u16,
            ecn: self.syn_field(),
        };
        self.driver.transmit(&out)?;
        if self.cold.listener.is_none() {
            // A passive open does not count the SYN,ACK in `tcpi_segs_out` (as in Linux).
            let traffic = &mut self.hot.traffic;
            traffic.on_transmission(self.clock.ms, data_len > 0);
        }
        self.note_syn_sent(data_len);
        if passive {
            self.hot.rcv_adv = self.hot.rcv_nxt.add(wnd);
            self.hot.last_ack_sent = self.hot.rcv_nxt;
        }
        Ok(())
    }

    /// Sends the next `len` bytes of new data as one segment, regardless of Nagle, cwnd and
    /// SND.WND.
    pub fn send_new_data(&mut self, len: u32) -> Result<(), TxFull> {
        self.prepare_rate_sample();
        let seq = self.hot.snd_nxt;
        let last = seq.add(len) == self.hot.tx_end;
        let control = if last { TcpFlags::PSH } else { TcpFlags::NONE };
        let out = self
            .hot
            .segment_out(self.id, &self.clock, seq, control, len);
        self.transmit(&out)?;
        self.hot.note_ack_sent(out.wnd);
        self.counters.out_segs += 1;
        self.hot.snd_nxt = seq.add(len);
        self.track_sent(seq, len.min(0xffff) as u16);
        self.note_paced(len);
        if len < u32::from(self.hot.mss) {
            self.hot.set(flags::SMALL_SENT);
        }
        self.arm_rto();
        Ok(())
    }

    /// Retransmits `[start, start + len)` as one segment. The range may include the FIN.
    pub fn retransmit(&mut self, start: SeqNumber, len: u32) -> Result<(), TxFull> {
        self.prepare_rate_sample();
        // The ACK of retransmitted data would not show that an MTU probe arrived.
        self.forget_mtu_probe();
        let end = start.add(len);
        let data_end = end.earlier_of(self.hot.tx_end);
        let payload = if data_end.after(start) {
            data_end.distance_from(start)
        } else {
            0
        };
        let fin = self.hot.has(flags::FIN_SENT) && end.after(self.hot.tx_end);
        let mut control = TcpFlags::ACK;
        if fin {
            control |= TcpFlags::FIN;
        }
        if payload > 0 && end.at_or_after(self.hot.tx_end) {
            control |= TcpFlags::PSH;
        }
        let mut out = self
            .hot
            .segment_out(self.id, &self.clock, start, control, payload);
        let has_dsack = self.add_sack_if_room(&mut out.options, payload);
        // RFC 3168 §6.1.5: retransmissions are not ECT. DCTCP sends them as ECT (as in Linux),
        // because a switch that marks ECT packets drops packets that are not ECT.
        if !self.is_dctcp() {
            out.ecn = Ecn::NotEct;
        }
        self.transmit(&out)?;
        self.hot.note_ack_sent(out.wnd);
        if has_dsack {
            self.note_dsack_sent();
        }
        // Karn (RFC 6298 §3, RFC 9293 MUST-18): no RTT sample from retransmitted data.
        self.hot.clear(flags::RTT_TIMING);
        self.counters.retrans_segs += 1;
        self.cold.retrans.add(payload);
        if let Some(undo) = &mut self.cold.undo {
            undo.undo_retrans = undo.undo_retrans.saturating_add(len);
            undo.retrans_stamp.get_or_insert(self.clock.ms);
        }
        self.charge_pacing_and_prr(len);
        let now = self.clock.us();
        self.scoreboard_for_loss().on_retransmit(start, len, now);
        Ok(())
    }

    /// Sends a queued FIN if all data has been sent.
    pub fn send_fin(&mut self) -> Result<(), TxFull> {
        let due = self.hot.has(flags::FIN_QUEUED)
            && !self.hot.has(flags::FIN_SENT)
            && self.hot.snd_nxt == self.hot.tx_end
            && self.may_send();
        if !due {
            return Ok(());
        }
        let control = TcpFlags::FIN | TcpFlags::ACK;
        let out = self
            .hot
            .segment_out(self.id, &self.clock, self.hot.snd_nxt, control, 0);
        self.transmit(&out)?;
        self.hot.note_ack_sent(out.wnd);
        self.hot.snd_nxt = self.hot.snd_nxt.add(1);
        self.track_sent(self.hot.tx_end, 1);
        self.hot.set(flags::FIN_SENT);
        self.cold.fin_without_data = true;
        self.arm_rto();
        Ok(())
    }

    /// Sends all segments that may be sent: first retransmissions, then new data, then a FIN.
    ///
    /// `send_new` is the fast path's function that sends new data, and returns the number of sent
    /// segments. The crates of the two paths must not depend on each other, so the function is an
    /// argument.
    pub fn output(
        &mut self,
        send_new: impl Fn(&mut SlowPath<'_, WithSackBlocks<'_, E>>) -> Result<u32, TxFull>,
    ) -> Result<(), TxFull> {
        // Send the first SYN or SYN,ACK if it has waited for data (RFC 7413) or for a free frame.
        let opening = matches!(self.hot.state, State::SynSent | State::SynReceived);
        if opening && self.hot.snd_nxt == self.hot.iss && !self.is_syn_held() {
            self.send_syn()?;
            self.start_syn_timer();
        }
        if !self.may_send() {
            self.hot.clear(flags::SEND_WANTED);
            return Ok(());
        }
        // In the step `SendNew`, F-RTO (RFC 5682, a test for spurious timeouts) sends new data
        // before retransmissions. If no new data is sent, F-RTO ends.
        if self.cold.frto != Frto::SendNew {
            self.send_retransmissions()?;
        }
        self.idle_restart();
        self.send_mtu_probe()?;
        self.start_scoreboard_if_wanted();
        self.prepare_rate_sample();
        // Data that is part of FlightSize but not of `pipe` (RFC 6675) has left the network and
        // does not count against cwnd.
        let cwnd = self.hot.cwnd;
        let outside = self.hot.flight_size().saturating_sub(self.pipe());
        let window = cwnd.saturating_add(outside);
        let limited = self.hot.flags & flags::CWND_LIMITED;
        self.hot.cwnd = self.paced_window(window);
        let paced = self.hot.cwnd < window;
        let from = self.hot.snd_nxt;
        let timed = self.hot.has(flags::RTO_ARMED) && !self.hot.has(flags::PTO_ARMED);
        let sent = if self.hot.has(flags::FIN_SENT) {
            Ok(0)
        } else {
            self.send_with_sack_blocks(send_new)
        };
        self.hot.cwnd = cwnd;
        if paced {
            // Pacing held the data back, not the congestion window.
            self.hot.assign(flags::CWND_LIMITED, limited != 0);
        }
        self.charge_pacing_and_prr(self.hot.snd_nxt.distance_from(from));
        let persisted = self.hot.has(flags::PERSIST);
        // `send_new` does not apply some rules of `arm_rto` when it starts the timer: backoff, the
        // least RTO without an RTT sample, and the shorter PTO of a flow with suspected losses.
        let slow = self.cold.loss_suspected || self.cold.backoff > 0 || self.hot.srtt == 0;
        if (slow && !timed || persisted) && self.hot.snd_nxt != from {
            // Start the timer again. A retransmission timer that was running before `send_new` is
            // not restarted. A probe timer restarts with each transmission (RFC 8985 §7.2). A
            // persist timer gives way to the retransmission timer, because data is in flight.
            self.arm_rto();
        }
        sent?;
        if self.cold.frto == Frto::SendNew {
            let new = self.hot.snd_nxt.after(self.cold.recovery_point);
            self.cold.frto = if new { Frto::Probing } else { Frto::Off };
            if !new {
                self.send_retransmissions()?;
            }
        }
        self.send_fin()?;
        self.hot.clear(flags::SEND_WANTED);
        self.note_app_limit();
        self.note_window_limit();
        self.arm_pacing();
        self.arm_persist();
        Ok(())
    }

    /// Records for `TCP_INFO` whether the peer's window alone holds data back.
    fn note_window_limit(&mut self) {
        let limited = self.hot.is_window_limited(self.pipe());
        let now_us = self.clock.us();
        self.hot.traffic.set_window_limited(limited, now_us);
    }

    /// Retransmits lost data as far as the congestion window (RFC 6675 §5 (C)) and pacing allow.
    fn send_retransmissions(&mut self) -> Result<(), TxFull> {
        let mss = u32::from(self.hot.mss);
        loop {
            let Some((start, len)) = self.cold.scoreboard.as_ref().and_then(|b| b.next_lost(mss))
            else {
                return Ok(());
            };
            let full = !self.cold.ignore_cwnd_once && self.pipe() + len > self.hot.cwnd;
            if full || self.is_held_back() {
                return Ok(());
            }
            self.retransmit(start, len)?;
            self.cold.ignore_cwnd_once = false;
            if start == self.hot.snd_una || !self.hot.has(flags::RTO_ARMED) {
                self.arm_rto();
            }
        }
    }

    /// Reduces cwnd towards the initial window if the flow is about to send new data after it was
    /// idle for more than an RTO (RFC 5681 §4.1). A congestion control that uses delivery rates
    /// (BBR) keeps its cwnd.
    fn idle_restart(&mut self) {
        use tidelane_cc::CongestionControl;
        // `rtt_stamp` is the transmission time of a segment of the most recent flight.
        let since = self.clock.us().wrapping_sub(self.hot.rtt_stamp) / 1000;
        let idle = self.hot.flight_size() == 0
            && self.hot.tx_end != self.hot.snd_nxt
            && since > self.rto_ms();
        if idle && !self.cold.controller.uses_delivery_rate() {
            self.counters.slow_start_restarts += 1;
            let rtos = since / self.rto_ms().max(1);
            self.cold
                .controller
                .on_idle_restart(self.clock.now, rtos.max(1));
            self.hot.cwnd = self.cold.controller.cwnd();
        }
    }

    /// If the reads of the application permit the right edge of the receive window to move far
    /// enough (see `FlowState::window_update_due`), schedules an ACK that updates the window.
    pub fn schedule_window_update(&mut self) {
        let opens = self.hot.update_window_edge_moves();
        if self.hot.window_update_due(opens) && self.hot.state.receives() {
            self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
        }
    }

    /// Sends a RST for this flow (RFC 9293 §3.10.5).
    pub fn send_reset(&mut self) {
        // The RST carries a timestamp if timestamps are in use (RFC 7323 §5.2).
        let mut out =
            self.hot
                .segment_out(self.id, &self.clock, self.hot.snd_nxt, TcpFlags::RST, 0);
        out.origin = Origin::EndingFlow(self.id);
        out.wnd = 0;
        self.counters.out_rsts += 1;
        self.hot.traffic.on_transmission(self.clock.ms, false);
        let _ = self.driver.transmit(&out);
    }
}
