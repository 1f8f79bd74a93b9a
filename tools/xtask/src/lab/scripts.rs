//! `lab scripts`: runs the packet scripts of `tests/conformance` on the TCP of several kernels. A
//! packet script lists socket calls and packets, with their times.
//!
//! The clock of the emulated machine counts instructions ([`Processors::Counting`]), so that the
//! load of the host does not affect the times that the scripts check.

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

/// Time limit of all scripts on one kernel, in seconds.
const SCRIPTS_MAX: u64 = 1200;

/// Options of `lab scripts`.
#[derive(Args, Debug)]
pub struct Options {
    /// Kernels, separated by commas: 5.10, 6.1, 6.12, newest, or all
    #[arg(long, default_value = "6.1,6.12,newest", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Run only scripts whose names contain one of these texts
    filters: Vec<String>,
}

/// The result of a script on a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScriptResult {
    /// The kernel behaves as the script says.
    Passed,
    /// The kernel behaves differently or lacks a feature, and a remark of the script, such as
    /// `// kernel: differs: REASON`, says so. The text is the reason in the remark.
    Remarked(String),
    /// The script did not run, for this reason.
    Ignored(String),
    /// The kernel behaves differently, and the script has no remark about the difference. The text
    /// describes the difference.
    Failed(String),
}

/// Results by the names of the scripts.
type Results = BTreeMap<String, ScriptResult>;

/// Runs the scripts on each kernel. Prints the failures, and the differences between the kernels.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let kernels = kernel_names(&options.kernel);
    let program = program("tidelane-conformance", "scripts")?;
    let quoted = |text: &str| format!(" '{text}'");
    let filters: String = options.filters.iter().map(|text| quoted(text)).collect();
    // Run one script at a time: the machine has one processor, and its clock skips idle time, so
    // that parallel runs would not be faster.
    let options = "--kernel --jobs=1";
    let command = format!("'{}' {options}{filters} >&3 2>&1\n", program.display());
    let start = Instant::now();
    let mut all = Vec::new();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for name in &kernels {
        let results = run_on(name, &command, &directory()?)?;
        let count = |wanted: fn(&ScriptResult) -> bool| {
            results.values().filter(|verdict| wanted(verdict)).count()
        };
        let as_written = count(|verdict| *verdict == ScriptResult::Passed);
        let as_remarked = count(|verdict| matches!(verdict, ScriptResult::Remarked(_)));
        let not_run = count(|verdict| matches!(verdict, ScriptResult::Ignored(_)));
        let failures = count(|verdict| matches!(verdict, ScriptResult::Failed(_)));
        println!(
            "lab: {name}: {as_written} scripts as they say, {as_remarked} as their remarks say, \
             {not_run} ignored, {failures} failed"
        );
        passed += as_written + as_remarked;
        ignored += not_run;
        failed += failures;
        all.push(results);
    }
    print_differences(&kernels, &all);
    Ok(print_result((passed, failed, ignored), start.elapsed()))
}

/// Runs the scripts on the kernel called `name`.
fn run_on(name: &str, command: &str, lab: &Path) -> Result<Results, String> {
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
    let results = reader.finish();
    if results.is_empty() {
        return Err(format!(
            "no script ran; the logs are in {}",
            plan.directory.display()
        ));
    }
    for (script, verdict) in &results {
        if let ScriptResult::Failed(why) = verdict {
            println!("test {name}/{script} ... FAILED\n{why}");
        }
    }
    Ok(results)
}

/// Parser for the output of the test program that runs the scripts.
#[derive(Debug, Default)]
struct Reader {
    results: Results,
    /// Name of the failed script whose failure the next lines describe.
    failed: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        let test = line.strip_prefix("test ");
        if let Some((name, result)) = test.and_then(|rest| rest.split_once(" ... ")) {
            let verdict = result_of(result);
            let is_failure = matches!(verdict, ScriptResult::Failed(_));
            self.failed = is_failure.then(|| name.to_owned());
            self.results.insert(name.to_owned(), verdict);
        } else if line.is_empty() {
            self.failed = None;
        } else if let Some(ScriptResult::Failed(why)) = self
            .failed
            .as_ref()
            .and_then(|name| self.results.get_mut(name))
        {
            *why += line;
            *why += "\n";
        }
    }

    fn finish(self) -> Results {
        self.results
    }
}

/// Returns the result for the text after `test NAME ... `.
fn result_of(result: &str) -> ScriptResult {
    let remark = |text: &str| ScriptResult::Remarked(text.to_owned());
    if let Some(reason) = result.strip_prefix("ignored, lacks: ") {
        remark(reason)
    } else if let Some(reason) = result.strip_prefix("ignored, ") {
        ScriptResult::Ignored(reason.to_owned())
    } else if let Some(reason) = result.strip_prefix("ok (differs: ") {
        remark(reason.strip_suffix(')').unwrap_or(reason))
    } else if result.starts_with("ok") {
        ScriptResult::Passed
    } else {
        ScriptResult::Failed(String::new())
    }
}

/// Prints the results of each script whose results differ between the kernels.
fn print_differences(kernels: &[&str], all: &[Results]) {
    let names: std::collections::BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let differing = names.into_iter().filter(|name| {
        let mut results = all.iter().map(|results| results.get(*name));
        let first = results.next();
        results.any(|verdict| Some(verdict) != first)
    });
    let differing: Vec<&String> = differing.collect();
    println!("\n{} scripts differ between the kernels", differing.len());
    for name in differing {
        println!("{name}");
        for (kernel, results) in kernels.iter().zip(all) {
            let text = match results.get(name) {
                Some(ScriptResult::Passed) => "as the script says",
                Some(ScriptResult::Remarked(reason) | ScriptResult::Ignored(reason)) => reason,
                Some(ScriptResult::Failed(_)) => "FAILED",
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
    fn lines_of_the_scripts_become_results() {
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
        let results = reader.finish();
        let verdict = |name: &str| results[&format!("kernel::a/{name}")].clone();
        let text = |text: &str| text.to_owned();
        assert_eq!(results.len(), 5);
        assert_eq!(verdict("b"), ScriptResult::Passed);
        assert_eq!(
            verdict("c"),
            ScriptResult::Remarked(text("it waits (long)"))
        );
        assert_eq!(
            verdict("d"),
            ScriptResult::Failed(text("a/d.pkt:3:1: no packet came\n"))
        );
        assert_eq!(verdict("e"), ScriptResult::Remarked(text("a setting")));
        assert_eq!(verdict("f"), ScriptResult::Ignored(text("needs root")));
    }
}
