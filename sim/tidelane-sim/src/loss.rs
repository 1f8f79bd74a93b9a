//! The figure of what loss and reordering take: Tidelane, and a model of Linux, over the same wire.

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

/// Ticks per second of the timers of Linux on Debian.
pub const HZ: u64 = 250;
/// Runs of each wire; medians are compared.
const SEEDS: usize = 5;
/// What may be noise at most, in points of percent, or the runs are too short to say anything.
const NOISE_MAX: f64 = 2.0;

/// A path and what shares it.
#[derive(Clone, Copy)]
pub struct Regime {
    name: &'static str,
    rate: u64,
    /// Delay of each way.
    one_way: Duration,
    flows: u32,
    /// Frames.
    queue: u32,
    /// Bytes that may leave at once.
    burst: u32,
    /// How late the token bucket looks again.
    timer: Duration,
    /// What the wire does, it does to acknowledgments too.
    both_ways: bool,
    /// How long what is reordered is held back.
    held_back: Duration,
    window: u32,
    warm_up: Duration,
    measured: Duration,
}

/// Paths on which a run takes seconds: few segments per flow, the queue's, and many.
pub const SLOWER: [Regime; 3] = [
    Regime {
        name: "1 Gbit/s, 1 ms, 10 flows, queue of 100 frames",
        rate: 1_000_000_000,
        one_way: Duration::from_micros(500),
        flows: 10,
        queue: 100,
        burst: 0,
        timer: Duration::ZERO,
        both_ways: false,
        held_back: Duration::from_micros(500),
        window: 1 << 20,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
    },
    Regime {
        name: "1 Gbit/s, 1 ms, 100 flows, queue of 1,000 frames",
        rate: 1_000_000_000,
        one_way: Duration::from_micros(500),
        flows: 100,
        queue: 1_000,
        burst: 0,
        timer: Duration::ZERO,
        both_ways: false,
        held_back: Duration::from_micros(500),
        window: 1 << 20,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
    },
    Regime {
        name: "200 Mbit/s, 20 ms, 2 flows, queue of 200 frames",
        rate: 200_000_000,
        one_way: Duration::from_millis(10),
        flows: 2,
        queue: 200,
        burst: 0,
        timer: Duration::ZERO,
        both_ways: false,
        held_back: Duration::from_millis(10),
        window: 4 << 20,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(4),
    },
];

/// Many flows, and a rate that none of them fills: a minute of one CPU for each wire.
pub const FASTER: [Regime; 1] = [Regime {
    name: "10 Gbit/s, 1 ms, 100 flows, queue of 1,000 frames",
    rate: 10_000_000_000,
    one_way: Duration::from_micros(500),
    flows: 100,
    queue: 1_000,
    burst: 0,
    timer: Duration::ZERO,
    both_ways: false,
    held_back: Duration::from_micros(500),
    window: 1 << 20,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(200),
}];

/// The wire of `bench/figures/tas-fig7`: between hosts that are tens of microseconds apart, on
/// which a real kernel was measured.
pub const SHORT: [Regime; 1] = [Regime {
    name: "2.5 Gbit/s, 64 kB at once, 20 us, 10 flows, both ways, queue of 1,000 frames",
    rate: 2_500_000_000,
    one_way: Duration::from_micros(10),
    flows: 10,
    queue: 1_000,
    burst: 65_536,
    timer: Duration::from_micros(20),
    both_ways: true,
    held_back: Duration::from_millis(1),
    window: 4 << 20,
    warm_up: Duration::from_secs(1),
    measured: Duration::from_secs(3),
}];

/// What a wire does, in parts per million.
#[derive(Clone, Copy)]
struct Wire {
    name: &'static str,
    loss: u32,
    reorder: u32,
}

const fn wire(name: &'static str, loss: u32, reorder: u32) -> Wire {
    Wire {
        name,
        loss,
        reorder,
    }
}

/// The first one is what the others are held against.
const WIRES: [Wire; 9] = [
    wire("clean", 0, 0),
    wire("0.1 % lost", 1_000, 0),
    wire("0.5 % lost", 5_000, 0),
    wire("1 % lost", 10_000, 0),
    wire("2 % lost", 20_000, 0),
    wire("5 % lost", 50_000, 0),
    wire("1 % reordered", 0, 10_000),
    wire("5 % reordered", 0, 50_000),
    wire("10 % reordered", 0, 100_000),
];

/// One run of each stack.
struct Pair {
    tidelane: Goodput,
    linux: Goodput,
}

impl Regime {
    fn bulk(&self, wire: Wire, seed: usize) -> Bulk {
        let way = LinkConfig {
            rate: self.rate,
            limit: self.queue,
            burst: self.burst,
            timer: self.timer,
            ..LinkConfig::with_delay(self.one_way)
        };
        let there = LinkConfig {
            loss: wire.loss,
            reorder: wire.reorder,
            reorder_delay: self.held_back,
            ..way
        };
        Bulk {
            flows: self.flows,
            there,
            back: if self.both_ways { there } else { way },
            window: self.window,
            warm_up: self.warm_up,
            measured: self.measured,
            seed: seed as u64,
            ..Bulk::over(way)
        }
    }

    /// Runs with each seed, on all CPUs.
    fn measure(&self, wire: Wire) -> Result<Vec<Pair>, Violation> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    return;
                }
                let bulk = self.bulk(wire, seed);
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

    /// Measures and prints it. Whether no penalty is larger than the model's.
    fn run(&self) -> Result<bool, Violation> {
        let (warm_up, measured) = (self.warm_up.as_millis(), self.measured.as_millis());
        println!("\n{}; {measured} ms after {warm_up} ms", self.name);
        println!("  {:<16}{:>35}  {:>35}", "", "tidelane", "model of linux");
        let columns = format!(
            "{:>9}{:>9}{:>9}{:>8}",
            "Mbit/s", "penalty", "retrans", "RTOs"
        );
        println!("  {:<16}{columns}  {columns}{:>8}", "wire", "noise");
        let clean = self.measure(WIRES[0])?;
        let mut held = true;
        for wire in WIRES {
            let pairs = match wire.loss + wire.reorder {
                0 => &clean,
                _ => &self.measure(wire)?,
            };
            let ours = Seen::new(pairs, &clean, |pair| &pair.tidelane);
            let theirs = Seen::new(pairs, &clean, |pair| &pair.linux);
            let noise = 2.0 * ours.error.hypot(theirs.error);
            let holds = ours.penalty <= theirs.penalty + noise.min(NOISE_MAX);
            held &= holds;
            println!(
                "  {:<16}{}  {}{noise:>8.2}{}",
                wire.name,
                ours.columns(),
                theirs.columns(),
                if holds { "" } else { "  larger" }
            );
        }
        Ok(held)
    }
}

/// One stack over one wire: medians, but the penalty is one of means, with its standard error.
struct Seen {
    mbits: f64,
    /// Percent of the clean runs' mean.
    penalty: f64,
    error: f64,
    retrans: f64,
    timeouts: f64,
}

impl Seen {
    fn new(pairs: &[Pair], clean: &[Pair], stack: fn(&Pair) -> &Goodput) -> Self {
        let all = |of: fn(&Goodput) -> f64| pairs.iter().map(move |pair| of(stack(pair)));
        let rates: Vec<f64> = all(Goodput::rate).collect();
        let whole: Vec<f64> = clean.iter().map(|pair| stack(pair).rate()).collect();
        let kept = mean(&rates) / mean(&whole);
        // Clean runs differ too, by the order in which flows find their rates.
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

/// Measures and prints these. Whether no penalty is larger than the model's.
pub fn run(regimes: &[Regime]) -> Result<bool, Violation> {
    println!(
        "Bulk flows, CUBIC: goodput in Mbit/s, what of that of the clean wire is lost, in percent,"
    );
    println!("segments sent again, timeouts; of {SEEDS} seeds. Noise: two standard errors of");
    println!(
        "the difference of penalties. Linux: the model of sim/linux-model, {HZ} ticks a second."
    );
    let mut held = true;
    for regime in regimes {
        held &= regime.run()?;
    }
    Ok(held)
}
