//! The kept results of all suites: `result.json` has a row for each suite, and `TABLE.md` shows the
//! rows as a table.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tidelane_tests::{Stop, machine};

use crate::{
    catalog::Suite, output_format::Verdict, pair::Pair, prepare::suites_dir, testbed::Opens,
};

mod table;

/// A case that passed on only one stack even after repetitions, or that passed on neither stack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the case.
    case: String,
    /// The verdict on the kernel.
    kernel: Verdict,
    /// The verdict on Tidelane.
    tidelane: Verdict,
    /// The reason that the catalogue gives for the difference, if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// A case that at first passed on only one stack, and passed on the other stack in a repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flaky {
    /// Name of the case.
    case: String,
    /// The stack on which the case was repeated: `kernel` or `tidelane`.
    stack: String,
    /// Number of the repetition in which the case passed, from 1.
    repeat: usize,
}

/// Cases that the suite's command omits, and the reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    /// The cases, as the suite's catalogue entry describes them.
    cases: String,
    /// The reason.
    why: String,
}

/// The results of one suite with one set of options of `tidelane run`: a row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the suite.
    name: String,
    /// Title of the row.
    title: String,
    /// The first line that the suite's version command prints.
    pub version: String,
    /// Commit of Tidelane at which the suite was run.
    commit: String,
    /// Options of `tidelane run`.
    pub run_options: String,
    /// The reason why the suite was not run, or why its run failed. `None` after a complete run.
    pub skipped: Option<String>,
    /// Number of all cases that the suite's command runs.
    cases: usize,
    /// Number of cases that passed on both stacks, if necessary in a repetition.
    passed_on_both: usize,
    /// Number of cases that were skipped on both stacks.
    skipped_on_both: usize,
    /// Cases that passed on only one stack, even after repetitions.
    differ: Vec<Finding>,
    /// Cases that passed on neither stack, except for those that were skipped on both stacks.
    passed_on_neither: Vec<Finding>,
    /// Cases that passed only in a repetition on one of the stacks.
    flaky: Vec<Flaky>,
    /// Cases that the suite's command omits.
    left_out: Vec<LeftOut>,
    /// Numbers of active and passive opens in the run on the kernel, and in the run on Tidelane.
    /// The opens of repeated cases do not count.
    pub connections: [Opens; 2],
}

/// The kept rows of all suites.
#[derive(Debug)]
pub struct Results {
    /// Folder of `result.json` and `TABLE.md`.
    folder: PathBuf,
    /// The rows, by the suite's name and the options of `tidelane run`.
    rows: BTreeMap<(String, String), Row>,
}

/// The content of `result.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Description of the machine that wrote the file.
    machine: String,
    rows: Vec<Row>,
}

impl Row {
    /// Returns a row of `suite` without cases.
    pub fn new(suite: &Suite, run_options: &str) -> Self {
        let left_out = suite.left_out.iter().map(|left_out| LeftOut {
            cases: left_out.case.clone(),
            why: left_out.why.clone(),
        });
        Self {
            name: suite.name.clone(),
            title: suite.title.clone(),
            version: String::new(),
            commit: machine::commit(),
            run_options: run_options.to_owned(),
            skipped: None,
            cases: 0,
            passed_on_both: 0,
            skipped_on_both: 0,
            differ: Vec::new(),
            passed_on_neither: Vec::new(),
            flaky: Vec::new(),
            left_out: left_out.collect(),
            connections: [Opens::default(); 2],
        }
    }

    /// Adds the cases of one part of the suite. `pairs` has their verdicts, by the names of the
    /// cases.
    pub fn add(&mut self, suite: &Suite, pairs: &BTreeMap<String, Pair>) {
        self.cases += pairs.len();
        for (case, pair) in pairs {
            let [kernel, tidelane] = pair.verdicts;
            let finding = || Finding {
                case: case.clone(),
                kernel,
                tidelane,
                why: suite.why_differs(case).map(str::to_owned),
            };
            match (kernel, tidelane) {
                (Verdict::Passed, Verdict::Passed) => self.passed_on_both += 1,
                (Verdict::Skipped, Verdict::Skipped) => self.skipped_on_both += 1,
                (Verdict::Passed, _) | (_, Verdict::Passed) => self.differ.push(finding()),
                _ => self.passed_on_neither.push(finding()),
            }
            let stacks = ["kernel", "tidelane"].into_iter().zip(pair.repeats);
            let repeated = stacks.filter(|(_, repeat)| *repeat > 0);
            self.flaky.extend(repeated.map(|(stack, repeat)| Flaky {
                case: case.clone(),
                stack: stack.to_owned(),
                repeat,
            }));
        }
    }

    /// Returns true if the catalogue gives a reason for each case that passed on only one stack.
    pub fn is_fine(&self) -> bool {
        self.differ.iter().all(|finding| finding.why.is_some())
    }

    /// Prints the row, and the lines for its cases.
    pub fn print(&self) {
        print!("{}{}", table::line(self), table::findings(self));
    }
}

impl Results {
    /// Reads the kept rows from `result.json` in `folder`. Without a readable file, there are no
    /// rows.
    pub fn open(folder: &Path) -> Result<Self, Stop> {
        let text = fs::read_to_string(folder.join("result.json")).unwrap_or_default();
        let rows: Vec<Row> = if text.is_empty() {
            Vec::new()
        } else {
            serde_json::from_str::<Kept>(&text)?.rows
        };
        let key = |row: &Row| (row.name.clone(), row.run_options.clone());
        Ok(Self {
            folder: folder.to_owned(),
            rows: rows.into_iter().map(|row| (key(&row), row)).collect(),
        })
    }

    /// Adds `row`, or replaces the row with the same suite and options. Writes `result.json` and
    /// `TABLE.md`.
    ///
    /// Reads `result.json` again first, because another run of this program may have changed the
    /// file. If the suite was skipped, its old row stays.
    pub fn keep(&mut self, row: Row) -> Result<(), Stop> {
        let lock = fs::File::create(suites_dir().join("results.lock"))?;
        lock.lock()?;
        *self = Self::open(&self.folder)?;
        let key = (row.name.clone(), row.run_options.clone());
        if row.skipped.is_none() || !self.rows.contains_key(&key) {
            self.rows.insert(key, row);
        }
        self.write()
    }

    /// Writes the rows to `result.json` and `TABLE.md`.
    pub fn write(&self) -> Result<(), Stop> {
        let kept = Kept {
            machine: machine::describe(),
            rows: self.rows.values().cloned().collect(),
        };
        let json = serde_json::to_string_pretty(&kept)? + "\n";
        fs::write(self.folder.join("result.json"), json)?;
        fs::write(self.folder.join("TABLE.md"), table::text(&kept))?;
        Ok(())
    }
}
