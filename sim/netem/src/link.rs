//! One direction of a link, with its queue and its impairments.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use tidelane_time::{Duration, Instant};

use crate::{config::LinkConfig, packets::mark_congestion_experienced, rng::Rng};

/// If this number of frames is in flight, the link drops further frames. The constant limits the
/// memory of a link, because [`LinkConfig::limit`] limits only the frames that wait for the
/// transmitter.
const IN_FLIGHT_MAX: usize = 1 << 20;

/// Counters of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Frames pushed.
    pub pushed: u64,
    /// Frames polled, duplicates included.
    pub delivered: u64,
    /// Frames lost for one of three reasons: random loss, a length above [`LinkConfig::frame_max`],
    /// or [`Link::clear`].
    pub lost: u64,
    /// Frames dropped because the queue was full, or because the link had `IN_FLIGHT_MAX` frames in
    /// flight.
    pub overflowed: u64,
    /// Duplicates created.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames delayed by `reorder_delay`.
    pub reordered: u64,
    /// ECN-capable packets that were marked CE. Packets that had CE before are counted, too.
    pub marked: u64,
}

impl LinkCounters {
    /// Adds the counters of another link.
    pub fn add(&mut self, other: &Self) {
        self.pushed += other.pushed;
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.overflowed += other.overflowed;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.reordered += other.reordered;
        self.marked += other.marked;
    }
}

/// A frame in flight. Frames are ordered by arrival, and then by the order in which they were
/// pushed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    arrival: Instant,
    number: u64,
    frame: Vec<u8>,
}

/// The random streams, one for each impairment.
#[derive(Debug)]
struct ImpairmentRngs {
    loss: Rng,
    burst: Rng,
    reorder: Rng,
    duplicate: Rng,
    corrupt: Rng,
    jitter: Rng,
    copy_jitter: Rng,
}

/// Impairments drawn for one frame. The link draws all impairments for every frame, even for a lost
/// frame. A change of one impairment therefore does not shift the random numbers of another.
#[derive(Debug)]
struct Impairments {
    lost: bool,
    reordered: bool,
    duplicated: bool,
    /// Position of the bit to flip in the frame, or `None` to flip no bit.
    flipped_bit: Option<u64>,
    /// Delay and jitter of the frame.
    propagation: Duration,
    /// Delay and jitter of the duplicate.
    copy_propagation: Duration,
}

/// One direction of a link. The crate's documentation has a drawing.
///
/// [`Link::push`] takes input, and [`Link::poll`] gives output. `now` must not go backwards.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    rngs: ImpairmentRngs,
    /// True in the bad state of the burst-loss model.
    in_burst: bool,
    /// Departure times of the frames in the queue and in transmission, ascending.
    departures: VecDeque<Instant>,
    /// Time at which the token bucket has tokens for all frames so far. If this time is in the
    /// past, the bucket has unused tokens.
    bucket_time: Instant,
    /// Expiry of the timer that waits for tokens. If this time is in the past, the timer does not
    /// run.
    timer_at: Instant,
    /// Highest arrival time so far, not counting the frames that `reorder` selected. If jitter must
    /// preserve the order, `schedule_in_order` schedules no arrival before this time.
    last_arrival: Instant,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    next_number: u64,
    counters: LinkCounters,
}

impl Link {
    /// Creates a link whose impairments derive from `seed`.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let root = Rng::new(seed);
        let [
            loss,
            burst,
            reorder,
            duplicate,
            corrupt,
            jitter,
            copy_jitter,
        ] = [1, 2, 3, 4, 5, 6, 7].map(|name| root.fork(name));
        Self {
            config,
            rngs: ImpairmentRngs {
                loss,
                burst,
                reorder,
                duplicate,
                corrupt,
                jitter,
                copy_jitter,
            },
            in_burst: false,
            departures: VecDeque::new(),
            bucket_time: Instant::ZERO,
            timer_at: Instant::ZERO,
            last_arrival: Instant::ZERO,
            in_flight: BinaryHeap::new(),
            next_number: 0,
            counters: LinkCounters::default(),
        }
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the configuration for frames that are pushed from now on.
    pub fn set_config(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Returns the counters.
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Returns the number of frames in the link, including duplicates. A frame is in the link from
    /// its push until its poll. A lost frame does not count.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Drops all frames in flight, like an unplugged cable.
    pub fn clear(&mut self) {
        self.counters.lost += self.in_flight.len() as u64;
        self.in_flight.clear();
        self.departures.clear();
        (self.bucket_time, self.timer_at) = (Instant::ZERO, Instant::ZERO);
    }

    /// Sends a frame at time `now`.
    pub fn push(&mut self, now: Instant, frame: impl Into<Vec<u8>>) {
        let mut frame = frame.into();
        self.counters.pushed += 1;
        let drawn = self.draw_impairments(frame.len());
        let most = self.config.frame_max as usize;
        if drawn.lost || most > 0 && frame.len() > most {
            self.counters.lost += 1;
            return;
        }
        let Some(departure) = self.transmit(now, &mut frame) else {
            self.counters.overflowed += 1;
            return;
        };
        if let Some(bit) = drawn.flipped_bit {
            self.counters.corrupted += 1;
            frame[bit as usize / 8] ^= 1 << (bit % 8);
        }
        if drawn.duplicated {
            self.counters.duplicated += 1;
            self.schedule_in_order(departure + drawn.copy_propagation, frame.clone());
        }
        let arrival = departure + drawn.propagation;
        if drawn.reordered {
            self.counters.reordered += 1;
            self.schedule(arrival + self.config.reorder_delay, frame);
        } else {
            self.schedule_in_order(arrival, frame);
        }
    }

    /// Returns the next frame that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(InFlight { frame, .. }) = self.in_flight.pop()?;
        self.counters.delivered += 1;
        Some(frame)
    }

    /// Returns the time of the next arrival.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse(next)| next.arrival)
    }

    fn draw_impairments(&mut self, frame_len: usize) -> Impairments {
        let config = &self.config;
        let burst = config.burst_loss;
        let turn = if self.in_burst {
            burst.leave
        } else {
            burst.enter
        };
        self.in_burst ^= self.rngs.burst.chance_ppm(turn);
        let lost_in_burst = self.rngs.burst.chance_ppm(burst.loss) && self.in_burst;
        let corrupted = self.rngs.corrupt.chance_ppm(config.corrupt) && frame_len > 0;
        let bit = self.rngs.corrupt.below(frame_len as u64 * 8);
        Impairments {
            lost: self.rngs.loss.chance_ppm(config.loss) || lost_in_burst,
            reordered: self.rngs.reorder.chance_ppm(config.reorder),
            duplicated: self.rngs.duplicate.chance_ppm(config.duplicate),
            flipped_bit: corrupted.then_some(bit),
            propagation: propagation(config, &mut self.rngs.jitter),
            copy_propagation: propagation(config, &mut self.rngs.copy_jitter),
        }
    }

    /// Queues a frame. Sets CE in an ECN-capable packet if `ecn_threshold` is reached. Returns the
    /// time at which the frame's last bit leaves. Returns `None` if the queue is full or too many
    /// frames are in flight.
    fn transmit(&mut self, now: Instant, frame: &mut [u8]) -> Option<Instant> {
        while self
            .departures
            .front()
            .is_some_and(|departure| *departure <= now)
        {
            self.departures.pop_front();
        }
        let waiting = self.departures.len();
        let limit = usize::try_from(self.config.limit).unwrap_or(usize::MAX);
        // The frame in transmission does not count towards the queue length.
        if waiting > limit || self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        if self
            .config
            .ecn_threshold
            .is_some_and(|threshold| waiting >= threshold as usize)
            && mark_congestion_experienced(frame)
        {
            self.counters.marked += 1;
        }
        let start = self.departures.back().map_or(now, |last| now.max(*last));
        let departure = start.max(self.take_tokens(now, frame.len()));
        if departure > now {
            self.departures.push_back(departure);
        }
        Some(departure)
    }

    /// Takes the tokens for a frame of `len` bytes. Returns the time at which the frame may leave:
    /// `now`, or the expiry of the timer that waits for tokens.
    fn take_tokens(&mut self, now: Instant, len: usize) -> Instant {
        let credit = self.config.transmission_time(self.config.burst as usize);
        let full = Instant(now.as_nanos().saturating_sub(credit.as_nanos()));
        self.bucket_time = self.bucket_time.max(full) + self.config.transmission_time(len);
        if self.bucket_time > now.max(self.timer_at) {
            self.timer_at = self.bucket_time + self.config.timer;
        }
        self.timer_at.max(now)
    }

    /// Schedules the arrival of a frame. If jitter must not reorder frames, the frame arrives no
    /// earlier than any frame that this function has scheduled before.
    fn schedule_in_order(&mut self, arrival: Instant, frame: Vec<u8>) {
        let arrival = if self.config.jitter_reorders {
            arrival
        } else {
            arrival.max(self.last_arrival)
        };
        self.last_arrival = self.last_arrival.max(arrival);
        self.schedule(arrival, frame);
    }

    fn schedule(&mut self, arrival: Instant, frame: Vec<u8>) {
        let number = self.next_number;
        self.next_number += 1;
        self.in_flight.push(Reverse(InFlight {
            arrival,
            number,
            frame,
        }));
    }
}

fn propagation(config: &LinkConfig, rng: &mut Rng) -> Duration {
    let jitter = config.jitter.0;
    let drawn = rng.below(jitter.saturating_mul(2).saturating_add(1));
    config.delay + Duration(drawn) - Duration(jitter)
}
