//! The fields that the plans of all kinds of figures have in common.

use serde::Deserialize;

/// The fields that the plans of all kinds of figures have in common.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds.
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

    /// Returns the target of a row, if it has one.
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
    /// Target for the ratio of Tidelane to the kernel, or for the value of a row without a
    /// comparison.
    pub target: f64,
}
