//! `cargo xtask programs`: runs real programs on the kernel and on Tidelane, and writes a table of
//! the results.
//!
//! A file of `catalog` describes one program: its packages, the command that starts its server, a
//! check of the server, and a load. In a check, a client runs, and its output must have the digest
//! of a given file. The crate connects server and client by a wire, a veth pair between two network
//! namespaces ([`testbed`]), and runs the checks and the load ([`cells`]). A connection is
//! accelerated if Tidelane carries it instead of the kernel. The counters of the service and of the
//! kernel show whether the connections were accelerated ([`stack_detector`]). The results are kept
//! in `result.json` and `TABLE.md` ([`results`]).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tidelane_tests::{
    Stop,
    tools::{require_root, source_root},
};

mod catalog;
mod cells;
mod check;
mod install;
mod load;
mod outage;
mod results;
mod stack_detector;
mod testbed;

use catalog::Entry;
use results::{Results, Row};

/// Compares real programs on the kernel and on Tidelane
#[derive(Parser, Debug)]
#[command(name = "cargo xtask programs")]
struct Options {
    /// Names of programs: the files in bench/programs/catalog without .toml. Without names, all
    /// programs
    names: Vec<String>,
    /// List the programs
    #[arg(long)]
    list: bool,
    /// Number of rounds of each load
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Run only one check and one load on the kernel, to try a new entry. Do not keep the results
    #[arg(long)]
    try_kernel: bool,
    /// Do not write the results to result.json and TABLE.md
    #[arg(long)]
    no_keep: bool,
    /// Write TABLE.md again from result.json, and run nothing
    #[arg(long)]
    write: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Stop::Skip(text) | Stop::Fail(text)) => {
            eprintln!("programs: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected programs. Returns false if a check failed, and the kept results do not already
/// have this failure.
fn run(options: &Options) -> Result<bool, Stop> {
    let folder = source_root().join("bench/programs");
    let entries = catalog::read(&folder.join("catalog"), &options.names)?;
    if options.list {
        for entry in &entries {
            println!("{:<16} {:<18} {}", entry.name, entry.kind, entry.title);
        }
        return Ok(true);
    }
    let mut results = Results::open(&folder)?;
    if options.write {
        return results.write().map(|()| true);
    }
    require_root()?;
    let mut fine = true;
    for (index, entry) in entries.iter().enumerate() {
        println!("{} of {}: {}", index + 1, entries.len(), entry.name);
        let row = measure(entry, options);
        row.print();
        fine &= results.no_worse(&row);
        if !options.no_keep && !options.try_kernel {
            results.keep(row)?;
        }
    }
    Ok(fine)
}

/// Measures one program. If the program cannot be installed or started, the row has the reason.
fn measure(entry: &Entry, options: &Options) -> Row {
    let mut row = Row::new(entry);
    if let Err(Stop::Skip(why) | Stop::Fail(why)) = install::install(entry) {
        row.skipped = Some(why);
        return row;
    }
    row.version = install::version(entry);
    if options.try_kernel {
        cells::try_kernel(entry, &mut row);
    } else {
        cells::run(entry, options.rounds, &mut row);
    }
    row
}
