//! The scoreboard: the outstanding segments, which are between SND.UNA and SND.NXT, ordered by
//! sequence number and by last transmission.

use std::collections::{BTreeMap, VecDeque};

/// State of one outstanding segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Time of the last transmission in microseconds.
    pub(crate) at: u64,
    /// Number of the last transmission. The sender numbers all its transmissions in order.
    pub(crate) order: u64,
    /// Number of segments delivered before the last transmission.
    pub(crate) delivered: u64,
    pub(crate) sacked: bool,
    /// True if the segment is marked lost. The mark remains after a retransmission.
    pub(crate) lost: bool,
    /// True if the segment was retransmitted because of a loss, and this retransmission is in
    /// flight. A tail loss probe does not count.
    pub(crate) retrans: bool,
    /// True if the segment was retransmitted at any time.
    pub(crate) ever_retrans: bool,
    /// True if the segment has PSH, in its first transmission and in its retransmissions.
    pub(crate) push: bool,
}

/// The outstanding segments of a sender. Counts and sequence numbers are in segments.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// SND.UNA.
    pub(crate) snd_una: u64,
    /// Outstanding segments, from SND.UNA on.
    flight: VecDeque<Sent>,
    /// Maps transmission numbers to the sequence numbers of segments that RACK may still mark lost.
    orders: BTreeMap<u64, u64>,
    /// Number of the next transmission.
    next_order: u64,
    /// Number of outstanding segments that are SACKed (`sacked_out`).
    pub(crate) sacked: u64,
    /// Number of outstanding segments that are marked lost (`lost_out`).
    pub(crate) lost: u64,
    /// Number of retransmissions in flight, not counting tail loss probes (`retrans_out`).
    pub(crate) retrans_out: u64,
    /// Sequence number after the highest segment that was ever SACKed.
    high_sacked: u64,
    /// Number of losses ever marked, including losses of retransmissions.
    pub(crate) lost_total: u64,
}

impl Scoreboard {
    /// Returns SND.NXT in segments.
    pub(crate) fn snd_nxt(&self) -> u64 {
        self.snd_una + self.packets_out()
    }

    /// Returns the number of segments between SND.UNA and SND.NXT (`packets_out`).
    pub(crate) fn packets_out(&self) -> u64 {
        self.flight.len() as u64
    }

    /// Returns the number of segments in flight: the pipe of RFC 6675, as Linux counts it
    /// (`tcp_packets_in_flight`).
    pub(crate) fn in_flight(&self) -> u64 {
        self.packets_out() + self.retrans_out - self.sacked - self.lost
    }

    /// Returns the sequence number after the highest SACKed segment, or SND.UNA if no segment is
    /// SACKed.
    pub(crate) fn high_sacked(&self) -> u64 {
        if self.sacked == 0 {
            self.snd_una
        } else {
            self.high_sacked
        }
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&Sent> {
        let index = seq.checked_sub(self.snd_una)?;
        self.flight.get(usize::try_from(index).ok()?)
    }

    fn get_mut(&mut self, seq: u64) -> Option<&mut Sent> {
        let index = seq.checked_sub(self.snd_una)?;
        self.flight.get_mut(usize::try_from(index).ok()?)
    }

    /// Records the transmission of the next new segment. Returns its sequence number.
    pub(crate) fn send(&mut self, now: u64, delivered: u64) -> u64 {
        let (seq, order) = (self.snd_nxt(), self.next_order);
        self.next_order += 1;
        self.orders.insert(order, seq);
        self.flight.push_back(Sent {
            at: now,
            order,
            delivered,
            sacked: false,
            lost: false,
            retrans: false,
            ever_retrans: false,
            push: false,
        });
        seq
    }

    /// Sets PSH in the last new segment, because the segment ends a super-frame (a burst for TSO).
    pub(crate) fn push(&mut self) {
        if let Some(last) = self.flight.back_mut() {
            last.push = true;
        }
    }

    /// Records the retransmission of segment `seq`, either after a loss or as a tail loss probe.
    pub(crate) fn retransmit(&mut self, seq: u64, now: u64, delivered: u64) {
        let order = self.next_order;
        let Some(sent) = self.get_mut(seq) else {
            return;
        };
        let (before, more) = (sent.order, sent.lost && !sent.retrans);
        (sent.at, sent.order, sent.delivered) = (now, order, delivered);
        (sent.retrans, sent.ever_retrans) = (sent.retrans || more, true);
        self.retrans_out += u64::from(more);
        self.next_order += 1;
        self.orders.remove(&before);
        self.orders.insert(order, seq);
    }

    /// Records a SACK of segment `seq`. Returns the segment's previous state, or `None` if the
    /// segment was SACKed already.
    pub(crate) fn sack(&mut self, seq: u64) -> Option<Sent> {
        let sent = self.get_mut(seq).filter(|sent| !sent.sacked)?;
        let before = *sent;
        sent.sacked = true;
        // If the segment is marked lost and was retransmitted, the SACK is assumed to be for the
        // retransmission, which then does not count as in flight. If the loss mark was removed
        // (`unmark_lost`), the retransmission still counts as in flight.
        if before.lost {
            (sent.lost, sent.retrans) = (false, false);
            self.lost -= 1;
            self.retrans_out -= u64::from(before.retrans);
        }
        self.sacked += 1;
        self.high_sacked = self.high_sacked.max(seq + 1);
        self.orders.remove(&before.order);
        Some(before)
    }

    /// Records the cumulative ACK of the segment at SND.UNA. Returns the segment's state.
    pub(crate) fn acknowledge(&mut self) -> Option<Sent> {
        let sent = self.flight.pop_front()?;
        self.snd_una += 1;
        self.sacked -= u64::from(sent.sacked);
        self.lost -= u64::from(sent.lost);
        self.retrans_out -= u64::from(sent.retrans);
        self.orders.remove(&sent.order);
        Some(sent)
    }

    /// Marks segment `seq` lost. If the segment is already marked lost, marks its retransmission
    /// lost instead. Does not mark a SACKed segment.
    pub(crate) fn mark_lost(&mut self, seq: u64) {
        let Some(sent) = self.get_mut(seq).filter(|sent| !sent.sacked) else {
            return;
        };
        let (order, lost, retrans) = (sent.order, sent.lost, sent.retrans);
        sent.lost = true;
        if lost {
            sent.retrans = false;
            self.retrans_out -= u64::from(retrans);
            self.lost_total += u64::from(retrans);
        } else {
            self.lost += 1;
            self.lost_total += 1;
        }
        self.orders.remove(&order);
    }

    /// Removes all loss marks, because the losses were spurious.
    pub(crate) fn unmark_lost(&mut self) {
        for sent in self.flight.iter_mut().filter(|sent| sent.lost) {
            sent.lost = false;
        }
        self.lost = 0;
    }

    /// Returns the segments that RACK may mark lost, in the order of their last transmission.
    pub(crate) fn by_transmission(&self) -> impl Iterator<Item = (u64, &Sent)> {
        let all = self.orders.values();
        all.filter_map(|seq| Some((*seq, self.get(*seq)?)))
    }

    /// Returns the first lost segment that has no retransmission in flight. Returns `None` without
    /// a search if `retrans_out` is at least `lost`.
    pub(crate) fn next_lost(&self) -> Option<u64> {
        if self.retrans_out >= self.lost {
            return None;
        }
        let all = (self.snd_una..).zip(&self.flight);
        all.into_iter()
            .find(|(_, sent)| sent.lost && !sent.retrans && !sent.sacked)
            .map(|(seq, _)| seq)
    }

    /// Returns true if a retransmission is in flight, or if the segment at SND.UNA was ever
    /// retransmitted.
    pub(crate) fn has_retransmissions(&self) -> bool {
        self.retrans_out > 0 || self.flight.front().is_some_and(|sent| sent.ever_retrans)
    }
}
