//! `lab scripts`: the packet scripts of `tests/conformance` on the TCP of several kernels.
//!
//! A machine's processor counts instructions instead of following the clock, so that the times
//! which scripts compare are the kernel's, however busy this machine is.

use std::{
    collections::BTreeMap,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;

use super::{
    BOOT_MAX,
    cells::print_result,
    directory,
    emulator::Emulator,
    end_after, kernel_names,
    kernels::Kernel,
    machine::{Machine, Plan, Processors},
    program,
};

/// Seconds for all scripts on one kernel.
const SCRIPTS_MAX: u64 = 1200;

/// Options of `lab scripts`.
#[derive(Args, Debug)]
pub struct Options {
    /// Kernels, separated by commas: 5.10, 6.1, 6.12, newest, or all
    #[arg(long, default_value = "6.1,6.12,newest", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Only scripts whose names contain one of these
    filters: Vec<String>,
}

/// How a script fared on a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    /// Not as the script says, which a remark in it says, too.
    Remarked(String),
    /// Not run, with the reason.
    Ignored(String),
    Failed(String),
}

/// Fates by the script's name.
type Fates = BTreeMap<String, Fate>;

/// Runs the scripts on each kernel. Prints what failed, and what differs between the kernels.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let kernels = kernel_names(&options.kernel);
    let program = program("tidelane-conformance", "scripts")?;
    let quoted = |text: &str| format!(" '{text}'");
    let filters: String = options.filters.iter().map(|text| quoted(text)).collect();
    // There is one processor, and time does not pass while nothing is to do.
    let options = "--kernel --jobs=1";
    let command = format!("'{}' {options}{filters} >&3 2>&1\n", program.display());
    let start = Instant::now();
    let mut all = Vec::new();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for name in &kernels {
        let fates = run_on(name, &command, &directory()?)?;
        let count = |wanted: fn(&Fate) -> bool| fates.values().filter(|fate| wanted(fate)).count();
        let as_written = count(|fate| *fate == Fate::Passed);
        let as_remarked = count(|fate| matches!(fate, Fate::Remarked(_)));
        let not_run = count(|fate| matches!(fate, Fate::Ignored(_)));
        let failures = count(|fate| matches!(fate, Fate::Failed(_)));
        println!(
            "lab: {name}: {as_written} scripts as they say, {as_remarked} as their remarks say, \
             {not_run} ignored, {failures} failed"
        );
        passed += as_written + as_remarked;
        ignored += not_run;
        failed += failures;
        all.push(fates);
    }
    print_differences(&kernels, &all);
    Ok(print_result((passed, failed, ignored), start.elapsed()))
}

/// All fates on one kernel.
fn run_on(name: &str, command: &str, lab: &Path) -> Result<Fates, String> {
    let kernel = Kernel::get(name, lab, end_after(None))?;
    let plan = Plan {
        emulator: &Emulator::default(),
        kernel: &kernel,
        processors: Processors::Counting,
        devices: Vec::new(),
        taps: Vec::new(),
        modules: Vec::new(),
        commands: command.to_owned(),
        directory: lab.join("scripts").join(name),
        limit: Duration::from_secs(BOOT_MAX + SCRIPTS_MAX),
    };
    let mut machine = Machine::boot(&plan)?;
    let mut reader = Reader::default();
    loop {
        let line = machine.line()?;
        if line == "end" {
            break;
        }
        if let Some(version) = line.strip_prefix("booted ") {
            println!("lab: Linux {version} has booted");
        }
        reader.line(&line);
    }
    let fates = reader.finish();
    if fates.is_empty() {
        return Err(format!("no script ran; {}", plan.directory.display()));
    }
    for (script, fate) in &fates {
        if let Fate::Failed(why) = fate {
            println!("test {name}/{script} ... FAILED\n{why}");
        }
    }
    Ok(fates)
}

/// Reads the lines that the test program of the scripts prints.
#[derive(Debug, Default)]
struct Reader {
    fates: Fates,
    /// The script whose failure the next lines describe.
    failed: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        let test = line.strip_prefix("test ");
        if let Some((name, result)) = test.and_then(|rest| rest.split_once(" ... ")) {
            let fate = fate_of(result);
            let is_failure = matches!(fate, Fate::Failed(_));
            self.failed = is_failure.then(|| name.to_owned());
            self.fates.insert(name.to_owned(), fate);
        } else if line.is_empty() {
            self.failed = None;
        } else if let Some(Fate::Failed(why)) = self
            .failed
            .as_ref()
            .and_then(|name| self.fates.get_mut(name))
        {
            *why += line;
            *why += "\n";
        }
    }

    fn finish(self) -> Fates {
        self.fates
    }
}

fn fate_of(result: &str) -> Fate {
    let remark = |text: &str| Fate::Remarked(text.to_owned());
    if let Some(reason) = result.strip_prefix("ignored, lacks: ") {
        remark(reason)
    } else if let Some(reason) = result.strip_prefix("ignored, ") {
        Fate::Ignored(reason.to_owned())
    } else if let Some(reason) = result.strip_prefix("ok (differs: ") {
        remark(reason.strip_suffix(')').unwrap_or(reason))
    } else if result.starts_with("ok") {
        Fate::Passed
    } else {
        Fate::Failed(String::new())
    }
}

/// Prints a line for each script that fares differently on two of the kernels.
fn print_differences(kernels: &[&str], all: &[Fates]) {
    let names: std::collections::BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let differing = names.into_iter().filter(|name| {
        let mut fates = all.iter().map(|fates| fates.get(*name));
        let first = fates.next();
        fates.any(|fate| Some(fate) != first)
    });
    let differing: Vec<&String> = differing.collect();
    println!("\n{} scripts differ between the kernels", differing.len());
    for name in differing {
        println!("{name}");
        for (kernel, fates) in kernels.iter().zip(all) {
            let text = match fates.get(name) {
                Some(Fate::Passed) => "as the script says",
                Some(Fate::Remarked(reason) | Fate::Ignored(reason)) => reason,
                Some(Fate::Failed(_)) => "FAILED",
                None => "not run",
            };
            println!("    {kernel:<8}{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_scripts_become_fates() {
        let mut reader = Reader::default();
        let lines = [
            "booted 6.1.0",
            "test kernel::a/b ... ok (1.5 s)",
            "test kernel::a/c ... ok (differs: it waits (long))",
            "test kernel::a/d ... FAILED",
            "a/d.pkt:3:1: no packet came",
            "",
            "test result: FAILED. 1 passed",
            "test kernel::a/e ... ignored, lacks: a setting",
            "test kernel::a/f ... ignored, needs root",
        ];
        lines.iter().for_each(|line| reader.line(line));
        let fates = reader.finish();
        let fate = |name: &str| fates[&format!("kernel::a/{name}")].clone();
        let text = |text: &str| text.to_owned();
        assert_eq!(fates.len(), 5);
        assert_eq!(fate("b"), Fate::Passed);
        assert_eq!(fate("c"), Fate::Remarked(text("it waits (long)")));
        assert_eq!(
            fate("d"),
            Fate::Failed(text("a/d.pkt:3:1: no packet came\n"))
        );
        assert_eq!(fate("e"), Fate::Remarked(text("a setting")));
        assert_eq!(fate("f"), Fate::Ignored(text("needs root")));
    }
}
