//! Runs the programs of other crates of the workspace, such as `bench/programs`.

use std::process::Command;

use tidelane_tests::tools::source_root;

/// Builds the program of `package` in release mode, and runs it with `arguments`.
pub fn run_package(package: &str, arguments: &[String]) -> Result<(), String> {
    let status = Command::new("cargo")
        .args(["run", "--quiet", "--release", "--package", package, "--"])
        .args(arguments)
        .current_dir(source_root())
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{package}: {status}"))
    }
}
