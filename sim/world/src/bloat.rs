//! What a bulk transfer does to the round trips of others: one flow that fills a bottleneck with a
//! deep drop-tail queue, and one of small requests and replies beside it.

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

/// How exactly the time of a reply is known.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes of a request, and of its reply.
const REQUEST: u32 = 64;
/// Requests that no run comes to the end of.
const REQUESTS: usize = 20_000;
/// The flows, in the order in which they begin.
const SMALL: u32 = 0;
const BULK: u32 = 1;

/// A bottleneck, and what fills it.
#[derive(Clone, Copy, Debug)]
pub struct Bloat {
    /// Bits per second.
    pub rate: u64,
    /// Each way.
    pub delay: Duration,
    /// Frames that the queue takes.
    pub queue: u32,
    /// Congestion control of both flows.
    pub congestion: Algorithm,
    /// The small flow alone.
    pub alone: Duration,
    /// Both.
    pub together: Duration,
    /// The run's seed.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// From request to reply, each with the time of the reply since the bulk flow began.
    pub together: Vec<(Duration, Duration)>,
    /// The same before it began.
    pub alone: Vec<Duration>,
    /// Bytes that the bulk flow's reader had.
    pub bulk: u64,
    /// How long that took.
    pub lasted: Duration,
}

impl RoundTrips {
    /// The mean before the bulk flow began.
    pub fn mean_alone(&self) -> Duration {
        mean(self.alone.iter().copied())
    }

    /// The mean beside it, of replies that came in `span` since it began.
    pub fn mean(&self, span: Range<Duration>) -> Duration {
        let within = self.together.iter().filter(|(at, _)| span.contains(at));
        mean(within.map(|(_, took)| *took))
    }

    /// The longest beside it.
    pub fn longest(&self) -> Duration {
        let all = self.together.iter().map(|(_, took)| *took);
        all.max().unwrap_or_default()
    }

    /// Bits per second of the bulk flow.
    pub fn rate(&self) -> f64 {
        self.bulk as f64 * 8e9 / self.lasted.as_nanos() as f64
    }
}

fn mean(all: impl Iterator<Item = Duration>) -> Duration {
    let (sum, count) = all.fold((Duration::ZERO, 0u64), |(sum, n), took| (sum + took, n + 1));
    sum / count.max(1)
}

impl Bloat {
    /// Runs it, with all rules of the world.
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
        // The first reply had to wait for the handshake.
        let (mut now, mut last, mut replies) = (Instant::ZERO, None, 0);
        while now < end {
            now += LOOK;
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
        let there = LinkConfig {
            rate: self.rate,
            limit: self.queue,
            ..LinkConfig::with_delay(self.delay)
        };
        let bulk = Bulk {
            back: LinkConfig::with_delay(self.delay),
            congestion: self.congestion,
            window: 8 << 20,
            warm_up: self.alone,
            measured: self.together,
            seed: self.seed,
            ..Bulk::over(there)
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
