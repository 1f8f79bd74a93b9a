//! `cargo xtask programs`: builds the crate `bench/programs` and runs it.

use std::process::Command;

use clap::Args;
use tidelane_tests::tools::source_root;

/// Options of `programs`.
#[derive(Args, Debug)]
pub struct Options {
    /// Arguments of the crate's binary: names of programs, and options (see `--help`)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs the crate.
pub fn run(options: &Options) -> Result<(), String> {
    let status = Command::new("cargo")
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "tidelane-programs",
            "--",
        ])
        .args(&options.arguments)
        .current_dir(source_root())
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the programs: {status}"))
    }
}
