//! Runs the packet scripts on the engine, on the embedded stack and on the kernel, and prints
//! results in the format of libtest.
//!
//! An argument without a leading `-` selects the scripts whose names contain the argument. If an
//! argument is the path of a file, only the files given as arguments run. `--engine`, `--embedded`
//! and `--kernel` select stacks, and `--ip_version=ipv6` selects one IP version. `--jobs=N` sets
//! the number of concurrent runs on the kernel. `--list` prints the names of the selected scripts
//! and runs no script.

use std::{env, fs, io, path::Path, process::ExitCode, time::Instant};

use tidelane_conformance::{
    exceptions::Exceptions,
    ip::Version,
    suite::{KERNEL_RUNS, Outcome, Source, StackName, Verdict, run_all},
};

/// Name of the file that lists the scripts that the embedded stack cannot pass. The file is beside
/// `Cargo.toml`.
const EXCEPTIONS: &str = "embedded-lacks.txt";

/// Numbers of results so far.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Tally {
    /// Prints and counts one result.
    fn report(&mut self, outcome: &Outcome) {
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

/// Reads the scripts at the paths `files`, and all scripts of `folder`. Adds the entries of the
/// table of exceptions to both lists, as remarks. Returns both lists.
fn read(folder: &Path, files: &[&Path]) -> Result<(Vec<Source>, Vec<Source>), String> {
    let failed = |error: io::Error| error.to_string();
    let files = files.iter().map(|file| Source::read(file, folder));
    let mut files: Vec<Source> = files.collect::<Result<_, _>>().map_err(failed)?;
    let mut all = Source::read_all(folder).map_err(failed)?;
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXCEPTIONS);
    let text = fs::read_to_string(table).map_err(failed)?;
    let table = Exceptions::parse(&text).map_err(|why| format!("{EXCEPTIONS}: {why}"))?;
    if let Some(name) = table.add_to(&mut all).first() {
        return Err(format!("{EXCEPTIONS}: {name}: there is no such script"));
    }
    table.add_to(&mut files);
    Ok((files, all))
}

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let files = filters.iter().filter(|filter| Path::new(filter).is_file());
    let files: Vec<&Path> = files.map(Path::new).collect();
    let (files, all) = match read(&folder, &files) {
        Ok(sources) => sources,
        Err(why) => {
            eprintln!("{why}");
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
    let is_chosen = |stack: &StackName| has(&format!("--{stack}"));
    let any_chosen = StackName::ALL.iter().any(is_chosen);
    for stack in StackName::ALL {
        if !any_chosen || is_chosen(&stack) {
            run_all(&chosen, stack, versions, jobs, |outcome| {
                all.report(outcome)
            });
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
