//! The machine: what it is, and how busy its cores are.

use std::{fs, process::Command, time::Instant};

use tidelane_tests::tools::source_root;

/// CPU model, number of CPUs, kernel.
pub fn describe_machine() -> String {
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

/// The commit of the tree, marked if files differ from it.
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
    // The kept results themselves do not make a tree another one.
    let dirty = changed.lines().any(|line| !line.contains("bench/figures/"));
    if dirty {
        format!("{commit}-dirty")
    } else {
        commit
    }
}

/// How long each CPU has been busy, at some instant.
#[derive(Clone, Debug)]
pub struct CpuClock {
    at: Instant,
    /// Busy seconds per CPU.
    busy: Vec<f64>,
}

impl CpuClock {
    /// Now.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = stat.lines().filter_map(busy_of_line).collect();
        Self {
            at: Instant::now(),
            busy,
        }
    }

    /// The share of time that `cpu` was busy since then.
    pub fn busy_since(&self, earlier: &Self, cpu: usize) -> f64 {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        match (self.busy.get(cpu), earlier.busy.get(cpu)) {
            (Some(now), Some(then)) if seconds > 0.0 => ((now - then) / seconds).clamp(0.0, 1.0),
            _ => 0.0,
        }
    }
}

/// `cpuN user nice system idle iowait irq softirq steal ...`, in ticks of 10 ms.
fn busy_of_line(line: &str) -> Option<f64> {
    let rest = line.strip_prefix("cpu")?;
    if !rest.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let ticks: Vec<u64> = rest
        .split_whitespace()
        .skip(1)
        .filter_map(|t| t.parse().ok())
        .collect();
    let of = |index: usize| ticks.get(index).copied().unwrap_or(0);
    Some((of(0) + of(1) + of(2) + of(5) + of(6)) as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        assert_eq!(
            busy_of_line("cpu1 100 50 25 9999 777 15 10 5 0 0"),
            Some(2.0)
        );
        assert_eq!(busy_of_line("cpu  100 50 25 9999 777 15 10 5 0 0"), None);
        assert_eq!(busy_of_line("intr 1 2 3"), None);
    }
}
