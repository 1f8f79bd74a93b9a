//! `cargo xtask suites`: builds and runs the crate `bench/suites`.

use clap::Args;

use crate::package::run_package;

/// Options of `suites`.
#[derive(Args, Debug)]
pub struct Options {
    /// Names of suites, and options; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs the crate.
pub fn run(options: &Options) -> Result<(), String> {
    run_package("tidelane-suites", &options.arguments)
}
