//! `cargo xtask`: what is done with this source tree beyond building it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod ci;
mod demo;
mod deps;
mod frames;
mod lab;
mod programs;
mod source;
mod spec;
mod tidy;

/// Checks, the demo and the benches.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask")]
struct Command {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// All checks and tests, as `make test` runs them
    Ci(ci::Options),
    /// Sizes of functions, files and lines; where unsafe and clocks may be
    Tidy(tidy::Options),
    /// One experiment of bench/figures, as `make bench FIGURE=...` runs it
    Bench(bench::Options),
    /// nginx on the kernel and on Tidelane, side by side
    Demo(demo::Options),
    /// Tests with real programs on other kernels and NICs, in emulated machines
    Lab(lab::Options),
    /// Real programs on the kernel and on Tidelane, and their table
    Programs(programs::Options),
    /// Dependencies point downward
    Deps,
    /// Sizes of the stack frames of code that runs in programs
    Frames,
    /// What the RFCs ask for: met, excepted, missing; and whether the citations hold
    Spec(spec::Options),
}

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    let result = match Command::parse().task {
        Task::Ci(options) => ci::run(&options),
        Task::Tidy(options) => tidy::run(&options).map(done),
        Task::Bench(options) => bench::run(&options).map(done),
        Task::Demo(options) => demo::run(&options).map(done),
        Task::Lab(options) => lab::run(&options),
        Task::Programs(options) => programs::run(&options).map(done),
        Task::Deps => deps::run().map(done),
        Task::Frames => frames::run().map(done),
        Task::Spec(options) => spec::run(&options).map(done),
    };
    match result {
        Ok(code) => code,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::FAILURE
        }
    }
}
