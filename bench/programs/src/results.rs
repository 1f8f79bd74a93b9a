//! The kept results of all programs. `result.json` has a row for each program, and `TABLE.md` shows
//! the rows as a table. A connection is accelerated if Tidelane carries it instead of the kernel.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tidelane_programs::packages::tools_dir;
use tidelane_tests::{Stop, machine};

use crate::{catalog::Entry, load::Sample};

mod table;

/// The disturbance during a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// No disturbance.
    Plain,
    /// 1 % of the packets of each direction are lost.
    Loss,
    /// The Tidelane services are killed (`kill -9`), and started again (`tidelane up`).
    Outage,
}

/// The ends that run on Tidelane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sides {
    /// Neither end: server and client are on the kernel.
    Kernel,
    /// Only the server.
    TidelaneServer,
    /// Only the client.
    TidelaneClient,
    /// Server and client.
    Both,
}

/// The outcome of a check. A connection should be accelerated at each end that runs on Tidelane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The client's output has the expected digest, and every connection that should be accelerated
    /// was accelerated.
    Passed,
    /// The client's output has the expected digest. A connection that should be accelerated stayed
    /// with the kernel, or the counters show no connection.
    Kernel,
    /// The digest is wrong, or the check failed in another way.
    Failed,
}

/// A cell of the table: the result of one check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The result.
    pub mark: Mark,
    /// The reason, if the result is not [`Mark::Passed`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A cell and its place in the program's row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Placed {
    condition: Condition,
    sides: Sides,
    #[serde(flatten)]
    cell: Cell,
}

/// The results of a program's load on both stacks. Arrays of two have the kernel's value first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadRow {
    /// Description of one request and of the connections.
    request: String,
    /// Medians of the requests per second.
    rate: [f64; 2],
    /// Medians of the rounds' 99th percentiles of the latency in microseconds. `None` if the client
    /// did not print the percentile in every round.
    p99_us: [Option<f64>; 2],
    /// Medians of the CPU milliseconds that server and service used per 1000 requests.
    cpu_ms: [f64; 2],
    /// The median, the minimum and the maximum of the rounds' ratios. The ratio of a round is the
    /// rate on Tidelane divided by the rate on the kernel.
    ratio: [f64; 3],
    /// Number of rounds.
    rounds: usize,
    /// True if all connections of the runs on Tidelane were accelerated.
    pub accelerated: bool,
    /// The reason why the load failed. `None` if it did not fail.
    pub failed: Option<String>,
}

/// The results of one program, a row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    name: String,
    title: String,
    kind: String,
    /// The version that the program prints.
    pub version: String,
    /// Commit of Tidelane.
    commit: String,
    /// The reason why the program was not measured. `None` if it was measured.
    pub skipped: Option<String>,
    cells: Vec<Placed>,
    /// The results of the load. `None` if no load was run.
    pub load: Option<LoadRow>,
}

/// The kept rows of all programs, by name.
#[derive(Debug)]
pub struct Results {
    /// Folder of `result.json` and `TABLE.md`.
    folder: PathBuf,
    rows: BTreeMap<String, Row>,
}

const ALL_SIDES: [Sides; 4] = [
    Sides::Kernel,
    Sides::TidelaneServer,
    Sides::TidelaneClient,
    Sides::Both,
];
const CONDITIONS: [Condition; 3] = [Condition::Plain, Condition::Loss, Condition::Outage];

impl Sides {
    /// Returns the ends that run on Tidelane. `server` is true if the server runs on Tidelane.
    /// `client` is true if the client runs on Tidelane.
    pub fn of(server: bool, client: bool) -> Self {
        match (server, client) {
            (false, false) => Self::Kernel,
            (true, false) => Self::TidelaneServer,
            (false, true) => Self::TidelaneClient,
            (true, true) => Self::Both,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "both on the kernel",
            Self::TidelaneServer => "server on Tidelane",
            Self::TidelaneClient => "client on Tidelane",
            Self::Both => "both on Tidelane",
        }
    }
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "undisturbed",
            Self::Loss => "1 % loss",
            Self::Outage => "kill -9",
        }
    }
}

impl Cell {
    /// Returns a cell that passed.
    pub fn passed() -> Self {
        Self {
            mark: Mark::Passed,
            note: String::new(),
        }
    }
}

impl LoadRow {
    /// Returns a row without results.
    pub fn new(request: &str) -> Self {
        Self {
            request: request.to_owned(),
            rate: [0.0; 2],
            p99_us: [None; 2],
            cpu_ms: [0.0; 2],
            ratio: [0.0; 3],
            rounds: 0,
            accelerated: true,
            failed: None,
        }
    }

    /// Computes the results from the samples of all rounds. `kernel` has the samples on the kernel,
    /// and `ours` the samples on Tidelane, both in the order of the rounds.
    pub fn take(&mut self, kernel: &[Sample], ours: &[Sample]) {
        let sides = [kernel, ours];
        let of = |samples: &[Sample], value: fn(&Sample) -> f64| {
            machine::median(&samples.iter().map(value).collect::<Vec<f64>>())
        };
        self.rate = sides.map(|samples| of(samples, |sample| sample.rate));
        self.cpu_ms = sides.map(|samples| of(samples, |sample| sample.cpu_ms));
        self.p99_us = sides.map(|samples| {
            let printed = samples.iter().all(|sample| sample.p99_us.is_some());
            printed.then(|| of(samples, |sample| sample.p99_us.unwrap_or(0.0)))
        });
        let pairs = ours.iter().zip(kernel);
        let ratios: Vec<f64> = pairs.map(|(t, k)| t.rate / k.rate.max(1e-9)).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        self.ratio = [machine::median(&ratios), least, most];
        self.rounds = ratios.len();
    }
}

impl Row {
    /// Returns a row without results.
    pub fn new(entry: &Entry) -> Self {
        Self {
            name: entry.name.clone(),
            title: entry.title.clone(),
            kind: entry.kind.clone(),
            version: String::new(),
            commit: machine::commit(),
            skipped: None,
            cells: Vec::new(),
            load: None,
        }
    }

    /// Adds a cell and prints it.
    pub fn add(&mut self, condition: Condition, sides: Sides, cell: Cell) {
        let Cell { mark, note } = &cell;
        println!(
            "  {:<12} {:<20} {mark:?} {note}",
            condition.name(),
            sides.name()
        );
        self.cells.push(Placed {
            condition,
            sides,
            cell,
        });
    }

    /// Prints the reason for which the program was skipped, and the load. [`Self::add`] has already
    /// printed the cells.
    pub fn print(&self) {
        if let Some(why) = &self.skipped {
            println!("  skipped: {why}");
        }
        if let Some(load) = &self.load {
            println!(
                "  load         {}",
                table::load_columns(Some(load)).join(" | ")
            );
            load.failed
                .iter()
                .for_each(|why| println!("  the load failed: {why}"));
        }
    }

    fn cell(&self, condition: Condition, sides: Sides) -> Option<&Cell> {
        let here = |placed: &&Placed| (placed.condition, placed.sides) == (condition, sides);
        self.cells.iter().find(here).map(|placed| &placed.cell)
    }
}

impl Results {
    /// Reads the kept rows from `result.json` in `folder`. Without this file, there are no rows.
    pub fn open(folder: &Path) -> Result<Self, Stop> {
        let text = fs::read_to_string(folder.join("result.json")).unwrap_or_default();
        let rows: Vec<Row> = if text.is_empty() {
            Vec::new()
        } else {
            serde_json::from_str::<Kept>(&text)?.rows
        };
        let rows = rows
            .into_iter()
            .map(|row| (row.name.clone(), row))
            .collect();
        Ok(Self {
            folder: folder.to_owned(),
            rows,
        })
    }

    /// Returns true if every failed cell of `row` also failed in the program's kept row.
    pub fn no_worse(&self, row: &Row) -> bool {
        let failed = |cell: Option<&Cell>| cell.is_some_and(|cell| cell.mark == Mark::Failed);
        let before = self.rows.get(&row.name);
        row.cells
            .iter()
            .filter(|placed| failed(Some(&placed.cell)))
            .all(|placed| {
                failed(before.and_then(|before| before.cell(placed.condition, placed.sides)))
            })
    }

    /// Replaces a row and writes `result.json` and `TABLE.md`.
    ///
    /// Reads `result.json` again first, because another run may have changed it. If the program was
    /// skipped and has an old row, the old row stays.
    pub fn keep(&mut self, row: Row) -> Result<(), Stop> {
        fs::create_dir_all(tools_dir())?;
        let lock = fs::File::create(tools_dir().join("results.lock"))?;
        lock.lock()?;
        *self = Self::open(&self.folder)?;
        if row.skipped.is_none() || !self.rows.contains_key(&row.name) {
            self.rows.insert(row.name.clone(), row);
        }
        self.write()
    }

    /// Writes `result.json` and `TABLE.md`.
    pub fn write(&self) -> Result<(), Stop> {
        let mut rows: Vec<Row> = self.rows.values().cloned().collect();
        rows.sort_by(|a, b| (&a.kind, &a.name).cmp(&(&b.kind, &b.name)));
        let kept = Kept {
            machine: machine::describe(),
            rows,
        };
        let json = serde_json::to_string_pretty(&kept)? + "\n";
        fs::write(self.folder.join("result.json"), json)?;
        fs::write(self.folder.join("TABLE.md"), table::text(&kept))?;
        Ok(())
    }
}

/// The content of `result.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Description of the machine that wrote the file.
    machine: String,
    rows: Vec<Row>,
}
