//! What an acknowledgment says, in the order in which Linux looks at it.

use super::{Phase, Sender, output::Next};
use crate::{board::Sent, hystart::Sample, packet::Ack, rack::DUP_THRESH};

/// What one acknowledgment has brought.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) prior_una: u64,
    /// SND.UNA moved.
    pub(super) advanced: bool,
    /// Something was newly reported.
    pub(super) sacked: bool,
    /// A duplicate was reported, and that of a probe.
    dsack: bool,
    dsack_of_probe: bool,
    /// Something that was never sent again, from before the repair, has arrived.
    pub(super) original: bool,
    /// Something that was sent again was acknowledged.
    again: bool,
    pub(super) gave_up_repair: bool,
    /// Where reordering begins.
    reordered: Option<u64>,
    /// When the first and last of what is newly acknowledged, or reported, was sent.
    acked_sent: Option<(u64, u64)>,
    sacked_sent: Option<(u64, u64)>,
    /// The latest-sent: order and what had been delivered by then.
    latest: Option<(u64, u64)>,
}

impl Seen {
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
        let (delivered, lost) = (self.delivered, self.board.lost_ever);
        let high = self.board.high_sacked();
        let mut seen = Seen {
            prior_una: self.board.una,
            advanced: ack.ack > self.board.una,
            ..Seen::default()
        };
        self.tsecr = ack.tsecr;
        if seen.advanced {
            self.timeouts = 0;
        }
        self.take_blocks(ack, &mut seen);
        if ack.ack < self.board.una || self.board.out() == 0 {
            if seen.sacked || seen.dsack {
                let next = self.alert(&mut seen);
                self.repair(next);
            }
            return;
        }
        let rearm = self.take_acknowledged(ack, &mut seen, high);
        let prior = seen.latest.map(|(_, delivered)| delivered);
        self.rack.widen(prior, self.delivered);
        self.check_probe(ack.ack, &seen);
        let plain = seen.advanced && !seen.sacked && !seen.dsack;
        let mut next = Next::Nothing;
        self.reordering_armed = false;
        if !plain || self.phase != Phase::Open {
            next = self.alert(&mut seen);
        }
        // RACK's timer has precedence.
        if rearm && !self.reordering_armed {
            self.set_timer();
        }
        let delivered = self.delivered - delivered;
        if self.is_reducing() {
            let more_lost = self.board.lost_ever > lost;
            self.reduce(delivered, seen.advanced, more_lost);
        } else {
            self.raise(&seen, delivered);
        }
        self.repair(next);
    }

    fn raise(&mut self, seen: &Seen, delivered: u64) {
        let progress = seen.advanced || self.rack.reordering > DUP_THRESH && seen.sacked;
        let starting = self.cubic.in_slow_start() && self.cubic.cwnd < 2 * self.board.out();
        if progress && (self.cwnd_limited || starting) {
            self.cubic.grow(self.now, delivered);
        }
    }

    fn take_blocks(&mut self, ack: &Ack, seen: &mut Seen) {
        let duplicate = ack.duplicate();
        if let Some((start, end)) = duplicate {
            self.take_duplicate(start, end, seen);
        }
        let (una, nxt) = (self.board.una, self.board.nxt());
        let skip = usize::from(duplicate.is_some());
        let mut blocks: Vec<_> = ack.blocks().skip(skip).collect();
        blocks.sort_unstable();
        for seq in blocks.into_iter().flat_map(|(start, end)| start..end) {
            if seq < una || seq >= nxt {
                continue;
            }
            let high = self.board.high_sacked();
            let Some(sent) = self.board.sack(seq) else {
                continue;
            };
            seen.sacked = true;
            self.delivered += 1;
            seen.note_latest(&sent);
            self.rack.advance(self.now, &sent, self.rtt.min);
            if sent.ever {
                continue;
            }
            if seq < high {
                seen.reordered = Some(seen.reordered.map_or(seq, |before| before.min(seq)));
            }
            seen.original |= seq < self.high_seq;
            Seen::note_sent(&mut seen.sacked_sent, sent.at);
        }
        if self.phase != Phase::Loss || self.undo.marker.is_some() {
            self.note_reordered(seen.reordered.take());
        }
    }

    fn note_reordered(&mut self, from: Option<u64>) {
        if let Some(seq) = from {
            let high = self.board.high_sacked();
            self.rack.note_reordering(seq, high);
        }
    }

    fn take_duplicate(&mut self, start: u64, end: u64, seen: &mut Seen) {
        self.counters.dsack_recv += end - start;
        // More than was ever sent again: the network duplicates.
        if self.counters.dsack_recv > self.counters.retrans_segs {
            return;
        }
        seen.dsack = true;
        self.delivered += end - start;
        let of_probe = self.probe.is_some_and(|(high, _)| high == end);
        seen.dsack_of_probe = of_probe;
        self.rack.dsack_seen |= !of_probe;
        let after = self.undo.marker.is_some_and(|marker| end > marker);
        let own = start < self.board.una || self.board.get(start).is_some_and(|sent| sent.ever);
        if let Some(repairs) = self.undo.repairs.as_mut().filter(|_| after && own) {
            *repairs = repairs.saturating_sub(end - start);
        }
    }

    /// Whether the timer is to be set anew.
    fn take_acknowledged(&mut self, ack: &Ack, seen: &mut Seen, high: u64) -> bool {
        let mut reordered = None;
        while self.board.una < ack.ack {
            let seq = self.board.una;
            let Some(sent) = self.board.acknowledge() else {
                break;
            };
            seen.note_latest(&sent);
            seen.again |= sent.ever;
            if !sent.sacked {
                self.delivered += 1;
                let spurious = sent.again && self.tsecr < sent.at / 1000;
                if !spurious {
                    self.rack.advance(self.now, &sent, self.rtt.min);
                }
            }
            if !sent.ever && !sent.sacked {
                Seen::note_sent(&mut seen.acked_sent, sent.at);
                reordered.get_or_insert(seq);
                seen.original |= seq < self.high_seq;
            }
        }
        if let Some(seq) = reordered.filter(|seq| *seq < high) {
            let high = high.max(self.board.high_sacked());
            self.rack.note_reordering(seq, high);
        }
        let sampled = self.sample(seen);
        let head = self.board.get(self.board.una).map_or(self.now, |s| s.at);
        let newer = seen.sacked_sent.is_some_and(|(first, _)| first < head);
        seen.advanced || sampled && newer
    }

    /// A round-trip sample: by what was acknowledged, else reported, else by the timestamp.
    fn sample(&mut self, seen: &Seen) -> bool {
        let acked = seen.acked_sent.filter(|_| !seen.again);
        let clock = seen
            .advanced
            .then(|| self.millis().saturating_sub(self.tsecr));
        let echoed = clock.map(|ms| self.now.saturating_sub(1000 * ms.max(1)));
        let (first, last) = match (acked.or(seen.sacked_sent), echoed) {
            (Some(span), _) => span,
            (None, Some(at)) => (at, at),
            (None, None) => return false,
        };
        let rtt = self.now - last;
        self.rtt.note_min(rtt);
        self.take_round_trip(self.now - first);
        if acked.is_some() || seen.sacked_sent.is_some() {
            let sample = Sample {
                now: self.now,
                rtt,
                srtt: self.rtt.srtt,
                cwnd: self.cubic.cwnd,
                snd_una: self.board.una,
                snd_nxt: self.board.nxt(),
            };
            self.cubic.on_sample(&sample, self.settings.mss);
        }
        true
    }

    pub(super) fn take_round_trip(&mut self, us: u64) {
        self.rtt.sample(us, self.board.una, self.board.nxt());
        self.rto = self.rtt.rto();
    }

    /// RFC 8985 §7.4.2.
    fn check_probe(&mut self, ack: u64, seen: &Seen) {
        let Some((end, again)) = self.probe.filter(|(end, _)| ack >= *end) else {
            return;
        };
        let plain = !seen.advanced && !seen.sacked;
        if !again || seen.dsack_of_probe || plain {
            self.probe = None;
        } else if ack > end {
            // It has repaired a loss.
            self.begin_reduction();
            self.phase = Phase::Cwr;
            self.end_reduction();
            self.keep_open();
        }
    }
}
