//! Many seeds at once.

use std::{
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidelane_world::Report;

use crate::seed::{About, ThemeName, explain, run};

/// Many seeds at once.
pub struct Swarm {
    about: About,
    next: AtomicU64,
    end: u64,
    until: Option<Instant>,
    failed: AtomicU64,
    failures_max: u64,
    /// One explanation at a time.
    voice: Mutex<()>,
}

impl Swarm {
    /// `seeds` seeds from `from` on, for `seconds` at most, until `failures` of them have failed.
    pub fn new(
        about: About,
        from: u64,
        seeds: Option<u64>,
        seconds: Option<u64>,
        failures: u64,
    ) -> Self {
        Self {
            about,
            next: AtomicU64::new(from),
            end: seeds.map_or(u64::MAX, |count| from.saturating_add(count)),
            until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            failed: AtomicU64::new(0),
            failures_max: failures,
            voice: Mutex::new(()),
        }
    }

    /// Runs them all. Whether none failed.
    pub fn run(&self, threads: Option<usize>) -> bool {
        let (seeds, sum) = self.sum(threads);
        println!("{seeds} seeds: {sum}");
        for (name, value) in sum.counters.iter().filter(|(_, value)| **value > 0) {
            println!("  {name:<24} {value}");
        }
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 {
            println!("{failed} seeds failed");
        }
        failed == 0
    }

    fn sum(&self, threads: Option<usize>) -> (u64, Report) {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut sum = Report::default();
        let mut seeds = 0;
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads.unwrap_or(cpus).max(1))
                .map(|_| scope.spawn(|| self.work()))
                .collect();
            for (count, report) in handles.into_iter().filter_map(|handle| handle.join().ok()) {
                seeds += count;
                sum.add(&report);
            }
        });
        (seeds, sum)
    }

    /// Runs seeds until there are none, or too many failed.
    fn work(&self) -> (u64, Report) {
        let mut sum = Report::default();
        let mut count = 0;
        while self.failed.load(Ordering::Relaxed) < self.failures_max
            && self.until.is_none_or(|until| Instant::now() < until)
        {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                break;
            }
            match run(self.about.scenario(seed), None) {
                Ok(report) => sum.add(&report),
                Err(text) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    let _one = self.voice.lock();
                    explain(self.about, seed, &text);
                    let _ = std::io::stderr().flush();
                }
            }
            count += 1;
        }
        (count, sum)
    }
}

/// What CI runs: theme and number of seeds.
const LITE: [(ThemeName, u64); 8] = [
    (ThemeName::Any, 1_000),
    (ThemeName::Memory, 200),
    (ThemeName::Death, 300),
    (ThemeName::Misbehaviour, 60),
    (ThemeName::Faults, 500),
    (ThemeName::Pressure, 300),
    (ThemeName::Foreign, 500),
    (ThemeName::Cores, 500),
];

/// Where its seeds begin: apart from those of the unit tests.
const LITE_FROM: u64 = 500_000;

/// Some seeds of each theme. Whether none failed, and all that a seed can meet was met.
pub fn lite() -> bool {
    let mut sum = Report::default();
    let mut held = true;
    for (theme, seeds) in LITE {
        let swarm = Swarm::new(About::theme(theme), LITE_FROM, Some(seeds), None, 1);
        let (_, report) = swarm.sum(None);
        held &= swarm.failed.load(Ordering::Relaxed) == 0;
        sum.add(&report);
    }
    println!("{sum}");
    let missed = missed(&sum);
    if !missed.is_empty() {
        eprintln!("never happened: {}", missed.join(", "));
    }
    held && missed.is_empty()
}

/// What should have happened somewhere, and did not: a swarm without it proves less than it says.
fn missed(sum: &Report) -> Vec<&'static str> {
    let counter = |name: &str| sum.counters.get(name).copied().unwrap_or(0);
    let wanted = [
        ("a lost frame", sum.links.lost),
        ("a full queue", sum.links.overflowed),
        ("a duplicate", sum.links.duplicated),
        ("a corrupted frame", sum.links.corrupted),
        ("a reordered frame", sum.links.reordered),
        ("a congestion mark", sum.links.marked),
        ("a packet too big for its path", sum.too_big),
        ("a smaller path MTU", counter("pmtu_lowered")),
        ("a connection over IPv6", sum.over_ipv6),
        ("a restart", sum.restarts),
        ("a death", sum.deaths),
        ("a frame of another core's flow", counter("handed_over")),
        ("a timeout", counter("timeouts")),
        ("a fast retransmission", counter("fast_retrans")),
        ("a connection that ended as planned", sum.complete),
    ];
    let never = wanted.into_iter().filter(|(_, count)| *count == 0);
    never.map(|(name, _)| name).collect()
}
