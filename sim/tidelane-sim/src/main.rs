//! `tidelane-sim`: runs seeds of the world, one, many, or one again with everything written down.
//!
//! A failure ends with one line: the command that shows it again.

use std::{
    fs::File,
    io::{BufWriter, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand, ValueEnum};
use tidelane_world::{Report, Scenario, Theme, World};

/// Hosts, programs and wires in virtual time, from one seed.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one seed
    Run {
        /// The seed
        #[arg(long)]
        seed: u64,
        #[command(flatten)]
        about: About,
    },
    /// Run many seeds, on all CPUs
    Swarm {
        /// How many; without end if neither this nor --seconds is given
        #[arg(long)]
        seeds: Option<u64>,
        /// Stop after this time
        #[arg(long)]
        seconds: Option<u64>,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Threads instead of one per CPU
        #[arg(long)]
        threads: Option<usize>,
        #[command(flatten)]
        about: About,
    },
    /// Run one seed, print its scenario, and write its frames if asked to
    Replay {
        /// The seed
        seed: u64,
        #[command(flatten)]
        about: About,
        /// Write what each host's port carries to PREFIX-0.pcapng, PREFIX-1.pcapng, ...
        #[arg(long, value_name = "PREFIX")]
        pcap: Option<PathBuf>,
    },
}

#[derive(clap::Args, Clone, Copy)]
struct About {
    /// What the runs are about; without it, the seed decides
    #[arg(long, value_enum)]
    theme: Option<ThemeName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ThemeName {
    /// Hosts and wires of all kinds
    Any,
    /// Client and server on one host
    Memory,
    /// Programs die
    Death,
    /// A program writes random values to its shared memory
    Misbehaviour,
}

impl About {
    fn scenario(self, seed: u64) -> Scenario {
        let theme = match self.theme {
            None => return Scenario::from_seed(seed),
            Some(ThemeName::Any) => Theme::Any,
            Some(ThemeName::Memory) => Theme::MemoryWire,
            Some(ThemeName::Death) => Theme::Death,
            Some(ThemeName::Misbehaviour) => Theme::Misbehaviour,
        };
        Scenario::with_theme(seed, theme)
    }

    /// The command that shows the run of `seed` again.
    fn command(self, seed: u64) -> String {
        let theme = self.theme.and_then(|theme| theme.to_possible_value());
        let theme = theme.map_or(String::new(), |theme| {
            format!(" --theme {}", theme.get_name())
        });
        format!("cargo run --release -p tidelane-sim -- replay {seed}{theme}")
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let held = match arguments.command {
        Command::Run { seed, about } => report(about, seed, run(about.scenario(seed), None)),
        Command::Swarm {
            seeds,
            seconds,
            from,
            threads,
            about,
        } => Swarm::new(about, from, seeds, seconds).run(threads),
        Command::Replay { seed, about, pcap } => {
            let scenario = about.scenario(seed);
            println!("{scenario}\n");
            report(about, seed, run(scenario, pcap))
        }
    };
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one scenario; a panic counts as a failure like any other.
fn run(scenario: Scenario, pcap: Option<PathBuf>) -> Result<Report, String> {
    let hosts = scenario.hosts.len();
    let run = move || -> Result<Report, String> {
        let mut world = World::new(scenario).map_err(|error| error.to_string())?;
        for host in (0..hosts).take(if pcap.is_some() { hosts } else { 0 }) {
            let prefix = pcap.clone().unwrap_or_default();
            let name = format!("{}-{host}.pcapng", prefix.display());
            let file = File::create(&name).map_err(|error| format!("{name}: {error}"))?;
            world
                .capture(host, Box::new(BufWriter::new(file)))
                .map_err(|error| format!("{name}: {error}"))?;
        }
        world.run().map_err(|violation| violation.to_string())
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a text")))
    })
}

/// Prints how a run ended. Whether all rules held.
fn report(about: About, seed: u64, outcome: Result<Report, String>) -> bool {
    match outcome {
        Ok(report) => {
            println!("seed {seed}: {report}");
            for (name, value) in report.counters.iter().filter(|(_, value)| **value > 0) {
                println!("  {name:<24} {value}");
            }
            true
        }
        Err(text) => {
            fail(about, seed, &text);
            false
        }
    }
}

fn fail(about: About, seed: u64, text: &str) {
    eprintln!("seed {seed}: {text}\nreproduce: {}", about.command(seed));
}

/// Many seeds at once.
struct Swarm {
    about: About,
    next: AtomicU64,
    end: u64,
    until: Option<Instant>,
    failed: AtomicBool,
}

impl Swarm {
    fn new(about: About, from: u64, seeds: Option<u64>, seconds: Option<u64>) -> Self {
        Self {
            about,
            next: AtomicU64::new(from),
            end: seeds.map_or(u64::MAX, |count| from.saturating_add(count)),
            until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            failed: AtomicBool::new(false),
        }
    }

    fn run(&self, threads: Option<usize>) -> bool {
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
        println!("{seeds} seeds: {sum}");
        for (name, value) in sum.counters.iter().filter(|(_, value)| **value > 0) {
            println!("  {name:<24} {value}");
        }
        !self.failed.load(Ordering::Relaxed)
    }

    /// Runs seeds until there are none, or one fails.
    fn work(&self) -> (u64, Report) {
        let mut sum = Report::default();
        let mut count = 0;
        while !self.failed.load(Ordering::Relaxed)
            && self.until.is_none_or(|until| Instant::now() < until)
        {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                break;
            }
            match run(self.about.scenario(seed), None) {
                Ok(report) => sum.add(&report),
                Err(text) => {
                    self.failed.store(true, Ordering::Relaxed);
                    fail(self.about, seed, &text);
                    let _ = std::io::stderr().flush();
                }
            }
            count += 1;
        }
        (count, sum)
    }
}
