//! `tidelane-micro`: counts the instructions of Tidelane's TCP engine, service, client library,
//! embedded stack and mux per segment, request or packet.
//!
//! Instruction counts are reproducible, unlike times on a shared machine. For each case (a row of
//! the table of results), the program runs itself once under callgrind. The run under callgrind
//! executes a *load*: a sequence of equal turns, such as one request on each connection. Callgrind
//! counts only within the functions that the case names, from entry to return. The names of these
//! functions start with `tidelane_micro_`. Callgrind finds the functions by their symbols, so the
//! symbols are not mangled, and the functions are not inlined. The results go to
//! `target/bench/instructions.json`. Each load also counts the allocations within its
//! `tidelane_micro_` functions, and `--check` fails if a load allocates.

mod allocations_unsafe;
mod callgrind;
mod echo;
mod embedded;
mod engine;
mod figures;
mod mux;
mod rig;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: allocations_unsafe::Counting = allocations_unsafe::Counting;

/// Counts the instructions of engine, service, library, embedded stack and mux, with callgrind
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Fail if a count is above its limit, or if a load allocates
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run one load, and print the numbers of segments, requests or packets, and of allocations
    Load {
        /// Name of the load: receive, send, port, local, embedded, mux-send or mux-receive
        name: String,
        /// Turns to count. For the load embedded: connections to count. The mux loads run only a
        /// hundredth of the turns
        #[arg(long, default_value_t = 1000)]
        count: u32,
        /// Warm-up turns (embedded: connections), which are not counted
        #[arg(long, default_value_t = 2000)]
        warmup: u32,
        /// Number of connections, each with one request per turn; for the mux loads, the number of
        /// mux ports
        #[arg(long, default_value_t = 1)]
        connections: u32,
    },
}

/// The size of a load in turns.
///
/// * `receive` and `send`: a turn is one segment.
/// * `port` and `local`: a turn is one request on each connection.
/// * `embedded`: a turn is `connections` new connections. `count` and `warmup` are numbers of
///   connections, not of turns.
/// * `mux-send` and `mux-receive`: a turn is many packets. These loads run only a hundredth of the
///   turns in `count` and `warmup`.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of counted turns.
    pub count: u32,
    /// Number of warm-up turns, which are not counted.
    pub warmup: u32,
    /// Number of connections, each with one request per turn. For the mux loads, the number of mux
    /// ports.
    pub connections: u32,
}

/// The counters of a load after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Number of segments, requests or (mux) packets.
    pub count: u64,
    /// Number of allocations within the load's functions `tidelane_micro_*`.
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
        "port" => echo::two_hosts(load),
        "local" => echo::one_host(load),
        "embedded" => embedded::connections(load),
        "mux-send" => mux::send_to_nic(load),
        "mux-receive" => mux::receive_from_nic(load),
        _ => {
            return Err(format!(
                "no load {name:?}: receive, send, port, local, embedded, mux-send or mux-receive"
            ));
        }
    };
    println!("count {} allocations {}", tally.count, tally.allocations);
    Ok(())
}
