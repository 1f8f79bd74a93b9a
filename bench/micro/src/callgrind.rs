//! Runs a load of this binary under callgrind, and reads the instruction count. A load is a
//! sequence of equal turns, such as one request on each connection.

use std::{fs, path::PathBuf, process::Command};

use tidelane_tests::tools::find_tool;

use crate::Tally;

/// A load to run under callgrind, and the functions whose instructions callgrind counts.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Name of the load.
    pub load: &'static str,
    /// Number of connections. For the mux loads, the number of mux ports.
    pub connections: u32,
    /// Symbols of the counted functions (`--toggle-collect`). Callgrind also counts the functions
    /// that they call.
    pub counted_functions: &'static [&'static str],
}

/// The result of a [`Measurement`].
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Instructions per segment, request or packet (see `Tally::count`), rounded to the nearest
    /// integer.
    pub instructions: u64,
    /// The counters that the load printed: segments, requests or packets, and allocations.
    pub tally: Tally,
}

/// A temporary folder, which `drop` removes.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("tidelane-micro-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the removal fails, the folder stays in the temporary directory, and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the load, and divides the number of counted instructions by the number of the load's
/// segments, requests or packets.
pub fn run(measurement: &Measurement) -> Result<Counted, String> {
    let valgrind = find_tool("valgrind")
        .ok_or("no valgrind here; apt-get install valgrind (make bench does it)")?;
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let scratch = Scratch::new()?;
    let out = scratch.0.join("callgrind.out");
    let mut command = Command::new(valgrind);
    command
        .arg("--tool=callgrind")
        .arg("--quiet")
        .arg(format!("--callgrind-out-file={}", out.display()));
    for toggle in measurement.counted_functions {
        command.arg(format!("--toggle-collect={toggle}"));
    }
    command
        .arg(binary)
        .args(["load", measurement.load, "--connections"])
        .arg(measurement.connections.to_string());
    let output = command
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        return Err(format!("{}: {}", measurement.load, errors.trim()));
    }
    let tally = parse_tally(&text).ok_or_else(|| format!("a load printed {text:?}"))?;
    let counts = fs::read_to_string(&out).map_err(|error| format!("callgrind: {error}"))?;
    let total = parse_total(&counts).ok_or("callgrind's file has no total")?;
    if total == 0 || tally.count == 0 {
        return Err(format!("{}: nothing was counted", measurement.load));
    }
    Ok(Counted {
        instructions: (total + tally.count / 2) / tally.count,
        tally,
    })
}

/// Parses the line that a load prints: `count COUNT allocations ALLOCATIONS`.
fn parse_tally(text: &str) -> Option<Tally> {
    let mut words = text.split_whitespace();
    let mut number = |name: &str| {
        (words.next() == Some(name))
            .then(|| words.next()?.parse().ok())
            .flatten()
    };
    Some(Tally {
        count: number("count")?,
        allocations: number("allocations")?,
    })
}

/// Parses callgrind's output file, and returns the number of counted instructions. The number is in
/// the line `summary:`. If there is no such line, the number is in the line `totals:`.
fn parse_total(counts: &str) -> Option<u64> {
    let value_of = |name: &str| {
        let line = counts.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    value_of("summary:").or_else(|| value_of("totals:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found() {
        let file = "version: 1\nevents: Ir\nsummary: 123456\n\nfn=(1) x\n1 2\ntotals: 99\n";
        assert_eq!(parse_total(file), Some(123_456));
        assert_eq!(parse_total("events: Ir\ntotals: 99\n"), Some(99));
        assert_eq!(parse_total("events: Ir\n"), None);
        let tally = parse_tally("count 1000 allocations 2\n").map(|t| (t.count, t.allocations));
        assert_eq!(tally, Some((1000, 2)));
        assert!(parse_tally("panic").is_none());
    }
}
