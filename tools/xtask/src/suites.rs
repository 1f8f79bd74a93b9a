//! `cargo xtask suites`: builds and runs the crate `bench/suites`, which runs test suites of other
//! projects on the kernel and on Tidelane, and compares the results.

use clap::Args;

use crate::package::{build_measured, run_package};

/// Options of `suites`.
#[derive(Args, Debug)]
pub struct Options {
    /// Names of suites, and options: `--list` lists the suites, `-- --help` the options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds the binaries that `bench/suites` starts, and then builds and runs `bench/suites`.
pub fn run(options: &Options) -> Result<(), String> {
    build_measured()?;
    run_package("tidelane-suites", &options.arguments)
}
