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

/// A case that, even after repetitions, did not pass on both stacks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    case: String,
    kernel: Verdict,
    tidelane: Verdict,
    /// The reason that the catalogue gives for the difference, if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// A case that at first passed on only one stack, and passed on the other stack in a repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flaky {
    case: String,
    /// The stack on which the case was repeated.
    stack: String,
    /// Number of the repetition in which the case passed, from 1.
    repeat: usize,
}

/// Cases that the suite's command omits, and the reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    cases: String,
    why: String,
}

/// The results of one suite with one set of options, a row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    name: String,
    title: String,
    /// The version that the suite prints.
    pub version: String,
    /// Commit of Tidelane.
    commit: String,
    /// Options of `tidelane run`.
    pub run_options: String,
    /// The reason why the suite was not run, if it was not.
    pub skipped: Option<String>,
    /// Number of all cases.
    cases: usize,
    passed_on_both: usize,
    skipped_on_both: usize,
    /// Cases that passed on only one stack.
    differ: Vec<Finding>,
    /// Cases that passed on neither stack, except for those that were skipped on both stacks.
    passed_on_neither: Vec<Finding>,
    flaky: Vec<Flaky>,
    left_out: Vec<LeftOut>,
    /// Numbers of opens in the run on the kernel, and in the run on Tidelane, without the
    /// repetitions of cases.
    pub connections: [Opens; 2],
}

/// The kept rows of all suites, by the suite's name and the options of `tidelane run`.
#[derive(Debug)]
pub struct Results {
    /// Folder of `result.json` and `TABLE.md`.
    folder: PathBuf,
    rows: BTreeMap<(String, String), Row>,
}

/// The content of `result.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    machine: String,
    rows: Vec<Row>,
}

impl Row {
    /// Returns a row without cases.
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

    /// Adds the cases of one part of the suite.
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

    /// Prints the row.
    pub fn print(&self) {
        print!("{}{}", table::line(self), table::findings(self));
    }
}

impl Results {
    /// Reads the kept rows of a folder.
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

    /// Replaces a row and writes `result.json` and `TABLE.md`.
    ///
    /// Reads `result.json` again first, because another run may have changed it. A suite that was
    /// skipped keeps its old row.
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

    /// Writes `result.json` and `TABLE.md`.
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
