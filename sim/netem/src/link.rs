//! One direction of a link.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use tidelane_time::{Duration, Instant};

use crate::{config::LinkConfig, packets::mark_congestion_experienced, rng::Rng};

/// Frames that a link can hold: a bound for links that are infinitely fast, and so have no queue.
const IN_FLIGHT_MAX: usize = 1 << 20;

/// What happened to the frames so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounters {
    /// Frames that were pushed.
    pub pushed: u64,
    /// Frames that were polled, copies included.
    pub delivered: u64,
    /// Frames lost by chance, or because they were too long.
    pub lost: u64,
    /// Frames that found the queue full.
    pub overflowed: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames held back so that others overtake them.
    pub reordered: u64,
    /// Packets marked CE.
    pub marked: u64,
}

impl LinkCounters {
    /// Adds those of another link.
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

/// A frame on its way. Ordered by arrival, then by the order in which frames were pushed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    arrival: Instant,
    number: u64,
    frame: Vec<u8>,
}

/// A stream of chance for each kind of mishap.
#[derive(Debug)]
struct Chances {
    loss: Rng,
    burst: Rng,
    reorder: Rng,
    duplicate: Rng,
    corrupt: Rng,
    jitter: Rng,
    copy_jitter: Rng,
}

/// What chance has in store for one frame. All of it is drawn for every frame, lost ones too, so
/// that one mishap does not shift another.
#[derive(Debug)]
struct Fate {
    lost: bool,
    held_back: bool,
    duplicated: bool,
    flipped_bit: Option<u64>,
    propagation: Duration,
    copy_propagation: Duration,
}

/// One direction of a link: see the crate's documentation.
///
/// [`Link::push`] takes input, [`Link::poll`] gives output, `now` must not go backwards.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    chances: Chances,
    /// The burst-loss model is in its bad state.
    in_burst: bool,
    /// When each frame that waits for, or is in, transmission has left; ascending.
    departures: VecDeque<Instant>,
    /// When all that has left would have left without bursts.
    paid: Instant,
    /// When the timer of an empty bucket looks, or has looked.
    look: Instant,
    /// The latest arrival so far, for jitter that keeps order.
    last_arrival: Instant,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    next_number: u64,
    counters: LinkCounters,
}

impl Link {
    /// A link with the mishaps of `seed`.
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
            chances: Chances {
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
            paid: Instant::ZERO,
            look: Instant::ZERO,
            last_arrival: Instant::ZERO,
            in_flight: BinaryHeap::new(),
            next_number: 0,
            counters: LinkCounters::default(),
        }
    }

    /// The link's properties.
    pub const fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the properties for frames that are pushed from now on.
    pub fn set_config(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// What happened so far.
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Frames that were pushed and have neither been lost nor polled, copies included.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Loses everything that is on the link: it was unplugged.
    pub fn clear(&mut self) {
        self.counters.lost += self.in_flight.len() as u64;
        self.in_flight.clear();
        self.departures.clear();
        (self.paid, self.look) = (Instant::ZERO, Instant::ZERO);
    }

    /// A frame goes in.
    pub fn push(&mut self, now: Instant, frame: impl Into<Vec<u8>>) {
        let mut frame = frame.into();
        self.counters.pushed += 1;
        let fate = self.draw_fate(frame.len());
        let most = self.config.frame_max as usize;
        if fate.lost || most > 0 && frame.len() > most {
            self.counters.lost += 1;
            return;
        }
        let Some(departure) = self.transmit(now, &mut frame) else {
            self.counters.overflowed += 1;
            return;
        };
        if let Some(bit) = fate.flipped_bit {
            self.counters.corrupted += 1;
            frame[bit as usize / 8] ^= 1 << (bit % 8);
        }
        if fate.duplicated {
            self.counters.duplicated += 1;
            self.fly(departure + fate.copy_propagation, frame.clone());
        }
        let arrival = departure + fate.propagation;
        if fate.held_back {
            self.counters.reordered += 1;
            self.land(arrival + self.config.reorder_delay, frame);
        } else {
            self.fly(arrival, frame);
        }
    }

    /// The next frame that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(InFlight { frame, .. }) = self.in_flight.pop()?;
        self.counters.delivered += 1;
        Some(frame)
    }

    /// When the next frame arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse(next)| next.arrival)
    }

    fn draw_fate(&mut self, frame_len: usize) -> Fate {
        let config = &self.config;
        let burst = config.burst_loss;
        let turn = if self.in_burst {
            burst.leave
        } else {
            burst.enter
        };
        self.in_burst ^= self.chances.burst.chance_ppm(turn);
        let lost_in_burst = self.chances.burst.chance_ppm(burst.loss) && self.in_burst;
        let corrupted = self.chances.corrupt.chance_ppm(config.corrupt) && frame_len > 0;
        let bit = self.chances.corrupt.below(frame_len as u64 * 8);
        Fate {
            lost: self.chances.loss.chance_ppm(config.loss) || lost_in_burst,
            held_back: self.chances.reorder.chance_ppm(config.reorder),
            duplicated: self.chances.duplicate.chance_ppm(config.duplicate),
            flipped_bit: corrupted.then_some(bit),
            propagation: propagation(config, &mut self.chances.jitter),
            copy_propagation: propagation(config, &mut self.chances.copy_jitter),
        }
    }

    /// Queues the frame and tells when its last bit has left, or `None` if the queue is full.
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
        // The frame in transmission does not wait.
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
        let departure = start.max(self.pay(now, frame.len()));
        if departure > now {
            self.departures.push_back(departure);
        }
        Some(departure)
    }

    /// When a frame of `len` bytes gets its tokens; takes them.
    fn pay(&mut self, now: Instant, len: usize) -> Instant {
        let credit = self.config.transmission_time(self.config.burst as usize);
        let full = Instant(now.as_nanos().saturating_sub(credit.as_nanos()));
        self.paid = self.paid.max(full) + self.config.transmission_time(len);
        if self.paid > now.max(self.look) {
            self.look = self.paid + self.config.timer;
        }
        self.look.max(now)
    }

    /// As [`Link::land`], but not before the frames that went before.
    fn fly(&mut self, arrival: Instant, frame: Vec<u8>) {
        let arrival = if self.config.jitter_reorders {
            arrival
        } else {
            arrival.max(self.last_arrival)
        };
        self.last_arrival = self.last_arrival.max(arrival);
        self.land(arrival, frame);
    }

    fn land(&mut self, arrival: Instant, frame: Vec<u8>) {
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
