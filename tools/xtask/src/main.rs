//! `cargo xtask`: runs the checks, tests and benches of this source tree.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod ci;
mod demo;
mod deps;
mod frames;
mod lab;
mod package;
mod programs;
mod source;
mod spec;
mod suites;
mod tidy;

/// Runs the checks, tests, demo and benches of this source tree
#[derive(Parser, Debug)]
#[command(name = "cargo xtask")]
struct Command {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Run all checks and tests, as `make test` does
    Ci(ci::Options),
    /// Check style rules: lengths of files, functions and lines; cycles of imports; which files
    /// contain unsafe code or read a clock; the first words of comments; and subjects of commits
    Tidy(tidy::Options),
    /// Run one experiment of bench/figures, as `make bench FIGURE=...` does
    Bench(bench::Options),
    /// Compare nginx on the kernel and on Tidelane
    Demo(demo::Options),
    /// Run tests with real programs on other kernels and NICs, in emulated machines
    Lab(lab::Options),
    /// Run real programs on the kernel and on Tidelane, and update the table of the results
    Programs(programs::Options),
    /// Run test suites of other projects on the kernel and on Tidelane, case by case
    Suites(suites::Options),
    /// Check that each crate depends only on layers (top-level folders) that its own layer may use
    Deps,
    /// Check the sizes of the stack frames of libtidelane.so
    Frames,
    /// Check the citations of RFC requirements, and count the requirements by their status
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
        Task::Suites(options) => suites::run(&options).map(done),
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
