//! `tidelane-sim`: runs seeds of the world, one, many, or one again with everything written down.
//!
//! A failure prints its whole scenario, writes what went over the wires, and ends with one line:
//! the command that shows it again.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod bufferbloat;
mod cubic_model;
mod figure;
mod loss;
mod seed;
mod swarm;

use figure::Figure;
use seed::{About, report, run};
use swarm::Swarm;

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
        /// Stop after so many failures
        #[arg(long, default_value_t = 1)]
        failures: u64,
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
    /// Run the seeds that CI runs: some of each kind, in less than a minute
    Lite,
    /// Measure goodput in virtual time
    Figure {
        /// Which
        #[arg(value_enum)]
        name: Figure,
    },
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
            failures,
            about,
        } => Swarm::new(about, from, seeds, seconds, failures).run(threads),
        Command::Replay { seed, about, pcap } => {
            let scenario = about.scenario(seed);
            println!("{scenario}\n");
            report(about, seed, run(scenario, pcap.as_deref()))
        }
        Command::Lite => swarm::lite(),
        Command::Figure { name } => name.run().unwrap_or_else(|violation| {
            eprintln!("{violation}");
            false
        }),
    };
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
