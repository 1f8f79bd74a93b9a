//! `tidelane-sim figure loss`, `loss-fast` and `loss-short`: the goodput that bulk flows lose to
//! packet loss and reordering. The figures compare Tidelane and a model of Linux on the same link.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tidelane_netem::LinkConfig;
use tidelane_time::Duration;
use tidelane_world::{Bulk, Goodput, LinuxBulk, Violation};

/// Frequency of Linux's timer tick on Debian (CONFIG_HZ), in ticks per second.
pub const HZ: u64 = 250;
/// Number of seeds. For each impairment, each stack runs once with each seed.
const SEEDS: usize = 5;
/// Upper limit of the allowance for noise, in percentage points. Without this limit, the noise of
/// short runs could hide a difference.
const NOISE_MAX: f64 = 2.0;

/// A path, and the flows on it.
#[derive(Clone, Copy)]
pub struct PathSpec {
    name: &'static str,
    /// Rate of the link in bits per second.
    rate: u64,
    /// One-way delay in each direction.
    one_way: Duration,
    /// Number of flows.
    flows: u32,
    /// Capacity of the queue in frames.
    queue: u32,
    /// Size of the token bucket in bytes.
    burst: u32,
    /// Lateness of the timer with which the token bucket waits for tokens.
    timer: Duration,
    /// True if the ACKs suffer the same impairment as the data.
    both_directions: bool,
    /// Additional delay of reordered frames.
    reorder_delay: Duration,
    /// Receive window and send limit of a flow in bytes.
    window: u32,
    /// Time before the measurement, during which the flows converge.
    warm_up: Duration,
    /// Duration of the measurement.
    measured: Duration,
}

/// Paths of 1 Gbit/s or less: the first has a short queue, the second has many flows and a long
/// queue, and the third has a long round-trip time.
pub const SLOWER: [PathSpec; 3] = [
    PathSpec {
        name: "1 Gbit/s, 1 ms, 10 flows, queue of 100 frames",
        rate: 1_000_000_000,
        one_way: Duration::from_micros(500),
        flows: 10,
        queue: 100,
        burst: 0,
        timer: Duration::ZERO,
        both_directions: false,
        reorder_delay: Duration::from_micros(500),
        window: 1 << 20,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
    },
    PathSpec {
        name: "1 Gbit/s, 1 ms, 100 flows, queue of 1,000 frames",
        rate: 1_000_000_000,
        one_way: Duration::from_micros(500),
        flows: 100,
        queue: 1_000,
        burst: 0,
        timer: Duration::ZERO,
        both_directions: false,
        reorder_delay: Duration::from_micros(500),
        window: 1 << 20,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
    },
    PathSpec {
        name: "200 Mbit/s, 20 ms, 2 flows, queue of 200 frames",
        rate: 200_000_000,
        one_way: Duration::from_millis(10),
        flows: 2,
        queue: 200,
        burst: 0,
        timer: Duration::ZERO,
        both_directions: false,
        reorder_delay: Duration::from_millis(10),
        window: 4 << 20,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(4),
    },
];

/// Many flows, none of which can fill the link alone. Each impairment takes a minute of CPU time.
pub const FASTER: [PathSpec; 1] = [PathSpec {
    name: "10 Gbit/s, 1 ms, 100 flows, queue of 1,000 frames",
    rate: 10_000_000_000,
    one_way: Duration::from_micros(500),
    flows: 100,
    queue: 1_000,
    burst: 0,
    timer: Duration::ZERO,
    both_directions: false,
    reorder_delay: Duration::from_micros(500),
    window: 1 << 20,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(200),
}];

/// A link like that of `bench/figures/tas-fig7`, on which Linux's TCP was measured. The one-way
/// delay is 10 us, plus up to 20 us of the token bucket's timer.
pub const SHORT: [PathSpec; 1] = [PathSpec {
    name: "2.5 Gbit/s, 64 kB at once, 20 us, 10 flows, both ways, queue of 1,000 frames",
    rate: 2_500_000_000,
    one_way: Duration::from_micros(10),
    flows: 10,
    queue: 1_000,
    burst: 65_536,
    timer: Duration::from_micros(20),
    both_directions: true,
    reorder_delay: Duration::from_millis(1),
    window: 4 << 20,
    warm_up: Duration::from_secs(1),
    measured: Duration::from_secs(3),
}];

/// Impairment of a link. Probabilities are in parts per million.
#[derive(Clone, Copy)]
struct Impairment {
    name: &'static str,
    loss: u32,
    reorder: u32,
}

const fn impairment(name: &'static str, loss: u32, reorder: u32) -> Impairment {
    Impairment {
        name,
        loss,
        reorder,
    }
}

/// All impairments. The penalty of an impairment is relative to the goodput of the first entry, the
/// clean link.
const IMPAIRMENTS: [Impairment; 9] = [
    impairment("clean", 0, 0),
    impairment("0.1 % lost", 1_000, 0),
    impairment("0.5 % lost", 5_000, 0),
    impairment("1 % lost", 10_000, 0),
    impairment("2 % lost", 20_000, 0),
    impairment("5 % lost", 50_000, 0),
    impairment("1 % reordered", 0, 10_000),
    impairment("5 % reordered", 0, 50_000),
    impairment("10 % reordered", 0, 100_000),
];

/// Goodput of one run of each stack, with the same seed.
struct Pair {
    tidelane: Goodput,
    linux: Goodput,
}

impl PathSpec {
    fn bulk(&self, impairment: Impairment, seed: usize) -> Bulk {
        let ideal = LinkConfig {
            rate: self.rate,
            limit: self.queue,
            burst: self.burst,
            timer: self.timer,
            ..LinkConfig::with_delay(self.one_way)
        };
        let forward = LinkConfig {
            loss: impairment.loss,
            reorder: impairment.reorder,
            reorder_delay: self.reorder_delay,
            ..ideal
        };
        Bulk {
            flows: self.flows,
            forward,
            reverse: if self.both_directions { forward } else { ideal },
            window: self.window,
            warm_up: self.warm_up,
            measured: self.measured,
            seed: seed as u64,
            ..Bulk::over(ideal)
        }
    }

    /// Runs all seeds on all CPUs. Returns their results in the order of the seeds.
    fn measure(&self, impairment: Impairment) -> Result<Vec<Pair>, Violation> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    return;
                }
                let bulk = self.bulk(impairment, seed);
                let linux = LinuxBulk { bulk, hz: HZ }.run();
                let pair = bulk.run().map(|tidelane| Pair { tidelane, linux });
                done.lock().expect("no run panics").push((seed, pair));
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
        });
        let mut done = done.into_inner().expect("no run panics");
        done.sort_unstable_by_key(|(seed, _)| *seed);
        done.into_iter().map(|(_, pair)| pair).collect()
    }

    /// Measures and prints one path. Returns true if no penalty of Tidelane exceeds the penalty of
    /// the model by more than the noise. If the noise is above [`NOISE_MAX`], `NOISE_MAX` counts
    /// instead.
    fn run(&self) -> Result<bool, Violation> {
        let (warm_up, measured) = (self.warm_up.as_millis(), self.measured.as_millis());
        println!("\n{}; {measured} ms after {warm_up} ms", self.name);
        println!("  {:<16}{:>35}  {:>35}", "", "tidelane", "model of linux");
        let columns = format!(
            "{:>9}{:>9}{:>9}{:>8}",
            "Mbit/s", "penalty", "retrans", "RTOs"
        );
        println!("  {:<16}{columns}  {columns}{:>8}", "impairment", "noise");
        let clean = self.measure(IMPAIRMENTS[0])?;
        let mut passed = true;
        for impairment in IMPAIRMENTS {
            let pairs = match impairment.loss + impairment.reorder {
                0 => &clean,
                _ => &self.measure(impairment)?,
            };
            let ours = Results::new(pairs, &clean, |pair| &pair.tidelane);
            let theirs = Results::new(pairs, &clean, |pair| &pair.linux);
            let noise = 2.0 * ours.error.hypot(theirs.error);
            let within = ours.penalty <= theirs.penalty + noise.min(NOISE_MAX);
            passed &= within;
            println!(
                "  {:<16}{}  {}{noise:>8.2}{}",
                impairment.name,
                ours.columns(),
                theirs.columns(),
                if within { "" } else { "  larger penalty" }
            );
        }
        Ok(passed)
    }
}

/// Results of one stack with one impairment. Goodput, retransmissions and timeouts are medians. The
/// penalty is computed from means.
struct Results {
    /// Goodput in Mbit/s.
    mbits: f64,
    /// Loss of goodput in percent of the mean goodput of the clean runs.
    penalty: f64,
    /// Standard error of the penalty, in percentage points.
    error: f64,
    /// Number of retransmitted segments.
    retrans: f64,
    /// Number of retransmission timeouts.
    timeouts: f64,
}

impl Results {
    fn new(pairs: &[Pair], clean: &[Pair], stack: fn(&Pair) -> &Goodput) -> Self {
        let all = |of: fn(&Goodput) -> f64| pairs.iter().map(move |pair| of(stack(pair)));
        let rates: Vec<f64> = all(Goodput::rate).collect();
        let whole: Vec<f64> = clean.iter().map(|pair| stack(pair).rate()).collect();
        let kept = mean(&rates) / mean(&whole);
        // The clean runs differ among themselves, too, in the order in which their flows converge.
        let error = standard_error(&rates).hypot(kept * standard_error(&whole));
        Self {
            mbits: median(all(|goodput| goodput.rate() / 1e6).collect()),
            error: 100.0 * error / mean(&whole),
            penalty: 100.0 * (1.0 - kept),
            retrans: median(all(|goodput| goodput.counter("retrans_segs") as f64).collect()),
            timeouts: median(all(|goodput| goodput.counter("timeouts") as f64).collect()),
        }
    }

    fn columns(&self) -> String {
        format!(
            "{:>9.1}{:>9.2}{:>9}{:>8}",
            self.mbits, self.penalty, self.retrans, self.timeouts
        )
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

fn standard_error(all: &[f64]) -> f64 {
    let (count, mean) = (all.len() as f64, mean(all));
    let squares: f64 = all.iter().map(|x| (x - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

/// Measures and prints the paths. Returns true if no penalty of Tidelane exceeds the model's
/// penalty by more than the allowance for noise.
pub fn run(paths: &[PathSpec]) -> Result<bool, Violation> {
    println!(
        "Bulk flows, CUBIC: goodput in Mbit/s, penalty in percent of the goodput on a clean link,"
    );
    println!("retransmitted segments, timeouts; of {SEEDS} seeds. Noise: two standard errors of");
    println!(
        "the difference of penalties. Linux: the model of sim/linux-model, {HZ} ticks a second."
    );
    let mut passed = true;
    for path in paths {
        passed &= path.run()?;
    }
    Ok(passed)
}
