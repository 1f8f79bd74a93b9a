//! The receiver: when it acknowledges, and what it reports.

use crate::{
    packet::{Ack, BLOCKS_MAX, Data},
    ticks::Ticks,
};

/// Acknowledgments that go at once in the beginning, and after trouble.
const QUICK: u32 = 16;
/// How long the acknowledgment of a single segment waits, in microseconds.
const DELAY: u64 = 40_000;
/// Reports of one hole that go at once.
const REPORTS_AT_ONCE: u32 = 3;
/// Microseconds that others wait (`tcp_comp_sack_delay_ns`, if a twentieth of the round trip is not
/// less), and how much later the timer may be (`tcp_comp_sack_slack_ns`).
const COMPRESSION_MAX: u64 = 1_000;
const COMPRESSION_SLACK: u64 = 100;
/// Reports that wait, at most (`tcp_comp_sack_nr`).
const COMPRESSED_MAX: u32 = 44;
/// This end's own timeout, by the handshake: the least one, and a round trip.
const TIMEOUT: u64 = 200_001;
/// Segments that GRO makes one of, at most.
const RUN_MAX: usize = 45;

/// When what has arrived is acknowledged.
#[derive(Debug)]
enum Reply {
    Now(Ack),
    /// When the backlog is done.
    Soon,
    Later,
}

/// By how many milliseconds a timestamp may be older than the latest one (RFC 7323 §5.3;
/// TCP_PAWS_WINDOW).
const PAWS_WINDOW: u64 = 1;

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
    /// When text last came in order.
    heard: u64,
    deadline: Option<u64>,
    /// RCV.NXT, and reports that went at once since it is that.
    reports: (u64, u32),
    /// Reports that wait, and until when.
    compressed: u32,
    report_at: Option<u64>,
    /// The handshake's round trip in microseconds.
    rtt: u64,
    ticks: Ticks,
}

impl Receiver {
    /// Nothing has arrived; timers tick `hz` times a second, the handshake took `rtt` microseconds.
    pub fn new(hz: u64, rtt: u64) -> Self {
        Self {
            rcv_nxt: 0,
            acked: 0,
            ts_recent: 0,
            ranges: Vec::new(),
            quick: QUICK,
            heard: 0,
            deadline: None,
            reports: (0, 0),
            compressed: 0,
            report_at: None,
            rtt,
            ticks: Ticks::new(hz),
        }
    }

    /// Segments that arrived in order.
    pub const fn received(&self) -> u64 {
        self.rcv_nxt
    }

    /// When [`Receiver::on_time`] is due.
    pub fn deadline(&self) -> Option<u64> {
        let both = [self.deadline, self.report_at];
        both.into_iter().flatten().min()
    }

    /// Segments arrive at once. Returned is what is sent at once.
    ///
    /// The first run wakes the program. While that reads, the others go to the socket's backlog,
    /// for which there is one acknowledgment at the end (`tcp_backlog_ack_defer`), but for those
    /// that do nothing but report holes.
    pub fn on_data(&mut self, now: u64, batch: &[Data]) -> Vec<Ack> {
        let runs = batch
            .chunk_by(|one, next| !one.push && next.seq == one.seq + 1 && next.tsval == one.tsval);
        let runs = runs.flat_map(|run| run.chunks(RUN_MAX));
        let mut acks = Vec::new();
        let mut deferred = false;
        for (number, run) in runs.enumerate() {
            match self.on_run(now, run) {
                Reply::Later => {}
                Reply::Soon if number > 0 => deferred = true,
                Reply::Soon => acks.push(self.acknowledge(None)),
                Reply::Now(ack) => {
                    deferred = false;
                    acks.push(ack);
                }
            }
        }
        acks.extend(deferred.then(|| self.acknowledge(None)));
        acks
    }

    /// What GRO has made one of: segments in order, up to one with PSH.
    fn on_run(&mut self, now: u64, run: &[Data]) -> Reply {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Reply::Later;
        };
        let (start, end) = (first.seq, last.seq + 1);
        let refused = first.tsval + PAWS_WINDOW < self.ts_recent;
        if refused || end <= self.rcv_nxt {
            let twice = (start < self.rcv_nxt).then_some((start, end.min(self.rcv_nxt)));
            if twice.is_some() {
                self.quick = QUICK;
            }
            return Reply::Now(self.acknowledge(twice));
        }
        if start <= self.acked {
            self.ts_recent = self.ts_recent.max(first.tsval);
        }
        let known = |(left, right): &(u64, u64)| *left <= start && end <= *right;
        if self.ranges.iter().any(known) {
            return Reply::Now(self.acknowledge(Some((start, end))));
        }
        let (before, holes) = (self.rcv_nxt, !self.ranges.is_empty());
        self.insert(start.max(before), end);
        if self.rcv_nxt > before {
            self.note_gap(now);
        }
        self.reply(now, holes, last.push)
    }

    /// `holes`: there were some. `push`: the program, which reads at once, then acknowledges.
    fn reply(&mut self, now: u64, holes: bool, push: bool) -> Reply {
        let several = self.rcv_nxt > self.acked + 1;
        let filled = holes && self.ranges.is_empty();
        if several || filled || push || self.quick > 0 {
            return Reply::Soon;
        }
        if !self.ranges.is_empty() {
            return self.reply_to_hole(now);
        }
        let due = self.ticks.deadline(now, DELAY);
        self.deadline.get_or_insert(due);
        Reply::Later
    }

    /// Three reports of the same RCV.NXT go at once, then one for all that comes within a while.
    fn reply_to_hole(&mut self, now: u64) -> Reply {
        let (at, count) = self.reports;
        let count = if at == self.rcv_nxt { count } else { 0 };
        if count < REPORTS_AT_ONCE {
            self.reports = (self.rcv_nxt, count + 1);
            return Reply::Now(self.acknowledge(None));
        }
        let after = (self.rtt / 20).min(COMPRESSION_MAX) + COMPRESSION_SLACK;
        self.compressed += 1;
        if self.compressed > COMPRESSED_MAX {
            return Reply::Now(self.acknowledge(None));
        }
        self.report_at.get_or_insert(now + after);
        Reply::Later
    }

    /// After a silence longer than a timeout the peer's window is small: it is answered quickly.
    fn note_gap(&mut self, now: u64) {
        let gap = self.ticks.at(now) - self.ticks.at(self.heard);
        if self.ticks.span(gap) > self.ticks.round_up(TIMEOUT) {
            self.quick = QUICK;
        }
        self.heard = now;
    }

    /// The delayed acknowledgment, or compressed reports, if they are due.
    pub fn on_time(&mut self, now: u64) -> Option<Ack> {
        self.deadline()
            .is_some_and(|at| at <= now)
            .then(|| self.acknowledge(None))
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        self.ranges.retain(|&(left, right)| {
            let touches = left <= end && start <= right;
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

    fn acknowledge(&mut self, duplicate: Option<(u64, u64)>) -> Ack {
        self.acked = self.rcv_nxt;
        (self.deadline, self.report_at, self.compressed) = (None, None, 0);
        self.quick = self.quick.saturating_sub(1);
        let mut blocks = [(0, 0); BLOCKS_MAX];
        let all = duplicate.into_iter().chain(self.ranges.iter().copied());
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
        Data {
            seq,
            tsval: 1,
            push: false,
        }
    }

    fn run(receiver: &mut Receiver, segments: std::ops::Range<u64>) -> Vec<u64> {
        let batch: Vec<_> = segments.map(data).collect();
        let acks = receiver.on_data(500, &batch);
        acks.into_iter().map(|ack| ack.ack).collect()
    }

    /// Sixteen single segments have arrived.
    fn settled() -> Receiver {
        let mut receiver = Receiver::new(1000, 1_000);
        for seq in 0..16 {
            assert_eq!(run(&mut receiver, seq..seq + 1), [seq + 1]);
        }
        receiver
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_single_one_after_40_ms() {
        let mut receiver = settled();
        assert_eq!(run(&mut receiver, 16..17), []);
        assert_eq!(run(&mut receiver, 17..18), [18]);
        assert_eq!(run(&mut receiver, 18..19), []);
        let due = receiver.deadline().expect("an acknowledgment is owed");
        assert!((40_500..=42_000).contains(&due), "{due}");
        assert_eq!(receiver.on_time(due).map(|ack| ack.ack), Some(19));
    }

    #[test]
    fn a_run_is_acknowledged_once_and_what_follows_it_in_the_batch_once() {
        let mut receiver = settled();
        let mut batch: Vec<_> = (16..26).map(data).collect();
        for end in [18, 20, 23] {
            batch[end - 16].push = true;
        }
        let acks = receiver.on_data(500, &batch);
        let acks: Vec<_> = acks.into_iter().map(|ack| ack.ack).collect();
        assert_eq!(acks, [19, 26]);
    }

    #[test]
    fn a_single_segment_with_push_is_acknowledged_as_the_program_reads_it() {
        let mut receiver = settled();
        let push = Data {
            push: true,
            ..data(16)
        };
        assert_eq!(receiver.on_data(500, &[push]).len(), 1);
    }

    #[test]
    fn after_a_silence_longer_than_a_timeout_it_is_quick_again() {
        let mut receiver = settled();
        assert_eq!(run(&mut receiver, 16..17), []);
        for seq in 17..20 {
            assert_eq!(receiver.on_data(212_500, &[data(seq)]).len(), 1);
        }
    }

    #[test]
    fn holes_and_duplicates_are_reported_at_once_the_latest_first() {
        let mut receiver = settled();
        for seq in [18, 20, 19] {
            assert_eq!(run(&mut receiver, seq..seq + 1), [16]);
        }
        let ack = receiver.on_data(0, &[data(18)])[0];
        assert_eq!(ack.duplicate(), Some((18, 19)));
        assert_eq!(ack.blocks, [(18, 19), (18, 21), (0, 0)]);
        let ack = receiver.on_data(0, &[data(3)])[0];
        assert_eq!(ack.duplicate(), Some((3, 4)));
    }

    #[test]
    fn what_is_older_than_the_latest_is_refused_and_reported_if_it_came_before() {
        let mut receiver = settled();
        let old = |seq, tsval| Data { tsval, ..data(seq) };
        receiver.on_data(500, &[old(16, 9)]);
        // By one tick it is taken.
        receiver.on_data(500, &[old(17, 8)]);
        assert_eq!(receiver.received(), 18);
        let ack = receiver.on_data(500, &[old(18, 7)])[0];
        assert_eq!((ack.ack, ack.tsecr, ack.duplicate()), (18, 9, None));
        let ack = receiver.on_data(500, &[old(16, 7)])[0];
        assert_eq!((ack.ack, ack.duplicate()), (18, Some((16, 17))));
        // What came before moves no clock.
        let ack = receiver.on_data(500, &[old(17, 20)])[0];
        assert_eq!(ack.tsecr, 9);
    }

    #[test]
    fn the_fourth_report_of_a_hole_waits_for_others() {
        let mut receiver = settled();
        for n in 0..3 {
            assert_eq!(run(&mut receiver, 17 + 2 * n..18 + 2 * n), [16]);
        }
        assert_eq!(run(&mut receiver, 23..24), []);
        assert_eq!(run(&mut receiver, 25..26), []);
        // A twentieth of the round trip, and the timer's slack.
        assert_eq!(receiver.deadline(), Some(500 + 50 + 100));
        let ack = receiver.on_time(650).expect("due");
        assert_eq!((ack.ack, ack.blocks[0]), (16, (25, 26)));
    }
}
