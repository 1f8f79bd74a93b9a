//! The receiver: when it acknowledges, and what it reports.

use crate::{
    packet::{Ack, BLOCKS_MAX, Data},
    ticks::Ticks,
};

/// Acknowledgments that go at once in the beginning, and after trouble.
const QUICK: u32 = 16;
/// How long the acknowledgment of a single segment waits, in microseconds.
const DELAY: u64 = 40_000;

/// One end that only receives, and whose program reads at once.
#[derive(Debug)]
pub struct Receiver {
    rcv_nxt: u64,
    /// RCV.NXT when the last acknowledgment was sent.
    acked: u64,
    ts_recent: u64,
    /// Beyond RCV.NXT: apart from each other, the one that grew last first.
    ranges: Vec<(u64, u64)>,
    quick: u32,
    deadline: Option<u64>,
    ticks: Ticks,
}

impl Receiver {
    /// Nothing has arrived; timers tick `hz` times a second.
    pub fn new(hz: u64) -> Self {
        Self {
            rcv_nxt: 0,
            acked: 0,
            ts_recent: 0,
            ranges: Vec::new(),
            quick: QUICK,
            deadline: None,
            ticks: Ticks::new(hz),
        }
    }

    /// Segments that arrived in order.
    pub const fn received(&self) -> u64 {
        self.rcv_nxt
    }

    /// When [`Receiver::on_time`] is due.
    pub const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// A segment arrives. Returned is what is sent at once.
    pub fn on_data(&mut self, now: u64, data: Data) -> Option<Ack> {
        if data.seq <= self.acked {
            self.ts_recent = self.ts_recent.max(data.tsval);
        }
        let known = |(start, end): &(u64, u64)| (*start..*end).contains(&data.seq);
        if data.seq < self.rcv_nxt || self.ranges.iter().any(known) {
            self.quick = QUICK;
            return Some(self.acknowledge(Some(data.seq)));
        }
        let holes = !self.ranges.is_empty();
        self.insert(data.seq);
        let several = self.rcv_nxt > self.acked + 1;
        if holes || !self.ranges.is_empty() || several || self.quick > 0 {
            return Some(self.acknowledge(None));
        }
        let due = self.ticks.deadline(now, DELAY);
        self.deadline.get_or_insert(due);
        None
    }

    /// The delayed acknowledgment, if it is due.
    pub fn on_time(&mut self, now: u64) -> Option<Ack> {
        self.deadline
            .is_some_and(|at| at <= now)
            .then(|| self.acknowledge(None))
    }

    fn insert(&mut self, seq: u64) {
        let (mut start, mut end) = (seq, seq + 1);
        self.ranges.retain(|&(left, right)| {
            let touches = right == start || left == end;
            if touches {
                (start, end) = (start.min(left), end.max(right));
            }
            !touches
        });
        if start == self.rcv_nxt {
            self.rcv_nxt = end;
        } else {
            self.ranges.insert(0, (start, end));
        }
    }

    fn acknowledge(&mut self, duplicate: Option<u64>) -> Ack {
        self.acked = self.rcv_nxt;
        self.deadline = None;
        self.quick = self.quick.saturating_sub(1);
        let mut blocks = [(0, 0); BLOCKS_MAX];
        let first = duplicate.map(|seq| (seq, seq + 1));
        let all = first.into_iter().chain(self.ranges.iter().copied());
        for (place, block) in blocks.iter_mut().zip(all) {
            *place = block;
        }
        Ack {
            ack: self.rcv_nxt,
            tsecr: self.ts_recent,
            blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(seq: u64) -> Data {
        Data { seq, tsval: seq }
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_single_one_after_40_ms() {
        let mut receiver = Receiver::new(1000);
        for seq in 0..16 {
            assert_eq!(
                receiver.on_data(0, data(seq)).map(|ack| ack.ack),
                Some(seq + 1)
            );
        }
        assert_eq!(receiver.on_data(500, data(16)), None);
        assert_eq!(receiver.on_data(500, data(17)).map(|ack| ack.ack), Some(18));
        assert_eq!(receiver.on_data(500, data(18)), None);
        let due = receiver.deadline().expect("an acknowledgment is owed");
        assert!((40_500..=42_000).contains(&due), "{due}");
        assert_eq!(receiver.on_time(due).map(|ack| ack.ack), Some(19));
    }

    #[test]
    fn holes_and_duplicates_are_reported_at_once_the_latest_first() {
        let mut receiver = Receiver::new(1000);
        receiver.on_data(0, data(0));
        for seq in [2, 4, 3] {
            receiver.on_data(0, data(seq));
        }
        let ack = receiver.on_data(0, data(6)).expect("out of order");
        assert_eq!((ack.ack, ack.blocks), (1, [(6, 7), (2, 5), (0, 0)]));
        let ack = receiver.on_data(0, data(3)).expect("a duplicate");
        assert_eq!(ack.duplicate(), None, "inside the second block of two");
        let ack = receiver.on_data(0, data(0)).expect("a duplicate");
        assert_eq!(ack.duplicate(), Some((0, 1)));
        let ack = receiver.on_data(0, data(1)).expect("a filled hole");
        assert_eq!((ack.ack, ack.blocks[0]), (5, (6, 7)));
    }
}
