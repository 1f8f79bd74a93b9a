//! Runs test cases one after another, each in a process of its own with a time limit.
//!
//! libtest runs tests as threads of one process: a hang never ends, a skip is silent, and the
//! output of a passing test is lost. This runner starts its own program again for each case, with
//! the name of the case. A case may hang, crash or leak without an effect on the next one. A skip
//! is printed with its reason. The last line has libtest's format, so that tools can count the
//! tests.

use std::{
    env,
    io::{Read, Write},
    process::{Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{Outcome, Stop, tools};

/// Environment variable of the process that runs one case: its name.
const CASE_VARIABLE: &str = "TIDELANE_TEST_CASE";
/// Exit status of a skipped case.
const SKIPPED: u8 = 77;
/// Prefix of the line with the reason of a skip.
const SKIP_MARK: &str = "SKIP: ";

/// One test case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name, as `file::function`.
    pub name: &'static str,
    /// Function to run.
    pub run: fn() -> Outcome,
    /// Time limit in seconds.
    pub seconds: u64,
}

/// Prefix of the line with the remark of a passing case.
const NOTE_MARK: &str = "NOTE: ";

/// Counts of a run.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    failed: Vec<&'static str>,
    skipped: u32,
}

/// The main function of a test program. Its arguments are those of libtest: filters, `--list`,
/// `--nocapture` for all output, and `--exact` for filters that match whole names.
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

fn run_all(cases: &[&Case], filtered: usize, show: bool) -> ExitCode {
    println!("\nrunning {} tests", cases.len());
    let start = Instant::now();
    let mut tally = Tally::default();
    for case in cases {
        print!("test {} ... ", case.name);
        let _ = std::io::stdout().flush();
        let begun = Instant::now();
        let (status, output) = match run_child(case, show) {
            Ok(result) => result,
            Err(error) => (None, error.to_string()),
        };
        tally.take(case, status, &output, begun.elapsed());
    }
    let Tally {
        passed,
        failed,
        skipped,
    } = &tally;
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

impl Tally {
    fn take(&mut self, case: &Case, status: Option<ExitStatus>, output: &str, took: Duration) {
        let seconds = took.as_secs_f32();
        match status.and_then(|status| status.code()) {
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
                match status {
                    Some(status) => println!("FAILED ({seconds:.1} s, {status})"),
                    None => println!(
                        "FAILED (no end in {} s)",
                        case.seconds * u64::from(tools::patience())
                    ),
                }
                println!("---- {} ----\n{}", case.name, output.trim_end());
                println!("---- end {} ----", case.name);
            }
        }
    }
}

/// Runs a case in a child. Returns the status, `None` after a timeout, and the output.
fn run_child(case: &Case, show: bool) -> std::io::Result<(Option<ExitStatus>, String)> {
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
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => {
                // The guardians of its wires notice the end of their owner and clean up.
                child.kill()?;
                child.wait()?;
                break None;
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
    Ok((status, output))
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Show the output that was read before an error.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
