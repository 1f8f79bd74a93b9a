//! `cargo xtask programs`: builds and runs the crate `bench/programs`, which runs real programs on
//! the kernel and on Tidelane, and compares the results.

use clap::Args;

use crate::package::{build_measured, run_package};

/// Options of `programs`.
#[derive(Args, Debug)]
pub struct Options {
    /// Names of programs, and options: `--list` lists the programs, `-- --help` the options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds the binaries that `bench/programs` starts, and then builds and runs `bench/programs`.
pub fn run(options: &Options) -> Result<(), String> {
    build_measured()?;
    run_package("tidelane-programs", &options.arguments)
}
