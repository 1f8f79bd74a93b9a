//! Functions for the result file of a benchmark: a description of the machine, the commit, and the
//! median of the rounds.

use std::{fs, process::Command};

use crate::tools::source_root;

/// Describes this machine: number of CPUs, CPU model, whether the machine is virtual, and kernel
/// version.
pub fn describe() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let virtual_machine = info.contains(" hypervisor");
    let cpus = info
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kind = if virtual_machine {
        ", virtual machine"
    } else {
        ""
    };
    format!("{cpus} x {model}{kind}, Linux {}", release.trim())
}

/// Returns the abbreviated commit of the source tree, or `unknown`. The commit has the suffix
/// `-dirty` if a file that git tracks has changed. Results and notes of benchmarks do not count.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(source_root())
            .output();
        output
            .ok()
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]).filter(|c| !c.is_empty()) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    // Results and notes do not influence a benchmark, so their changes do not count. Plans do.
    let kept = ["/result.json", "/plot.svg", "/NOTE.md", "/TABLE.md"];
    let is_kept =
        |line: &str| line.contains(" bench/") && kept.iter().any(|file| line.ends_with(file));
    let dirty = changed.lines().any(|line| !is_kept(line));
    if dirty {
        format!("{commit}-dirty")
    } else {
        commit
    }
}

/// Returns the median of `values`, or 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (len, middle) if len % 2 == 1 => sorted[middle],
        (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}
