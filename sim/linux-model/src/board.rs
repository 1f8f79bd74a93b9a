//! What is in flight, segment by segment, and in the order in which it was last sent.

use std::collections::{BTreeMap, VecDeque};

/// A segment in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// When it was last sent, in microseconds, and as which transmission of all.
    pub(crate) at: u64,
    pub(crate) order: u64,
    /// What had been delivered by then.
    pub(crate) delivered: u64,
    pub(crate) sacked: bool,
    pub(crate) lost: bool,
    /// Sent again, and that one is in flight.
    pub(crate) again: bool,
    /// Sent again at any time.
    pub(crate) ever: bool,
    /// It has PSH, then too.
    pub(crate) push: bool,
}

/// The scoreboard.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// The first segment in flight.
    pub(crate) una: u64,
    flight: VecDeque<Sent>,
    /// By transmission: those that may still be found lost.
    orders: BTreeMap<u64, u64>,
    next_order: u64,
    pub(crate) sacked: u64,
    pub(crate) lost: u64,
    pub(crate) again: u64,
    /// Behind the last segment that was reported.
    high_sacked: u64,
    /// Segments that were ever marked lost.
    pub(crate) lost_ever: u64,
}

impl Board {
    /// SND.NXT.
    pub(crate) fn nxt(&self) -> u64 {
        self.una + self.out()
    }

    /// Segments between SND.UNA and SND.NXT.
    pub(crate) fn out(&self) -> u64 {
        self.flight.len() as u64
    }

    /// RFC 6675's pipe, as Linux counts it.
    pub(crate) fn in_flight(&self) -> u64 {
        self.out() + self.again - self.sacked - self.lost
    }

    /// Behind the last segment that was reported, or SND.UNA.
    pub(crate) fn high_sacked(&self) -> u64 {
        if self.sacked == 0 {
            self.una
        } else {
            self.high_sacked
        }
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&Sent> {
        let index = seq.checked_sub(self.una)?;
        self.flight.get(usize::try_from(index).ok()?)
    }

    fn get_mut(&mut self, seq: u64) -> Option<&mut Sent> {
        let index = seq.checked_sub(self.una)?;
        self.flight.get_mut(usize::try_from(index).ok()?)
    }

    /// The next new segment goes. Returned is its number.
    pub(crate) fn send(&mut self, now: u64, delivered: u64) -> u64 {
        let (seq, order) = (self.nxt(), self.next_order);
        self.next_order += 1;
        self.orders.insert(order, seq);
        self.flight.push_back(Sent {
            at: now,
            order,
            delivered,
            sacked: false,
            lost: false,
            again: false,
            ever: false,
            push: false,
        });
        seq
    }

    /// The last new segment ends what is sent as one.
    pub(crate) fn push(&mut self) {
        if let Some(last) = self.flight.back_mut() {
            last.push = true;
        }
    }

    /// `seq` goes again; in place of the first one, if that was lost, or as a probe.
    pub(crate) fn send_again(&mut self, seq: u64, now: u64, delivered: u64) {
        let order = self.next_order;
        let Some(sent) = self.get_mut(seq) else {
            return;
        };
        let (before, more) = (sent.order, sent.lost && !sent.again);
        (sent.at, sent.order, sent.delivered) = (now, order, delivered);
        (sent.again, sent.ever) = (sent.again || more, true);
        self.again += u64::from(more);
        self.next_order += 1;
        self.orders.remove(&before);
        self.orders.insert(order, seq);
    }

    /// It is reported. What it was before; `None` if that is no news.
    pub(crate) fn sack(&mut self, seq: u64) -> Option<Sent> {
        let sent = self.get_mut(seq).filter(|sent| !sent.sacked)?;
        let before = *sent;
        sent.sacked = true;
        if before.lost {
            // The one sent again counts as arrived only if the first was given up.
            (sent.lost, sent.again) = (false, false);
            self.lost -= 1;
            self.again -= u64::from(before.again);
        }
        self.sacked += 1;
        self.high_sacked = self.high_sacked.max(seq + 1);
        self.orders.remove(&before.order);
        Some(before)
    }

    /// It is acknowledged.
    pub(crate) fn acknowledge(&mut self) -> Option<Sent> {
        let sent = self.flight.pop_front()?;
        self.una += 1;
        self.sacked -= u64::from(sent.sacked);
        self.lost -= u64::from(sent.lost);
        self.again -= u64::from(sent.again);
        self.orders.remove(&sent.order);
        Some(sent)
    }

    /// It is given up, or what was sent in its place.
    pub(crate) fn lose(&mut self, seq: u64) {
        let Some(sent) = self.get_mut(seq).filter(|sent| !sent.sacked) else {
            return;
        };
        let (order, lost, again) = (sent.order, sent.lost, sent.again);
        sent.lost = true;
        if lost {
            sent.again = false;
            self.again -= u64::from(again);
            self.lost_ever += u64::from(again);
        } else {
            self.lost += 1;
            self.lost_ever += 1;
        }
        self.orders.remove(&order);
    }

    /// Nothing is lost after all.
    pub(crate) fn find_all(&mut self) {
        for sent in self.flight.iter_mut().filter(|sent| sent.lost) {
            sent.lost = false;
        }
        self.lost = 0;
    }

    /// Those that may be found lost, in the order in which they were sent.
    pub(crate) fn by_transmission(&self) -> impl Iterator<Item = (u64, &Sent)> {
        let all = self.orders.values();
        all.filter_map(|seq| Some((*seq, self.get(*seq)?)))
    }

    /// The first that is lost and was not sent again since.
    pub(crate) fn next_lost(&self) -> Option<u64> {
        if self.again >= self.lost {
            return None;
        }
        let all = (self.una..).zip(&self.flight);
        all.into_iter()
            .find(|(_, sent)| sent.lost && !sent.again && !sent.sacked)
            .map(|(seq, _)| seq)
    }

    /// Whether what is in flight was sent again, or its first segment ever was.
    pub(crate) fn is_repaired(&self) -> bool {
        self.again > 0 || self.flight.front().is_some_and(|sent| sent.ever)
    }
}
