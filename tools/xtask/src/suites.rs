//! `cargo xtask suites`: builds and runs the crate in `bench/suites`, whose business it is.

use std::process::Command;

use clap::Args;
use tidelane_tests::tools::source_root;

/// Options of `suites`.
#[derive(Args, Debug)]
pub struct Options {
    /// Names of suites, and options; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the suites.
pub fn run(options: &Options) -> Result<(), String> {
    let status = Command::new("cargo")
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "tidelane-suites",
            "--",
        ])
        .args(&options.arguments)
        .current_dir(source_root())
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the suites: {status}"))
    }
}
