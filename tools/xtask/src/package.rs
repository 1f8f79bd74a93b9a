//! Builds the binaries that benchmarks start, and builds and runs the program of a single crate,
//! such as `bench/programs`.

use std::process::Command;

use tidelane_tests::tools::source_root;

use crate::ci::BUILD;

/// Builds the service, the library and the tools in release mode before a measurement, so that the
/// measured binaries come from the commit that the result names.
pub fn build_measured() -> Result<(), String> {
    run(BUILD)
}

/// Builds the program of `package` in release mode, and runs it with `arguments`.
pub fn run_package(package: &str, arguments: &[String]) -> Result<(), String> {
    let command = [
        "cargo",
        "run",
        "--quiet",
        "--release",
        "--package",
        package,
        "--",
    ];
    let arguments = arguments.iter().map(String::as_str);
    run(&command.into_iter().chain(arguments).collect::<Vec<_>>())
}

fn run(command: &[&str]) -> Result<(), String> {
    let status = Command::new(command[0])
        .args(&command[1..])
        .current_dir(source_root())
        .status()
        .map_err(|error| format!("{}: {error}", command[0]))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", command.join(" ")))
    }
}
