//! The fields that the plans of all kinds of figures have in common. A figure is an experiment of
//! `bench/figures`, and its plan describes the measurements.

use serde::Deserialize;

/// The fields that the plans of all kinds of figures have in common.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds. A round makes each measurement of the plan once.
    pub rounds: u32,
    /// Description of the placement: the CPUs of the programs, and further conditions such as the
    /// congestion control.
    pub placement: String,
    /// Targets for single rows.
    pub targets: Vec<Target>,
}

impl Heading {
    /// Prints the title, the source and the placement.
    pub fn print(&self) {
        println!("{}\n{}\n{}\n", self.title, self.paper, self.placement);
    }

    /// Returns the target of the row with this case and metric. Returns `None` if the row has no
    /// target.
    pub fn target(&self, case: &str, metric: &str) -> Option<f64> {
        let found = self
            .targets
            .iter()
            .find(|t| t.case == case && t.metric == metric);
        found.map(|target| target.target)
    }
}

/// The target of one row of the result.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Case of the row.
    pub case: String,
    /// Metric of the row.
    pub metric: String,
    /// Target for the ratio of Tidelane's value to the baseline's value (mostly the kernel's), or
    /// for the value of a row without a comparison.
    pub target: f64,
}
