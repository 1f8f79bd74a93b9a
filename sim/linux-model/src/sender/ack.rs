//! Processing of an ACK, in the order of Linux's `tcp_ack`.

use super::{CaState, Sender, output::Next};
use crate::{hystart::Sample, packet::Ack, rack::DUP_THRESH, scoreboard::Sent};

/// Effects of the current ACK.
#[derive(Debug, Default)]
pub(super) struct AckEffects {
    /// SND.UNA before the ACK.
    pub(super) prior_una: u64,
    /// True if SND.UNA advanced.
    pub(super) advanced: bool,
    /// True if a segment was newly SACKed.
    pub(super) sacked: bool,
    /// True if the ACK has a DSACK that counts. After DSACKs have reported more segments than were
    /// retransmitted, no DSACK counts.
    dsack: bool,
    /// True if the DSACK reports the tail loss probe.
    dsack_of_probe: bool,
    /// True if the ACK newly ACKs or SACKs a segment below `Sender::high_seq` that was never
    /// retransmitted.
    pub(super) original_acked: bool,
    /// True if a retransmitted segment was cumulatively ACKed.
    retrans_acked: bool,
    /// True if a retransmission was marked lost.
    pub(super) lost_retrans: bool,
    /// Lowest sequence number that this ACK newly SACKs although a higher number was SACKed before.
    /// A segment that was ever retransmitted does not count.
    reordered: Option<u64>,
    /// Send times of the lowest and the highest segment that this ACK cumulatively acknowledges. A
    /// segment does not count if it was SACKed earlier or was ever retransmitted.
    acked_sent: Option<(u64, u64)>,
    /// Send times of the lowest and the highest segment that this ACK newly SACKs. A segment that
    /// was ever retransmitted does not count.
    sacked_sent: Option<(u64, u64)>,
    /// Most recent transmission of the segments that this ACK cumulatively acknowledges or newly
    /// SACKs: the number of the transmission, and the number of segments that had been delivered
    /// before the transmission.
    latest: Option<(u64, u64)>,
}

impl AckEffects {
    /// Returns true if the ACK neither advances SND.UNA nor has a DSACK that counts (`dsack`).
    pub(super) const fn is_duplicate(&self) -> bool {
        !(self.advanced || self.dsack)
    }

    fn note_sent(span: &mut Option<(u64, u64)>, at: u64) {
        *span = Some((span.map_or(at, |(first, _)| first), at));
    }

    fn note_latest(&mut self, sent: &Sent) {
        self.latest = self.latest.max(Some((sent.order, sent.delivered)));
    }
}

impl Sender {
    pub(super) fn process(&mut self, ack: &Ack) {
        let (delivered, lost) = (self.delivered, self.scoreboard.lost_total);
        let high = self.scoreboard.high_sacked();
        let mut effects = AckEffects {
            prior_una: self.scoreboard.snd_una,
            advanced: ack.ack > self.scoreboard.snd_una,
            ..AckEffects::default()
        };
        self.tsecr = ack.tsecr;
        if effects.advanced {
            self.timeouts = 0;
        }
        self.process_sack(ack, &mut effects);
        if ack.ack < self.scoreboard.snd_una || self.scoreboard.packets_out() == 0 {
            if effects.sacked || effects.dsack {
                let next = self.process_dubious_ack(&mut effects);
                self.xmit_recovery(next);
            }
            return;
        }
        let rearm = self.remove_acked(ack, &mut effects, high);
        let prior = effects.latest.map(|(_, delivered)| delivered);
        self.rack.update_reo_wnd(prior, self.delivered);
        self.process_tlp_ack(ack.ack, &effects);
        let plain = effects.advanced && !effects.sacked && !effects.dsack;
        let mut next = Next::Nothing;
        self.reordering_armed = false;
        if !plain || self.ca_state != CaState::Open {
            next = self.process_dubious_ack(&mut effects);
        }
        // The reordering timer has precedence over the other timers.
        if rearm && !self.reordering_armed {
            self.set_xmit_timer();
        }
        let delivered = self.delivered - delivered;
        if self.is_reducing() {
            let more_lost = self.scoreboard.lost_total > lost;
            self.cwnd_reduction(delivered, effects.advanced, more_lost);
        } else {
            self.grow_cwnd(&effects, delivered);
        }
        self.xmit_recovery(next);
    }

    fn grow_cwnd(&mut self, effects: &AckEffects, delivered: u64) {
        let progress = effects.advanced || self.rack.reordering > DUP_THRESH && effects.sacked;
        let starting =
            self.cubic.in_slow_start() && self.cubic.cwnd < 2 * self.scoreboard.packets_out();
        if progress && (self.cwnd_limited || starting) {
            self.cubic.grow(self.now, delivered);
        }
    }

    fn process_sack(&mut self, ack: &Ack, effects: &mut AckEffects) {
        let duplicate = ack.duplicate();
        if let Some((start, end)) = duplicate {
            self.process_dsack(start, end, effects);
        }
        let (una, nxt) = (self.scoreboard.snd_una, self.scoreboard.snd_nxt());
        let skip = usize::from(duplicate.is_some());
        let mut blocks: Vec<_> = ack.blocks().skip(skip).collect();
        blocks.sort_unstable();
        for seq in blocks.into_iter().flat_map(|(start, end)| start..end) {
            if seq < una || seq >= nxt {
                continue;
            }
            let high = self.scoreboard.high_sacked();
            let Some(sent) = self.scoreboard.sack(seq) else {
                continue;
            };
            effects.sacked = true;
            self.delivered += 1;
            effects.note_latest(&sent);
            self.rack.advance(self.now, &sent, self.rtt.min);
            if sent.ever_retrans {
                continue;
            }
            if seq < high {
                effects.reordered = Some(effects.reordered.map_or(seq, |before| before.min(seq)));
            }
            effects.original_acked |= seq < self.high_seq;
            AckEffects::note_sent(&mut effects.sacked_sent, sent.at);
        }
        if self.ca_state != CaState::Loss || self.undo.marker.is_some() {
            self.note_reordered(effects.reordered.take());
        }
    }

    fn note_reordered(&mut self, from: Option<u64>) {
        if let Some(seq) = from {
            let high = self.scoreboard.high_sacked();
            self.rack.note_reordering(seq, high);
        }
    }

    fn process_dsack(&mut self, start: u64, end: u64, effects: &mut AckEffects) {
        self.counters.dsack_recv += end - start;
        // If DSACKs have reported more segments than were retransmitted, the network duplicates
        // segments.
        if self.counters.dsack_recv > self.counters.retrans_segs {
            return;
        }
        effects.dsack = true;
        self.delivered += end - start;
        let of_probe = self.probe.is_some_and(|(high, _)| high == end);
        effects.dsack_of_probe = of_probe;
        self.rack.dsack_seen |= !of_probe;
        let after = self.undo.marker.is_some_and(|marker| end > marker);
        let own = start < self.scoreboard.snd_una
            || self
                .scoreboard
                .get(start)
                .is_some_and(|sent| sent.ever_retrans);
        if let Some(undo_retrans) = self.undo.undo_retrans.as_mut().filter(|_| after && own) {
            *undo_retrans = undo_retrans.saturating_sub(end - start);
        }
    }

    /// Removes cumulatively ACKed segments. Returns true if the timer must be set again. `high` is
    /// the sequence number after the highest segment that was SACKed before this ACK, or SND.UNA if
    /// no segment was SACKed.
    fn remove_acked(&mut self, ack: &Ack, effects: &mut AckEffects, high: u64) -> bool {
        let mut reordered = None;
        while self.scoreboard.snd_una < ack.ack {
            let seq = self.scoreboard.snd_una;
            let Some(sent) = self.scoreboard.acknowledge() else {
                break;
            };
            effects.note_latest(&sent);
            effects.retrans_acked |= sent.ever_retrans;
            if !sent.sacked {
                self.delivered += 1;
                let spurious = sent.retrans && self.tsecr < sent.at / 1000;
                if !spurious {
                    self.rack.advance(self.now, &sent, self.rtt.min);
                }
            }
            if !sent.ever_retrans && !sent.sacked {
                AckEffects::note_sent(&mut effects.acked_sent, sent.at);
                reordered.get_or_insert(seq);
                effects.original_acked |= seq < self.high_seq;
            }
        }
        if let Some(seq) = reordered.filter(|seq| *seq < high) {
            let high = high.max(self.scoreboard.high_sacked());
            self.rack.note_reordering(seq, high);
        }
        let sampled = self.sample(effects);
        let head = self
            .scoreboard
            .get(self.scoreboard.snd_una)
            .map_or(self.now, |s| s.at);
        let newer = effects.sacked_sent.is_some_and(|(first, _)| first < head);
        effects.advanced || sampled && newer
    }

    /// Takes a round-trip sample from newly ACKed segments, from newly SACKed segments, or from the
    /// timestamp: the first of these sources that has a sample. ACKed segments give no sample if
    /// one of them was retransmitted. The timestamp gives a sample only if SND.UNA has advanced.
    /// Returns false if there is no sample.
    fn sample(&mut self, effects: &AckEffects) -> bool {
        let acked = effects.acked_sent.filter(|_| !effects.retrans_acked);
        let clock = effects
            .advanced
            .then(|| self.millis().saturating_sub(self.tsecr));
        let echoed = clock.map(|ms| self.now.saturating_sub(1000 * ms.max(1)));
        let (first, last) = match (acked.or(effects.sacked_sent), echoed) {
            (Some(span), _) => span,
            (None, Some(at)) => (at, at),
            (None, None) => return false,
        };
        let rtt = self.now - last;
        self.rtt.note_min(rtt);
        self.update_rtt(self.now - first);
        if acked.is_some() || effects.sacked_sent.is_some() {
            let sample = Sample {
                now: self.now,
                rtt,
                srtt: self.rtt.srtt,
                cwnd: self.cubic.cwnd,
                snd_una: self.scoreboard.snd_una,
                snd_nxt: self.scoreboard.snd_nxt(),
            };
            self.cubic.on_sample(&sample, self.settings.mss);
        }
        true
    }

    pub(super) fn update_rtt(&mut self, us: u64) {
        self.rtt
            .sample(us, self.scoreboard.snd_una, self.scoreboard.snd_nxt());
        self.rto = self.rtt.rto();
    }

    /// Handles the ACK of a tail loss probe (RFC 8985 §7.4.2).
    fn process_tlp_ack(&mut self, ack: u64, effects: &AckEffects) {
        let Some((end, again)) = self.probe.filter(|(end, _)| ack >= *end) else {
            return;
        };
        let plain = !effects.advanced && !effects.sacked;
        if !again || effects.dsack_of_probe || plain {
            self.probe = None;
        } else if ack > end {
            // The probe has repaired a loss, so the window is reduced.
            self.begin_reduction();
            self.ca_state = CaState::Cwr;
            self.end_reduction();
            self.keep_open();
        }
    }
}
