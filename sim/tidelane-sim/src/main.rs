//! `tidelane-sim`: runs the simulated world with one seed or many, and replays a seed with a packet
//! capture.
//!
//! After a failure in a swarm (a run of many seeds), the program prints the whole scenario. The
//! program also writes packet captures of all hosts that have a service. After every failure of a
//! seed, the program prints the command that reproduces the failure.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod bufferbloat;
mod cubic_model;
mod figure;
mod loss;
mod seed;
mod swarm;

use figure::Figure;
use seed::{ScenarioOptions, report, run};
use swarm::Swarm;

/// Hosts, programs and links in virtual time, derived from one seed.
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
        options: ScenarioOptions,
    },
    /// Run many seeds, on all CPUs
    Swarm {
        /// Number of seeds; by default, unlimited
        #[arg(long)]
        seeds: Option<u64>,
        /// Stop after this number of seconds
        #[arg(long)]
        seconds: Option<u64>,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Number of threads; by default, one for each CPU
        #[arg(long)]
        threads: Option<usize>,
        /// Stop after this number of failures
        #[arg(long, default_value_t = 1)]
        failures: u64,
        #[command(flatten)]
        options: ScenarioOptions,
    },
    /// Run one seed, print its scenario, and optionally write its frames
    Replay {
        /// The seed
        seed: u64,
        #[command(flatten)]
        options: ScenarioOptions,
        /// Write the frames of each host with a service (only of the service's first core) to
        /// PREFIX-0.pcapng, PREFIX-1.pcapng, ...
        #[arg(long, value_name = "PREFIX")]
        pcap: Option<PathBuf>,
    },
    /// Run the seeds of CI in less than a minute: some seeds of each topic
    Lite,
    /// Measure a figure in virtual time
    Figure {
        /// Name of the figure
        #[arg(value_enum)]
        name: Figure,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let passed = match arguments.command {
        Command::Run { seed, options } => report(options, seed, run(options.scenario(seed), None)),
        Command::Swarm {
            seeds,
            seconds,
            from,
            threads,
            failures,
            options,
        } => Swarm::new(options, from, seeds, seconds, failures).run(threads),
        Command::Replay {
            seed,
            options,
            pcap,
        } => {
            let scenario = options.scenario(seed);
            println!("{scenario}\n");
            report(options, seed, run(scenario, pcap.as_deref()))
        }
        Command::Lite => swarm::lite(),
        Command::Figure { name } => name.run().unwrap_or_else(|violation| {
            eprintln!("{violation}");
            false
        }),
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
