//! CPU usage of this machine, from `/proc/stat`.

use std::{fs, time::Instant};

/// The busy time of each CPU since boot, read at one instant.
#[derive(Clone, Debug)]
pub struct CpuTimes {
    /// Time of the reading.
    at: Instant,
    /// Busy seconds of each CPU, by its position among the `cpuN` lines of `/proc/stat`.
    busy: Vec<f64>,
}

impl CpuTimes {
    /// Reads the current values.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = stat.lines().filter_map(busy_of_line).collect();
        Self {
            at: Instant::now(),
            busy,
        }
    }

    /// Returns the part of the time from `earlier` to `self` during which `cpu` was busy, from 0 to
    /// 1. Returns 0 for an unknown CPU.
    pub fn busy_since(&self, earlier: &Self, cpu: usize) -> f64 {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        match (self.busy.get(cpu), earlier.busy.get(cpu)) {
            (Some(now), Some(then)) if seconds > 0.0 => ((now - then) / seconds).clamp(0.0, 1.0),
            _ => 0.0,
        }
    }
}

/// Returns the busy seconds in a line `cpuN user nice system idle iowait irq softirq steal ...`,
/// whose values are in ticks of 10 ms. The busy time is the sum of user, nice, system, irq and
/// softirq. Returns `None` for other lines.
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
