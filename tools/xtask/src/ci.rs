//! `cargo xtask ci`: runs the checks and tests that a change must pass.
//!
//! The output of each step goes to a file below `target/ci`. The terminal shows one line for each
//! step. If a step fails, the terminal also shows the end of the step's output. The final line has
//! the numbers of passed, failed and skipped tests.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use tidelane_tests::tools::{source_root, target_dir};

use steps::{STEPS, Step};

mod count;
mod steps;

pub use steps::BUILD;

use count::Counts;

/// Number of output lines that the terminal shows for a failed step.
const SHOWN_LINES: usize = 80;
/// Time limit of all steps together.
const ALL_MAX: Duration = Duration::from_secs(44 * 60);

/// Options of `ci`.
#[derive(Args, Debug)]
pub struct Options {
    /// Run only the steps whose names contain one of these texts
    filters: Vec<String>,
    /// List the steps
    #[arg(long)]
    list: bool,
}

/// Runs the steps, and prints the numbers of passed, failed and skipped tests as the final line.
/// With `--list`, only lists the steps.
///
/// If a step fails, the function returns a nonzero exit code instead of an error, because the
/// output already names the step.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let wanted = |step: &&Step| {
        options.filters.is_empty()
            || options
                .filters
                .iter()
                .any(|f| step.name.contains(f.as_str()))
    };
    let steps: Vec<&Step> = STEPS.iter().filter(wanted).collect();
    if options.list {
        steps
            .iter()
            .for_each(|step| println!("{:<16} {}", step.name, step.command.join(" ")));
        return Ok(ExitCode::SUCCESS);
    }
    let logs = target_dir().join("ci");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let start = Instant::now();
    let mut total = Counts::default();
    for (index, step) in steps.iter().enumerate() {
        print!("[{:>2}/{}] {:<16} ", index + 1, steps.len(), step.name);
        let _ = std::io::stdout().flush();
        total.add(run_step(
            step,
            &logs,
            ALL_MAX.saturating_sub(start.elapsed()),
        ));
    }
    println!(
        "\nfinished in {} s; logs are in {}",
        start.elapsed().as_secs(),
        logs.display()
    );
    print_closing(&total);
    Ok(ExitCode::from(u8::from(total.failed > 0)))
}

/// Prints the skipped tests, then the failed tests, and then the counts. The failed tests come
/// after the skipped tests, because a log may keep only the end of the output.
fn print_closing(total: &Counts) {
    if !total.skips.is_empty() {
        println!("\nskipped:");
        let width = total
            .skips
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        for (name, reason) in &total.skips {
            println!("  {name:<width$}  {reason}");
        }
    }
    if !total.failures.is_empty() {
        println!("\nfailed:");
        total.failures.iter().for_each(|name| println!("  {name}"));
    }
    println!(
        "\n{} passed, {} failed, {} skipped",
        total.passed,
        total.failed,
        total.skips.len()
    );
}

/// Runs one step and counts its tests. `left` is the remaining time for this step and all later
/// steps.
fn run_step(step: &Step, logs: &Path, left: Duration) -> Counts {
    let start = Instant::now();
    let no_time = || {
        let seconds = left.as_secs();
        let reason = format!("needs {} s, {seconds} s are left", step.seconds_min);
        (seconds < step.seconds_min).then_some(reason)
    };
    if let Some(reason) = (step.skip)().or_else(no_time) {
        println!("skipped: {reason}");
        return Counts::skip(step.name, &reason);
    }
    let log = logs.join(format!("{}.log", step.name));
    // `timeout 0` would run the step without a time limit.
    let limit = step.seconds.min(left.as_secs()).max(1);
    let ended = execute(step, limit, &log);
    let seconds = start.elapsed().as_secs_f32();
    let text = fs::read(&log).map(|b| String::from_utf8_lossy(&b).into_owned());
    let text = text.unwrap_or_default();
    let counts = Counts::of_step(step.name, step.tests, ended.is_ok(), &text);
    let skipped = counts.skips.len();
    match ended {
        Ok(()) if counts.failed == 0 => {
            println!(
                "ok  {seconds:>6.1} s  {} passed, {skipped} skipped",
                counts.passed
            );
        }
        ended => {
            let why = ended.err().unwrap_or_else(|| "tests failed".to_owned());
            println!("FAILED  {seconds:.1} s  {why}");
            show_end(&text, &log);
        }
    }
    counts
}

/// Prints the last lines of a step's output.
fn show_end(text: &str, log: &Path) {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(SHOWN_LINES);
    lines[from..].iter().for_each(|line| println!("    {line}"));
    println!("    (whole output: {})", log.display());
}

/// Exit status of `timeout` if the command has ended after the SIGTERM at the time limit.
const TIMED_OUT: i32 = 124;

/// Runs a step's command to its end, or until the time limit. `limit` is the time limit in seconds.
/// The output goes to the file `log`.
///
/// The command does not outlive this process: `setpriv` makes the kernel send SIGTERM to `timeout`
/// when this process dies, and `timeout` forwards the signal to the process group of the command.
fn execute(step: &Step, limit: u64, log: &Path) -> Result<(), String> {
    let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = file.try_clone().map_err(|error| error.to_string())?;
    let status = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "TERM",
            "timeout",
            "-k",
            "10",
            &limit.to_string(),
        ])
        .args(step.command)
        // Incremental compilation would make a build from scratch take longer.
        .env("CARGO_INCREMENTAL", "0")
        .envs(step.environment.iter().copied())
        .current_dir(source_root())
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .status()
        .map_err(|error| format!("setpriv: {error}"))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(TIMED_OUT) => Err(format!("did not end within {limit} s")),
        _ => Err(status.to_string()),
    }
}
