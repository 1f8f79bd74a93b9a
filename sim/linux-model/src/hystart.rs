//! HyStart as in Linux. HyStart ends slow start before the queue at the bottleneck overflows.

/// Smallest window at which HyStart works, in segments.
const WINDOW_MIN: u64 = 16;
/// Number of round-trip samples that a round must have before their smallest value is used.
const SAMPLES_MIN: u32 = 8;
/// Largest gap between two ACKs of one ACK train (ACKs in close succession), in microseconds.
const TRAIN_GAP: u64 = 2_000;
/// Limits, in microseconds, of the increase in delay from which HyStart assumes a queue. Within the
/// limits, this increase is an eighth of the smallest round-trip time.
const INCREASE: (u64, u64) = (4_000, 16_000);
/// Allowance for batching, which delays ACK trains: number of bytes in batches, and largest delay
/// in microseconds.
const BATCHING: (u64, u64) = (4 * 65_536, 1_000);

/// State of the sender when it takes a round-trip sample. Times are in microseconds, and windows
/// and sequence numbers in segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) now: u64,
    pub(crate) rtt: u64,
    pub(crate) srtt: f64,
    pub(crate) cwnd: u64,
    pub(crate) snd_una: u64,
    pub(crate) snd_nxt: u64,
}

/// State of HyStart. A round lasts about one round trip. The round ends when SND.UNA passes the
/// SND.NXT of the round's start. Times are in microseconds.
#[derive(Debug, Default)]
pub(crate) struct HyStart {
    /// Time at which the round started.
    round_start: u64,
    /// SND.NXT at the start of the round, in segments.
    round_end: u64,
    /// Time of the last ACK of the round's ACK train.
    last_ack: u64,
    /// Smallest round-trip time of the round.
    round_min: u64,
    /// Number of samples of the round, counted up to [`SAMPLES_MIN`].
    samples: u32,
    /// True after the first round has started.
    begun: bool,
    /// True after HyStart has ended slow start.
    found: bool,
}

impl HyStart {
    /// Returns true if slow start should end at this sample. After a true result, all later results
    /// are false. `least` is the smallest round-trip time so far in microseconds. `mss` is in
    /// bytes.
    pub(crate) fn on_sample(&mut self, sample: &Sample, least: u64, mss: u64) -> bool {
        if self.found || sample.cwnd < WINDOW_MIN {
            return false;
        }
        if sample.snd_una > self.round_end || !self.begun {
            self.begun = true;
            (self.round_start, self.last_ack) = (sample.now, sample.now);
            (self.round_end, self.round_min, self.samples) = (sample.snd_nxt, u64::MAX, 0);
        }
        let train = self.is_long_train(sample, least, mss);
        let slower = self.is_delay_increased(sample.rtt, least);
        self.found = train || slower;
        self.found
    }

    /// Returns true if the ACK train of this round is longer than half of the sum of the smallest
    /// round-trip time and an allowance for batching.
    fn is_long_train(&mut self, sample: &Sample, least: u64, mss: u64) -> bool {
        if sample.now - self.last_ack > TRAIN_GAP {
            return false;
        }
        self.last_ack = sample.now;
        // In slow start, Linux computes a pacing rate of two windows per round trip.
        let rate = (2 * sample.cwnd * mss) as f64 / sample.srtt.max(1.0);
        let batches = (BATCHING.0 as f64 / rate).min(BATCHING.1 as f64);
        sample.now - self.round_start > (least + batches as u64) / 2
    }

    /// Returns true if the smallest round-trip time of this round shows a queue.
    fn is_delay_increased(&mut self, rtt: u64, least: u64) -> bool {
        self.round_min = self.round_min.min(rtt);
        if self.samples < SAMPLES_MIN {
            self.samples += 1;
            return false;
        }
        self.round_min > least + (least / 8).clamp(INCREASE.0, INCREASE.1)
    }
}
