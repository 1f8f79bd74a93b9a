//! The test runner: runs test cases, each in its own process with a time limit.
//!
//! The environment variable TIDELANE_TEST_JOBS is the number of cases that run at a time. By
//! default, the number is one more than the number of CPUs, because most cases wait for the network
//! most of the time. The cases that would disturb others, or that others would disturb, run at the
//! end, one after another.
//!
//! libtest runs tests as threads of one process, and has neither a time limit nor a result for a
//! test that skips itself. This runner executes its own binary again for each case, and passes the
//! name of the case in the environment. A case that hangs, crashes or leaks does not affect the
//! next case. The runner prints a skipped case with the reason. The last line of the output has
//! libtest's format, so that other tools can read the numbers of tests.

use std::{
    env,
    io::{Error, Read, Write},
    num::NonZero,
    process::{Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{Outcome, Stop, tools};

/// Environment variable with the name of the case that the process is to run.
const CASE_VARIABLE: &str = "TIDELANE_TEST_CASE";
/// Optional environment variable with the number of cases that run at a time.
const JOBS_VARIABLE: &str = "TIDELANE_TEST_JOBS";
/// Exit status of the process of a skipped case.
const SKIPPED: u8 = 77;
/// Prefix of the line with the reason why a case was skipped.
const SKIP_MARK: &str = "SKIP: ";

/// One test case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name in the form `file::function`.
    pub name: &'static str,
    /// Function to run.
    pub run: fn() -> Outcome,
    /// Time limit in seconds, which [`tools::patience`] multiplies.
    pub seconds: u64,
    /// True if no other case may run at the same time.
    pub alone: bool,
}

/// Prefix of a line of a case's output. If the case passes, the runner prints the first such line
/// with the result.
const NOTE_MARK: &str = "NOTE: ";

/// Describes how the process of a case ended.
#[derive(Debug)]
enum End {
    /// The process ended with this status.
    Status(ExitStatus),
    /// The runner killed the process at the time limit.
    Timeout,
    /// The process could not be started, or could not be waited for.
    NotRun(Error),
}

impl End {
    /// Returns the exit code. Returns `None` if the process has no exit code.
    fn code(&self) -> Option<i32> {
        match self {
            Self::Status(status) => status.code(),
            Self::Timeout | Self::NotRun(_) => None,
        }
    }

    /// Returns the reason why `case` failed. `took` is the duration of the case.
    fn failure(&self, case: &Case, took: Duration) -> String {
        match self {
            Self::Status(status) => format!("{:.1} s, {status}", took.as_secs_f32()),
            Self::Timeout => {
                let limit = case.seconds * u64::from(tools::patience());
                format!("did not end within {limit} s")
            }
            Self::NotRun(error) => format!("could not be run: {error}"),
        }
    }
}

/// The results of a run.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    failed: Vec<&'static str>,
    skipped: u32,
}

/// Runs the cases that the command line selects. The arguments are those of libtest: parts of the
/// names of cases, `--exact` to match whole names, `--list` to print the names instead, and
/// `--nocapture` to show all output. In a child process of the runner, runs only the case that the
/// environment names.
pub fn main(cases: &[Case]) -> ExitCode {
    if let Ok(name) = env::var(CASE_VARIABLE) {
        return run_case(cases, &name);
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |case: &&Case| {
        filters.is_empty()
            || filters.iter().any(|filter| {
                if has("--exact") {
                    case.name == *filter
                } else {
                    case.name.contains(*filter)
                }
            })
    };
    let chosen: Vec<&Case> = cases.iter().filter(wanted).collect();
    if has("--list") {
        chosen
            .iter()
            .for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let show = has("--nocapture") || has("--no-capture");
    run_all(&chosen, cases.len() - chosen.len(), show)
}

/// Runs the case `name` in this process.
fn run_case(cases: &[Case], name: &str) -> ExitCode {
    let Some(case) = cases.iter().find(|case| case.name == name) else {
        eprintln!("no case {name}");
        return ExitCode::FAILURE;
    };
    match (case.run)() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Skip(reason)) => {
            eprintln!("{SKIP_MARK}{reason}");
            ExitCode::from(SKIPPED)
        }
        Err(Stop::Fail(text)) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of cases to run at a time.
fn jobs() -> usize {
    let wanted = env::var(JOBS_VARIABLE)
        .ok()
        .and_then(|jobs| jobs.parse().ok());
    wanted.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get) + 1)
}

/// Runs `cases` in child processes and prints the results. `filtered` is the number of cases that
/// the command line did not select. If `show` is true, also prints the output of the cases that
/// pass.
fn run_all(cases: &[&Case], filtered: usize, show: bool) -> ExitCode {
    println!("\nrunning {} tests", cases.len());
    let start = Instant::now();
    let tally = Mutex::new(Tally::default());
    let (alone, together): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| case.alone);
    run_some(&together, jobs(), show, &tally);
    run_some(&alone, 1, show, &tally);
    let Tally {
        passed,
        failed,
        skipped,
    } = &tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        println!("\nfailures:");
        failed.iter().for_each(|name| println!("    {name}"));
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; {skipped} ignored; 0 measured; \
         {filtered} filtered out; finished in {:.2}s\n",
        failed.len(),
        start.elapsed().as_secs_f32()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs `cases`, at most `jobs` at a time, and adds the results to `tally`.
fn run_some(cases: &[&Case], jobs: usize, show: bool, tally: &Mutex<Tally>) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, cases.len().max(1)) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let (end, output) = run_child(case, show)
                        .unwrap_or_else(|error| (End::NotRun(error), String::new()));
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.take(case, &end, &output, begun.elapsed());
                }
            });
        }
    });
}

impl Tally {
    /// Counts and prints the result of one case.
    fn take(&mut self, case: &Case, end: &End, output: &str, took: Duration) {
        let seconds = took.as_secs_f32();
        print!("test {} ... ", case.name);
        match end.code() {
            Some(0) => {
                self.passed += 1;
                let note = output.lines().find_map(|line| line.strip_prefix(NOTE_MARK));
                let note = note.map_or(String::new(), |note| format!(", {note}"));
                println!("ok ({seconds:.1} s){note}");
            }
            Some(code) if code == i32::from(SKIPPED) => {
                self.skipped += 1;
                let mark = output
                    .lines()
                    .rev()
                    .find_map(|line| line.strip_prefix(SKIP_MARK));
                println!("ignored, {}", mark.unwrap_or("no reason given"));
            }
            _ => {
                self.failed.push(case.name);
                println!("FAILED ({})", end.failure(case, took));
                println!("---- {} ----\n{}", case.name, output.trim_end());
                println!("---- end {} ----", case.name);
            }
        }
        let _ = std::io::stdout().flush();
    }
}

/// Runs a case in a child process. Returns how the process ended, and the output of the process. If
/// `show` is true, also prints the output. The returned output is then the standard error only.
fn run_child(case: &Case, show: bool) -> std::io::Result<(End, String)> {
    let stdio = || {
        if show {
            Stdio::inherit()
        } else {
            Stdio::piped()
        }
    };
    let mut child = Command::new(env::current_exe()?)
        .env(CASE_VARIABLE, case.name)
        .stdin(Stdio::null())
        .stdout(stdio())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let deadline = Instant::now() + Duration::from_secs(case.seconds) * tools::patience();
    let end = loop {
        match child.try_wait()? {
            Some(status) => break End::Status(status),
            None if Instant::now() > deadline => {
                // Each wire (test network) of the case has a guardian, a process that removes the
                // wire's namespaces and files once the killed process is gone.
                child.kill()?;
                child.wait()?;
                break End::Timeout;
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = |reader: Option<thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    let output = text(stdout) + &text(stderr);
    if show {
        eprint!("{output}");
    }
    Ok((end, output))
}

/// Starts a thread that reads `from` up to the end. The thread's result is the text.
fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Keep the output that was read before an error.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_start_is_not_reported_as_a_timeout() {
        let case = Case {
            name: "file::function",
            run: || Ok(()),
            seconds: 5,
            alone: false,
        };
        let error = Command::new("/nonexistent").spawn().expect_err("no file");
        let text = End::NotRun(error).failure(&case, Duration::from_secs(1));
        assert!(text.starts_with("could not be run: No such file"), "{text}");
        let text = End::Timeout.failure(&case, Duration::from_secs(9));
        assert!(text.starts_with("did not end within "), "{text}");
    }
}
