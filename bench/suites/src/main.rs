//! `cargo xtask suites`: runs test suites of other projects on the kernel and on Tidelane, and
//! compares the results case by case.
//!
//! A file of `catalog` describes one suite: its packages, source, build and command, and the format
//! of its output ([`output_format`]). The crate runs the suite on the kernel and under
//! `tidelane run` ([`testbed`]), compares the results ([`compare`]), and keeps them in
//! `result.json` and `TABLE.md` ([`results`]).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tidelane_tests::{
    Stop,
    tools::{require_root, source_root},
};

mod catalog;
mod compare;
mod output_format;
mod pair;
mod prepare;
mod results;
mod testbed;

use catalog::Suite;
use results::{Results, Row};

/// Compares the results of test suites of other projects on the kernel and on Tidelane
#[derive(Parser, Debug)]
#[command(name = "cargo xtask suites")]
struct Options {
    /// Names of suites: the files in bench/suites/catalog without .toml. Without names, all suites
    names: Vec<String>,
    /// List the suites
    #[arg(long)]
    list: bool,
    /// Run only these parts of each suite. Do not keep the results
    #[arg(long, value_name = "PART")]
    part: Vec<String>,
    /// Run without --loopback, so that connections over loopback stay with the kernel
    #[arg(long)]
    plain: bool,
    /// Run only on the kernel, to try a new entry. Do not keep the results
    #[arg(long)]
    try_kernel: bool,
    /// Do not write the results to result.json and TABLE.md
    #[arg(long)]
    no_keep: bool,
    /// Write TABLE.md again from result.json, and run nothing
    #[arg(long)]
    write: bool,
}

impl Options {
    /// Returns the options of `tidelane run`.
    fn run_options(&self) -> &'static str {
        if self.plain { "" } else { "--loopback" }
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Stop::Skip(text) | Stop::Fail(text)) => {
            eprintln!("suites: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected suites. Returns true if no run failed, and if the catalogue gives a reason for
/// each difference.
fn run(options: &Options) -> Result<bool, Stop> {
    let folder = source_root().join("bench/suites");
    let suites = catalog::read(&folder.join("catalog"), &options.names)?;
    if options.list {
        for suite in &suites {
            println!("{:<12} {}", suite.name, suite.title);
        }
        return Ok(true);
    }
    let mut results = Results::open(&folder)?;
    if options.write {
        return results.write().map(|()| true);
    }
    require_root()?;
    let mut fine = true;
    for (index, suite) in suites.iter().enumerate() {
        println!("{} of {}: {}", index + 1, suites.len(), suite.name);
        let (row, ended) = measure(suite, options);
        row.print();
        fine &= ended && row.is_fine();
        if options.part.is_empty() && !options.no_keep && !options.try_kernel {
            results.keep(row)?;
        }
    }
    Ok(fine)
}

/// Runs one suite. If the suite cannot be run, the row has the reason. The returned boolean is
/// false if the run failed, for example because the service died.
fn measure(suite: &Suite, options: &Options) -> (Row, bool) {
    let mut row = Row::new(suite, options.run_options());
    let result = measure_into(&mut row, suite, options);
    let ended = !matches!(result, Err(Stop::Fail(_)));
    if let Err(Stop::Skip(why) | Stop::Fail(why)) = result {
        row.skipped = Some(why);
    }
    (row, ended)
}

fn measure_into(row: &mut Row, suite: &Suite, options: &Options) -> Result<(), Stop> {
    let place = prepare::prepare(suite)?;
    row.version = place.version(suite);
    let parts = suite.parts(&options.part)?;
    if options.try_kernel {
        compare::try_kernel(suite, &place, &parts)
    } else {
        compare::run(suite, &place, &parts, row)
    }
}
