//! The table of measured cases with their targets and limits, and the output of the results.

use std::{fs, process::Command};

use serde_json::{Value, json};
use tidelane_tests::tools::{source_root, target_dir};

use crate::callgrind::{self, Measurement};

// Lists of functions. A case counts the instructions within the functions of its list.
const SERVICE: &[&str] = &["tidelane_micro_service"];
const LIBRARY: &[&str] = &["tidelane_micro_library"];
const BOTH: &[&str] = &["tidelane_micro_service", "tidelane_micro_library"];
const EMBEDDED: &[&str] = &["tidelane_micro_embedded"];
const MUX: &[&str] = &["tidelane_micro_mux"];
const LOCAL: &[&str] = &[
    "tidelane_micro_service",
    "tidelane_micro_library",
    "tidelane_micro_write_requests",
];

/// One measured case, a row of the table.
struct Figure {
    /// Name of the case.
    case: &'static str,
    measurement: Measurement,
    /// Target in instructions per segment, request or packet. `None` if the case has no target.
    target: Option<u64>,
    /// Limit in instructions per segment, request or packet. `--check` fails if the count is above
    /// the limit. The limit is an earlier count plus a margin for differences between compilers.
    limit: u64,
}

const fn figure(
    case: &'static str,
    (load, connections): (&'static str, u32),
    counted_functions: &'static [&'static str],
    target: Option<u64>,
    limit: u64,
) -> Figure {
    Figure {
        case,
        measurement: Measurement {
            load,
            connections,
            counted_functions,
        },
        target,
        limit,
    }
}

/// All cases.
const FIGURES: &[Figure] = &[
    figure(
        "engine: receive 64 B in order and acknowledge",
        ("receive", 1),
        &["tidelane_micro_receive"],
        Some(220),
        230,
    ),
    figure(
        "engine: send 64 B",
        ("send", 1),
        &["tidelane_micro_send"],
        Some(220),
        226,
    ),
    figure(
        "request and reply, service and library",
        ("port", 1),
        BOTH,
        Some(2500),
        2470,
    ),
    figure(
        "request and reply, service alone",
        ("port", 1),
        SERVICE,
        None,
        2060,
    ),
    figure(
        "request and reply, library alone",
        ("port", 1),
        LIBRARY,
        None,
        408,
    ),
    figure(
        "16 at once, service and library",
        ("port", 16),
        BOTH,
        Some(2500),
        1626,
    ),
    figure(
        "64 at once, service and library",
        ("port", 64),
        BOTH,
        Some(2500),
        1583,
    ),
    figure("local path, both ends", ("local", 1), LOCAL, None, 4537),
    figure(
        "local path, both ends, 64 at once",
        ("local", 64),
        LOCAL,
        None,
        2970,
    ),
    figure(
        "embedded: connection with request and response",
        ("embedded", 1),
        EMBEDDED,
        None,
        15_450,
    ),
    figure(
        "embedded: 16 connections at once",
        ("embedded", 16),
        EMBEDDED,
        None,
        14_500,
    ),
    figure("mux: 1 port sends 60 B", ("mux-send", 1), MUX, None, 544),
    figure(
        "mux: 1,024 ports send 60 B",
        ("mux-send", 1024),
        MUX,
        None,
        890,
    ),
    figure(
        "mux: 1 port receives 60 B",
        ("mux-receive", 1),
        MUX,
        None,
        427,
    ),
    figure(
        "mux: 1,024 ports receive 60 B",
        ("mux-receive", 1024),
        MUX,
        None,
        491,
    ),
];

/// Measures all cases, prints the table, and writes `target/bench/instructions.json`. If `check` is
/// true, returns an error if a count is above its limit or if a case allocates.
pub fn run(check: bool) -> Result<(), String> {
    println!("instructions per segment or request, and allocations (callgrind)\n");
    let mut rows = Vec::new();
    let mut worse = 0;
    for figure in FIGURES {
        let counted = callgrind::run(&figure.measurement)?;
        let (value, allocations) = (counted.instructions, counted.tally.allocations);
        let over = value > figure.limit;
        worse += u32::from(over) + u32::from(allocations > 0);
        let missed = figure.target.is_some_and(|target| value > target);
        let target = figure
            .target
            .map_or("-".to_owned(), |target| target.to_string());
        let mark = match (over, missed) {
            (true, _) => "WORSE",
            (false, true) => "missed",
            (false, false) => "",
        };
        println!(
            "  {:<48} {value:>6}  target {target:>5} {mark:<7} {allocations} allocations",
            figure.case
        );
        rows.push(row(figure.case, "instructions", value, figure.target));
        let per_packet = allocations as f64 / counted.tally.count as f64;
        rows.push(row(figure.case, "allocations", per_packet, Some(0)));
    }
    write(rows)?;
    if check && worse > 0 {
        return Err(format!("{worse} counts are above their limits"));
    }
    Ok(())
}

/// Returns a row of the result in the schema of `bench/figures`.
fn row(case: &str, metric: &str, value: impl Into<Value>, target: Option<u64>) -> Value {
    let mut row = json!({
        "case": case, "metric": metric, "better": "lower", "value": value.into(),
    });
    if let Some(target) = target {
        row["target"] = target.into();
    }
    row
}

fn write(rows: Vec<Value>) -> Result<(), String> {
    let json = json!({
        "figure": "instructions",
        "commit": commit(),
        "machine": machine(),
        "command": "make bench FIGURE=instructions",
        "placement": "callgrind, one thread; the service's NIC leaves checksums partial, \
                      as veth does",
        "rows": rows,
    });
    let folder = target_dir().join("bench");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let path = folder.join("instructions.json");
    let text = serde_json::to_string_pretty(&json).map_err(|error| error.to_string())? + "\n";
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("\nwrote {}", path.display());
    Ok(())
}

/// Returns the commit of the source tree, with the suffix `-dirty` if tracked files were changed.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(source_root())
            .output()
            .ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|text| !text.is_empty());
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    let mark = if changed.is_empty() { "" } else { "-dirty" };
    commit.map_or("unknown".to_owned(), |commit| commit + mark)
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown CPU", |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    format!("{model}, under valgrind")
}
