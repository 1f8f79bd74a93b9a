//! `cargo xtask programs`: real programs on the kernel and on Tidelane, and their table.
//!
//! A file of `catalog` describes one program: what to install, how to start it, a client whose
//! output must have the digest of a file, and a load. The crate makes the wires, runs the
//! [`cells`], asks the services' counters whether the connections were accelerated ([`witness`]),
//! and keeps the results in the [`book`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tidelane_tests::{
    Stop,
    tools::{require_root, source_root},
};

mod book;
mod catalog;
mod cells;
mod check;
mod install;
mod load;
mod outage;
mod stand;
mod witness;

use book::{Book, Row};
use catalog::Entry;

/// Compare real programs on the kernel and on Tidelane
#[derive(Parser, Debug)]
#[command(name = "cargo xtask programs")]
struct Options {
    /// Programs, by the names of their files in bench/programs/catalog; without one, all
    names: Vec<String>,
    /// List the programs
    #[arg(long)]
    list: bool,
    /// Rounds of each load
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Run only the kernel's cell and one load on the kernel, to try an entry; keep nothing
    #[arg(long)]
    try_kernel: bool,
    /// Do not keep the rows in the table
    #[arg(long)]
    no_keep: bool,
    /// Write the table again from the rows that are kept
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

/// Runs the chosen programs. Returns true if no cell failed that passed in the kept table.
fn run(options: &Options) -> Result<bool, Stop> {
    let folder = source_root().join("bench/programs");
    let entries = catalog::read(&folder.join("catalog"), &options.names)?;
    if options.list {
        for entry in &entries {
            println!("{:<16} {:<18} {}", entry.name, entry.kind, entry.title);
        }
        return Ok(true);
    }
    let mut book = Book::open(&folder)?;
    if options.write {
        return book.write().map(|()| true);
    }
    require_root()?;
    let mut fine = true;
    for (index, entry) in entries.iter().enumerate() {
        println!("{} of {}: {}", index + 1, entries.len(), entry.name);
        let row = measure(entry, options);
        row.print();
        fine &= book.no_worse(&row);
        if !options.no_keep && !options.try_kernel {
            book.keep(row)?;
        }
    }
    Ok(fine)
}

/// Measures one program. An error becomes the reason in its row.
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
