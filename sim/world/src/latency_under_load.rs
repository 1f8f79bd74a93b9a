//! Latency under load: a flow of small requests and replies shares a bottleneck with a bulk flow
//! that fills a deep drop-tail queue.

use std::ops::Range;

use tidelane_engine::Algorithm;
use tidelane_netem::LinkConfig;
use tidelane_time::{Duration, Instant};

use crate::{
    bulk::Bulk,
    ledger::Violation,
    plan::{ConnectionPlan, Role, Round},
    scenario::Scenario,
    world::World,
};

/// Resolution of the measured arrival times of replies.
const RESOLUTION: Duration = Duration::from_millis(1);
/// Length of a request and of a reply, in bytes.
const REQUEST: u32 = 64;
/// Number of requests of the small flow, more than any run completes.
const REQUESTS: usize = 20_000;
/// Connection numbers of the two flows, in the order in which the flows start.
const SMALL: u32 = 0;
const BULK: u32 = 1;

/// A bottleneck and the two flows through it.
#[derive(Clone, Copy, Debug)]
pub struct LatencyUnderLoad {
    /// Rate of the bottleneck in the direction of the requests and the bulk data, in bits per
    /// second.
    pub rate: u64,
    /// Delay of the path without a queue, in each of the two directions.
    pub delay: Duration,
    /// Capacity of the bottleneck's queue, in frames.
    pub queue: u32,
    /// Congestion control algorithm of both flows.
    pub congestion: Algorithm,
    /// Time during which the small flow is alone.
    pub alone: Duration,
    /// Time during which both flows run.
    pub together: Duration,
    /// Seed of the run.
    pub seed: u64,
}

/// Round-trip times of the small flow, and goodput of the bulk flow.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// For each reply during the bulk flow: the time from the start of the bulk flow to the arrival
    /// of the reply, and the round-trip time.
    pub together: Vec<(Duration, Duration)>,
    /// Round-trip times of the replies before the start of the bulk flow.
    pub alone: Vec<Duration>,
    /// Bytes that the receiver of the bulk flow read.
    pub bulk: u64,
    /// Duration of the bulk flow.
    pub lasted: Duration,
}

impl RoundTrips {
    /// Returns the mean round-trip time before the start of the bulk flow.
    pub fn mean_alone(&self) -> Duration {
        mean(self.alone.iter().copied())
    }

    /// Returns the mean round-trip time of the replies that arrived in `span`, measured from the
    /// start of the bulk flow.
    pub fn mean(&self, span: Range<Duration>) -> Duration {
        let within = self.together.iter().filter(|(at, _)| span.contains(at));
        mean(within.map(|(_, took)| *took))
    }

    /// Returns the longest round-trip time during the bulk flow.
    pub fn longest(&self) -> Duration {
        let all = self.together.iter().map(|(_, took)| *took);
        all.max().unwrap_or_default()
    }

    /// Returns the goodput of the bulk flow, in bits per second.
    pub fn rate(&self) -> f64 {
        self.bulk as f64 * 8e9 / self.lasted.as_nanos() as f64
    }
}

fn mean(all: impl Iterator<Item = Duration>) -> Duration {
    let (sum, count) = all.fold((Duration::ZERO, 0u64), |(sum, n), took| (sum + took, n + 1));
    sum / count.max(1)
}

impl LatencyUnderLoad {
    /// Runs both flows. Returns an error if the run breaks a rule (`lib.rs` lists the rules), or if
    /// memory for the run is lacking.
    pub fn run(&self) -> Result<RoundTrips, Violation> {
        let mut world = World::new(self.scenario()).map_err(|error| Violation {
            at: Instant::ZERO,
            rule: "the machine has memory",
            text: error.to_string(),
        })?;
        let begin = Instant::ZERO + self.alone;
        let end = begin + self.together;
        let mut seen = RoundTrips {
            together: Vec::new(),
            alone: Vec::new(),
            bulk: 0,
            lasted: self.together,
        };
        // The client sends the next request when a reply arrives, so a round-trip time is the
        // interval between two replies. The first reply only starts the first interval.
        let (mut now, mut last, mut replies) = (Instant::ZERO, None, 0);
        while now < end {
            now += RESOLUTION;
            world.run_until(now)?;
            let read = world.ledger().end(SMALL, Role::Client).read;
            if read / u64::from(REQUEST) == replies {
                continue;
            }
            replies = read / u64::from(REQUEST);
            match last.replace(now) {
                None => {}
                Some(before) if now < begin => seen.alone.push(now - before),
                Some(before) => seen.together.push((now - begin, now - before)),
            }
        }
        seen.bulk = world.ledger().end(BULK, Role::Server).read;
        Ok(seen)
    }

    fn scenario(&self) -> Scenario {
        let forward = LinkConfig {
            rate: self.rate,
            limit: self.queue,
            ..LinkConfig::with_delay(self.delay)
        };
        let bulk = Bulk {
            reverse: LinkConfig::with_delay(self.delay),
            congestion: self.congestion,
            window: 8 << 20,
            warm_up: self.alone,
            measured: self.together,
            seed: self.seed,
            ..Bulk::over(forward)
        };
        let mut scenario = bulk.scenario();
        let round = Round {
            up: REQUEST,
            down: REQUEST,
        };
        let endless = scenario.connections.remove(0);
        let small = ConnectionPlan {
            id: SMALL,
            rounds: vec![round; REQUESTS],
            client_waits: true,
            ..endless.clone()
        };
        let bulk = ConnectionPlan {
            id: BULK,
            start: Instant::ZERO + self.alone,
            ..endless
        };
        scenario.connections = vec![small, bulk];
        scenario
    }
}
