//! Runs the packet scripts on the engine and on the kernel, and prints results in the format of
//! libtest.
//!
//! An argument selects the scripts whose names contain the argument. If an argument is the path of
//! a file, only the files given by paths run. `--engine` or `--kernel` selects one stack, and
//! `--ip_version=ipv6` one IP version. `--jobs=N` sets the number of concurrent runs on the kernel.
//! `--list` prints the names.

use std::{env, path::Path, process::ExitCode, time::Instant};

use tidelane_conformance::{
    ip::Version,
    suite::{KERNEL_RUNS, Outcome, Source, StackName, Verdict, run_all},
};

/// Numbers of results so far.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Tally {
    /// Prints and counts one result.
    fn tell(&mut self, outcome: &Outcome) {
        let test = format!("test {}::{} ...", outcome.platform, outcome.name);
        let seconds = outcome.took.as_secs_f32();
        match &outcome.verdict {
            Verdict::Passed => println!("{test} ok ({seconds:.1} s)"),
            Verdict::Differs(reason) => println!("{test} ok (differs: {reason})"),
            Verdict::Lacks(reason) => println!("{test} ignored, lacks: {reason}"),
            Verdict::Skipped(reason) => println!("{test} ignored, {reason}"),
            Verdict::Failed(why) => println!("{test} FAILED\n{why}"),
        }
        match outcome.verdict {
            Verdict::Passed | Verdict::Differs(_) => self.passed += 1,
            Verdict::Lacks(_) | Verdict::Skipped(_) => self.ignored += 1,
            Verdict::Failed(_) => self.failed += 1,
        }
    }
}

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let files = filters.iter().filter(|filter| Path::new(filter).is_file());
    let files: Result<Vec<Source>, _> = files
        .map(|file| Source::read(Path::new(file), &folder))
        .collect();
    let (files, all) = match (files, Source::read_all(&folder)) {
        (Ok(files), Ok(all)) => (files, all),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let wanted = |source: &Source| {
        filters.is_empty() || filters.iter().any(|filter| source.name.contains(*filter))
    };
    let chosen: Vec<Source> = match files.is_empty() {
        true => all.into_iter().filter(wanted).collect(),
        false => files,
    };
    if has("--list") {
        chosen
            .iter()
            .for_each(|source| println!("{}: test", source.name));
        return ExitCode::SUCCESS;
    }
    let named = |version: &Version| has(&format!("--ip_version={version}"));
    let named: Vec<Version> = Version::ALL.into_iter().filter(named).collect();
    let versions = if named.is_empty() {
        &Version::ALL[..]
    } else {
        &named
    };
    let jobs = arguments.iter().find_map(|a| a.strip_prefix("--jobs="));
    let jobs = jobs.map_or(Ok(KERNEL_RUNS), str::parse).unwrap_or(0);
    if jobs == 0 {
        eprintln!("--jobs: expected a number of scripts, at least 1");
        return ExitCode::FAILURE;
    }
    let begun = Instant::now();
    let mut all = Tally::default();
    for stack in [StackName::Engine, StackName::Kernel] {
        let other = match stack {
            StackName::Engine => "--kernel",
            StackName::Kernel => "--engine",
        };
        if !has(other) {
            run_all(&chosen, stack, versions, jobs, |outcome| all.tell(outcome));
        }
    }
    let word = if all.failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        all.passed,
        all.failed,
        all.ignored,
        begun.elapsed().as_secs_f32()
    );
    ExitCode::from(u8::from(all.failed > 0))
}
