//! The model of Linux's receiver, which generates immediate and delayed ACKs with SACK blocks.

use crate::{
    packet::{Ack, BLOCKS_MAX, Data},
    ticks::Ticks,
};

/// Number of immediate ACKs at the start of a connection, and after duplicates or idle times
/// (`TCP_MAX_QUICKACKS`).
const QUICKACKS_MAX: u32 = 16;
/// Delay of the ACK for a single segment, in microseconds (`TCP_DELACK_MIN`).
const DELAY: u64 = 40_000;
/// Number of duplicate ACKs that are sent immediately while RCV.NXT does not change.
const IMMEDIATE_DUP_ACKS: u32 = 3;
/// Largest delay of compressed SACKs in microseconds (`tcp_comp_sack_delay_ns`). SACKs are
/// compressed if one ACK covers several out-of-order arrivals. The delay is the smaller of this
/// constant and a twentieth of the round-trip time.
const COMPRESSION_MAX: u64 = 1_000;
/// Slack of the timer for compressed SACKs in microseconds (`tcp_comp_sack_slack_ns`).
const COMPRESSION_SLACK: u64 = 100;
/// Largest number of SACKs that are compressed into the next ACK (`tcp_comp_sack_nr`).
const COMPRESSED_MAX: u32 = 44;
/// Retransmission timeout of the receiver in microseconds: Linux's minimum of 200 ms, plus a
/// negligible round-trip time.
const TIMEOUT: u64 = 200_001;
/// Largest number of segments that GRO merges into one run.
const RUN_MAX: usize = 45;

/// Decision about the ACK for a run, which is a sequence of segments that GRO has merged.
#[derive(Debug)]
enum AckDecision {
    /// Sends this ACK immediately.
    Now(Ack),
    /// For the first run of a batch, sends an ACK immediately. For another run, sends an ACK at the
    /// end of the backlog (see [`Receiver::on_data`]).
    Soon,
    /// Sends no ACK now. A timer may be set.
    Later,
}

/// Time in milliseconds by which a timestamp may be older than TS.Recent (RFC 7323 §5.3;
/// `TCP_PAWS_WINDOW`).
const PAWS_WINDOW: u64 = 1;

/// The receiving end of a connection. The program reads arriving data immediately. Sequence numbers
/// count segments.
#[derive(Debug)]
pub struct Receiver {
    rcv_nxt: u64,
    /// RCV.NXT in the last ACK sent.
    acked: u64,
    /// TS.Recent in milliseconds.
    ts_recent: u64,
    /// Out-of-order ranges above RCV.NXT: the first sequence number, and the number after the last.
    /// The ranges do not touch. The range that grew most recently comes first.
    ranges: Vec<(u64, u64)>,
    /// Number of further ACKs that are sent immediately.
    quickacks: u32,
    /// Time in microseconds at which RCV.NXT last advanced.
    last_advance: u64,
    /// Time at which the delayed ACK is due.
    deadline: Option<u64>,
    /// A value of RCV.NXT, and the number of duplicate ACKs that were sent immediately with this
    /// value.
    dup_acks: (u64, u32),
    /// Number of SACKs compressed since the last ACK.
    compressed: u32,
    /// Time at which the ACK for the compressed SACKs is due.
    compressed_due: Option<u64>,
    /// Round-trip time of the handshake in microseconds.
    rtt: u64,
    ticks: Ticks,
}

impl Receiver {
    /// Creates a receiver after a handshake. Its timers have `hz` ticks per second. `rtt` is the
    /// round-trip time of the handshake in microseconds.
    pub fn new(hz: u64, rtt: u64) -> Self {
        Self {
            rcv_nxt: 0,
            acked: 0,
            ts_recent: 0,
            ranges: Vec::new(),
            quickacks: QUICKACKS_MAX,
            last_advance: 0,
            deadline: None,
            dup_acks: (0, 0),
            compressed: 0,
            compressed_due: None,
            rtt,
            ticks: Ticks::new(hz),
        }
    }

    /// Returns the number of segments received in order.
    pub const fn received(&self) -> u64 {
        self.rcv_nxt
    }

    /// Returns the time at which [`Receiver::on_timer`] is due.
    pub fn deadline(&self) -> Option<u64> {
        let both = [self.deadline, self.compressed_due];
        both.into_iter().flatten().min()
    }

    /// Handles a batch: segments that arrive at the same time. Returns the ACKs that are sent at
    /// this time.
    ///
    /// The first run of segments wakes the program. While the program reads, the other runs go to
    /// the backlog of the socket. One ACK at the end acknowledges the backlog
    /// (`tcp_backlog_ack_defer`). Three kinds of runs have an ACK of their own: a run of duplicate
    /// segments, a run that PAWS refuses, and an out-of-order run whose duplicate ACK is sent
    /// immediately.
    pub fn on_data(&mut self, now: u64, batch: &[Data]) -> Vec<Ack> {
        let runs = batch
            .chunk_by(|one, next| !one.push && next.seq == one.seq + 1 && next.tsval == one.tsval);
        let runs = runs.flat_map(|run| run.chunks(RUN_MAX));
        let mut acks = Vec::new();
        let mut deferred = false;
        for (number, run) in runs.enumerate() {
            match self.on_run(now, run) {
                AckDecision::Later => {}
                AckDecision::Soon if number > 0 => deferred = true,
                AckDecision::Soon => acks.push(self.acknowledge(None)),
                AckDecision::Now(ack) => {
                    deferred = false;
                    acks.push(ack);
                }
            }
        }
        acks.extend(deferred.then(|| self.acknowledge(None)));
        acks
    }

    /// Handles a run of consecutive segments that GRO has merged. A segment with PSH ends a run.
    fn on_run(&mut self, now: u64, run: &[Data]) -> AckDecision {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return AckDecision::Later;
        };
        let (start, end) = (first.seq, last.seq + 1);
        let refused = first.tsval + PAWS_WINDOW < self.ts_recent;
        if refused || end <= self.rcv_nxt {
            let dsack = (start < self.rcv_nxt).then_some((start, end.min(self.rcv_nxt)));
            if dsack.is_some() {
                self.quickacks = QUICKACKS_MAX;
            }
            return AckDecision::Now(self.acknowledge(dsack));
        }
        if start <= self.acked {
            self.ts_recent = self.ts_recent.max(first.tsval);
        }
        let known = |(left, right): &(u64, u64)| *left <= start && end <= *right;
        if self.ranges.iter().any(known) {
            return AckDecision::Now(self.acknowledge(Some((start, end))));
        }
        let (before, holes) = (self.rcv_nxt, !self.ranges.is_empty());
        self.insert(start.max(before), end);
        if self.rcv_nxt > before {
            self.note_idle(now);
        }
        self.decide_ack(now, holes, last.push)
    }

    /// Decides about the ACK of an accepted run. `holes` is true if there were out-of-order ranges
    /// when the run arrived. `push` is true if the run ends with PSH. A read by the program sends
    /// an ACK only if the data has PSH.
    fn decide_ack(&mut self, now: u64, holes: bool, push: bool) -> AckDecision {
        let several = self.rcv_nxt > self.acked + 1;
        let filled = holes && self.ranges.is_empty();
        if several || filled || push || self.quickacks > 0 {
            return AckDecision::Soon;
        }
        if !self.ranges.is_empty() {
            return self.decide_dup_ack(now);
        }
        let due = self.ticks.deadline(now, DELAY);
        self.deadline.get_or_insert(due);
        AckDecision::Later
    }

    /// Decides about the ACK for out-of-order segments. While RCV.NXT does not change, the first
    /// three duplicate ACKs are sent immediately. After the third, one ACK covers all runs of a
    /// time interval, but at most [`COMPRESSED_MAX`] + 1 runs.
    fn decide_dup_ack(&mut self, now: u64) -> AckDecision {
        let (at, count) = self.dup_acks;
        let count = if at == self.rcv_nxt { count } else { 0 };
        if count < IMMEDIATE_DUP_ACKS {
            self.dup_acks = (self.rcv_nxt, count + 1);
            return AckDecision::Now(self.acknowledge(None));
        }
        let after = (self.rtt / 20).min(COMPRESSION_MAX) + COMPRESSION_SLACK;
        self.compressed += 1;
        if self.compressed > COMPRESSED_MAX {
            return AckDecision::Now(self.acknowledge(None));
        }
        self.compressed_due.get_or_insert(now + after);
        AckDecision::Later
    }

    /// Switches to immediate ACKs after an idle time longer than [`TIMEOUT`], because after this
    /// time the peer has reduced its congestion window.
    fn note_idle(&mut self, now: u64) {
        let gap = self.ticks.at(now) - self.ticks.at(self.last_advance);
        if self.ticks.span(gap) > self.ticks.round_up(TIMEOUT) {
            self.quickacks = QUICKACKS_MAX;
        }
        self.last_advance = now;
    }

    /// Returns an ACK if the delayed ACK or the ACK for compressed SACKs is due.
    pub fn on_timer(&mut self, now: u64) -> Option<Ack> {
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

    /// Builds an ACK, whose first block is the DSACK `duplicate`, if any.
    fn acknowledge(&mut self, duplicate: Option<(u64, u64)>) -> Ack {
        self.acked = self.rcv_nxt;
        (self.deadline, self.compressed_due, self.compressed) = (None, None, 0);
        self.quickacks = self.quickacks.saturating_sub(1);
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

    /// Delivers `segments` as one batch. Returns the numbers that the ACKs acknowledge.
    fn run(receiver: &mut Receiver, segments: std::ops::Range<u64>) -> Vec<u64> {
        let batch: Vec<_> = segments.map(data).collect();
        let acks = receiver.on_data(500, &batch);
        acks.into_iter().map(|ack| ack.ack).collect()
    }

    /// Returns a receiver that has used up its immediate ACKs with sixteen single segments.
    fn after_quickacks() -> Receiver {
        let mut receiver = Receiver::new(1000, 1_000);
        for seq in 0..16 {
            assert_eq!(run(&mut receiver, seq..seq + 1), [seq + 1]);
        }
        receiver
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_single_one_after_40_ms() {
        let mut receiver = after_quickacks();
        assert_eq!(run(&mut receiver, 16..17), []);
        assert_eq!(run(&mut receiver, 17..18), [18]);
        assert_eq!(run(&mut receiver, 18..19), []);
        let due = receiver.deadline().expect("an acknowledgment is owed");
        assert!((40_500..=42_000).contains(&due), "{due}");
        assert_eq!(receiver.on_timer(due).map(|ack| ack.ack), Some(19));
    }

    #[test]
    fn each_batch_has_one_ack_for_its_first_run_and_one_for_the_rest() {
        let mut receiver = after_quickacks();
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
        let mut receiver = after_quickacks();
        let push = Data {
            push: true,
            ..data(16)
        };
        assert_eq!(receiver.on_data(500, &[push]).len(), 1);
    }

    #[test]
    fn quickacks_return_after_an_idle_time_longer_than_a_timeout() {
        let mut receiver = after_quickacks();
        assert_eq!(run(&mut receiver, 16..17), []);
        for seq in 17..20 {
            assert_eq!(receiver.on_data(212_500, &[data(seq)]).len(), 1);
        }
    }

    #[test]
    fn holes_and_duplicates_are_reported_at_once_the_latest_first() {
        let mut receiver = after_quickacks();
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
    fn paws_drops_old_timestamps_and_reports_duplicates() {
        let mut receiver = after_quickacks();
        let old = |seq, tsval| Data { tsval, ..data(seq) };
        receiver.on_data(500, &[old(16, 9)]);
        // A timestamp that is older by one millisecond is accepted.
        receiver.on_data(500, &[old(17, 8)]);
        assert_eq!(receiver.received(), 18);
        let ack = receiver.on_data(500, &[old(18, 7)])[0];
        assert_eq!((ack.ack, ack.tsecr, ack.duplicate()), (18, 9, None));
        let ack = receiver.on_data(500, &[old(16, 7)])[0];
        assert_eq!((ack.ack, ack.duplicate()), (18, Some((16, 17))));
        // A duplicate segment does not update TS.Recent.
        let ack = receiver.on_data(500, &[old(17, 20)])[0];
        assert_eq!(ack.tsecr, 9);
    }

    #[test]
    fn the_fourth_dup_ack_of_a_hole_is_compressed() {
        let mut receiver = after_quickacks();
        for n in 0..3 {
            assert_eq!(run(&mut receiver, 17 + 2 * n..18 + 2 * n), [16]);
        }
        assert_eq!(run(&mut receiver, 23..24), []);
        assert_eq!(run(&mut receiver, 25..26), []);
        // The delay is a twentieth of the round-trip time plus the slack of the timer.
        assert_eq!(receiver.deadline(), Some(500 + 50 + 100));
        let ack = receiver.on_timer(650).expect("due");
        assert_eq!((ack.ack, ack.blocks[0]), (16, (25, 26)));
    }
}
