//! Instruction counts of the engine, the service and the library per segment and request.
//!
//! `tidelane-micro` runs itself under callgrind, once per figure, with counting switched on only
//! within the functions of [`toggles`], and writes `target/bench/instructions.json`. The counts
//! repeat from run to run, unlike times on a shared machine. Each load also counts allocations;
//! a load that allocates fails `--check`.

mod allocations_unsafe;
mod callgrind;
mod echo;
mod engine;
mod figures;
mod rig;
mod toggles;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: allocations_unsafe::Counting = allocations_unsafe::Counting;

/// Instruction counts (callgrind) of engine, service and library
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Exit with 1 if a count is above its limit
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run one load, as the bench does under callgrind; prints turns and allocations
    Load {
        /// receive, send, port or local
        name: String,
        /// Turns to count
        #[arg(long, default_value_t = 1000)]
        count: u32,
        /// Warm-up turns, which are not counted
        #[arg(long, default_value_t = 2000)]
        warmup: u32,
        /// Connections, each with one request per turn
        #[arg(long, default_value_t = 1)]
        connections: u32,
    },
}

/// The size of a load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Turns to count.
    pub count: u32,
    /// Warm-up turns, which are not counted.
    pub warmup: u32,
    /// Number of connections, each with one request per turn.
    pub connections: u32,
}

/// Counters of a load over its counted turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Segments or requests.
    pub count: u64,
    /// Allocations.
    pub allocations: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        None => figures::run(arguments.check),
        Some(Command::Load {
            name,
            count,
            warmup,
            connections,
        }) => run_load(
            &name,
            Load {
                count,
                warmup,
                connections,
            },
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("tidelane-micro: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run_load(name: &str, load: Load) -> Result<(), String> {
    let tally = match name {
        "receive" => engine::receive(load),
        "send" => engine::send(load),
        "port" => echo::port(load),
        "local" => echo::local(load),
        _ => return Err(format!("no load {name:?}: receive, send, port or local")),
    };
    println!("count {} allocations {}", tally.count, tally.allocations);
    Ok(())
}
