//! `cargo xtask programs`: builds the crate `bench/programs` and runs it.

use clap::Args;

use crate::package::run_package;

/// Options of `programs`.
#[derive(Args, Debug)]
pub struct Options {
    /// Arguments of the crate's binary: names of programs, and options (see `--help`)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs the crate.
pub fn run(options: &Options) -> Result<(), String> {
    run_package("tidelane-programs", &options.arguments)
}
