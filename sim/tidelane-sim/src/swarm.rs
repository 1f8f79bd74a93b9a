//! Runs of many seeds on all CPUs.

use std::{
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidelane_world::Report;

use crate::seed::{ScenarioOptions, ThemeName, explain, run};

/// A swarm: seeds that threads run in parallel.
pub struct Swarm {
    options: ScenarioOptions,
    /// The next seed to run.
    next: AtomicU64,
    /// End of the range of seeds, exclusive.
    end: u64,
    /// Time after which no further seed starts, or `None` for no limit.
    until: Option<Instant>,
    /// Number of seeds that have failed.
    failed: AtomicU64,
    /// Number of failures at which the swarm ends.
    failures_max: u64,
    /// Held while a failure is printed, so that the output of threads does not mix.
    output: Mutex<()>,
}

impl Swarm {
    /// Creates a swarm of `seeds` seeds from `from` on. The swarm ends early after `seconds`
    /// seconds or `failures` failures. Without `seeds`, the number of seeds is not limited.
    pub fn new(
        options: ScenarioOptions,
        from: u64,
        seeds: Option<u64>,
        seconds: Option<u64>,
        failures: u64,
    ) -> Self {
        Self {
            options,
            next: AtomicU64::new(from),
            end: seeds.map_or(u64::MAX, |count| from.saturating_add(count)),
            until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            failed: AtomicU64::new(0),
            failures_max: failures,
            output: Mutex::new(()),
        }
    }

    /// Runs the swarm on `threads` threads, or on one thread for each CPU if `threads` is `None`.
    /// Returns true if no seed failed.
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

    /// Runs the swarm like [`Self::run`], but prints only failures. Returns the number of seeds
    /// that have run, and the sum of the reports of the seeds that have not failed.
    fn sum(&self, threads: Option<usize>) -> (u64, Report) {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut sum = Report::default();
        let mut seeds = 0;
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads.unwrap_or(cpus).max(1))
                .map(|_| scope.spawn(|| self.work()))
                .collect();
            for handle in handles {
                let (count, report) = handle.join().expect("no worker panics");
                seeds += count;
                sum.add(&report);
            }
        });
        (seeds, sum)
    }

    /// Runs seeds until no seed is left, the time is over, or `failures_max` seeds have failed.
    /// Returns the number of seeds that have run, and the sum of the reports of the seeds that have
    /// not failed.
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
            match run(self.options.scenario(seed), None) {
                Ok(report) => sum.add(&report),
                Err(text) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    let _one = self.output.lock();
                    explain(self.options, seed, &text);
                    let _ = std::io::stderr().flush();
                }
            }
            count += 1;
        }
        (count, sum)
    }
}

/// Topics of the run in CI, and the number of seeds for each.
const LITE: [(ThemeName, u64); 10] = [
    (ThemeName::Any, 600),
    (ThemeName::Memory, 120),
    (ThemeName::Death, 180),
    (ThemeName::Misbehaviour, 40),
    (ThemeName::Faults, 300),
    (ThemeName::Pressure, 180),
    (ThemeName::Foreign, 300),
    (ThemeName::Cores, 300),
    (ThemeName::Ports, 600),
    (ThemeName::Direct, 600),
];

/// First seed of the run in CI. The range is separate from the ranges of the swarm tests
/// (`sim/world/tests/world/swarm.rs`).
const LITE_FROM: u64 = 500_000;

/// Runs the seeds of `LITE`. Returns true if no seed failed and every event that `missed` looks for
/// occurred.
pub fn lite() -> bool {
    let mut sum = Report::default();
    let mut passed = true;
    for (theme, seeds) in LITE {
        let swarm = Swarm::new(
            ScenarioOptions::theme(theme),
            LITE_FROM,
            Some(seeds),
            None,
            1,
        );
        let (_, report) = swarm.sum(None);
        passed &= swarm.failed.load(Ordering::Relaxed) == 0;
        sum.add(&report);
    }
    println!("{sum}");
    let missed = missed(&sum);
    if !missed.is_empty() {
        eprintln!("never happened: {}", missed.join(", "));
    }
    passed && missed.is_empty()
}

/// Returns the wanted events that never occurred. If an event never occurs, the swarm does not test
/// how the hosts handle the event.
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
        ("a packet of a mux port", counter("port_frames_checked_out")),
        ("a GSO frame of a mux port", counter("port_gso_frames")),
        (
            "a refused packet of a mux port",
            counter("port_packets_refused"),
        ),
        ("a mux port that does not read", counter("port_overruns")),
        ("a corrupt mux port", counter("port_corrupt")),
        ("a hand-over of a mux port", counter("port_hand_overs")),
        ("a reset of a mux port", counter("port_resets")),
        (
            "a connection beside hostile mux ports",
            counter("port_connections_compared"),
        ),
        ("a connection of a direct host", counter("direct_accepted")),
        (
            "a frame that became a buffer",
            counter("direct_rx_exchanges"),
        ),
        ("a buffer that became a frame", counter("direct_tx_lent")),
        ("a lack of buffers", counter("direct_rx_no_buffer")),
        ("a paused connection", counter("direct_pauses")),
        ("a connection that ended as planned", sum.complete),
    ];
    let never = wanted.into_iter().filter(|(_, count)| *count == 0);
    never.map(|(name, _)| name).collect()
}
