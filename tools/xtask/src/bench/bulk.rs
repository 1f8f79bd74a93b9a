//! Bulk figures, which compare pairings by the goodput of one-way streams. A pairing is a
//! combination of the sender's and the receiver's stack, such as "tidelane to kernel".
//!
//! Each measurement uses a new wire (a veth pair between two network namespaces), so that the
//! measurement does not start with queues or cached routes of an earlier measurement.

use std::{collections::BTreeMap, io::Write};

use tidelane_tests::{Stop, machine::median};

use super::{
    heading::Heading,
    plot,
    rows::{Row, cost_row, pair_row},
};

mod measure;
mod plan;

use measure::{Sample, measure};
pub use plan::{BulkPlan, Case, Pairing};

/// Index of a case in the plan, and the stacks of the two ends.
type Key = (usize, Pairing);
/// A function that computes one metric of a sample.
type Metric = fn(&Sample) -> f64;

/// Metrics in which each pairing is compared with "kernel to kernel". Each entry has the name, true
/// if more is better, and the function.
const METRICS: &[(&str, bool, Metric)] = &[
    ("goodput_bps", true, |s| s.goodput_bps),
    ("fairness_jain", true, |s| s.jain),
    ("goodput_bps_per_core", true, |s| {
        s.goodput_bps / s.busy.max(0.01)
    }),
];
/// Metrics that are reported without a comparison.
const COUNTS: &[(&str, Metric)] = &[
    ("retransmitted_segments", |s| s.retransmitted),
    ("needless_retransmissions", |s| s.dsacks),
];

/// The samples of each key, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<Key, Vec<Sample>>);

/// Runs all rounds of a plan.
pub fn run(plan: &BulkPlan) -> Result<Results, Stop> {
    let heading = plan.heading();
    heading.print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        for (index, case) in plan.cases.iter().enumerate() {
            let mut pairings = plan.all_pairings();
            if round % 2 == 1 {
                pairings.reverse();
            }
            for pairing in pairings {
                let sample = measure(plan, case, pairing)?;
                print_sample(case, pairing, &sample);
                results.0.entry((index, pairing)).or_default().push(sample);
            }
        }
    }
    Ok(results)
}

fn print_sample(case: &Case, pairing: Pairing, sample: &Sample) {
    println!(
        "  {:<16} {:<21} {:>7.3} Gbit/s  jain {:.2}  sent again {:>6.0}, needlessly {:>5.0}",
        case.name,
        pairing.name(),
        sample.goodput_bps / 1e9,
        sample.jain,
        sample.retransmitted,
        sample.dsacks,
    );
    let _ = std::io::stdout().flush();
}

impl Results {
    /// Returns the values of a metric in the order of the rounds. Returns `None` if there are no
    /// samples of the key.
    fn values(&self, key: Key, metric: impl Fn(&Sample) -> f64) -> Option<Vec<f64>> {
        Some(self.0.get(&key)?.iter().map(metric).collect())
    }

    /// Returns the goodput of each round as a share of the goodput of the first case in the same
    /// round, with the same pairing. Returns `None` if the key or the first case has no samples.
    fn kept(&self, key: Key) -> Option<Vec<f64>> {
        let (all, clean) = (self.0.get(&key)?, self.0.get(&(0, key.1))?);
        let share = |(now, then): (&Sample, &Sample)| now.goodput_bps / then.goodput_bps.max(1.0);
        Some(all.iter().zip(clean).map(share).collect())
    }

    /// Returns the rows of the result.
    pub fn rows(&self, plan: &BulkPlan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = Vec::new();
        for index in 0..plan.cases.len() {
            for pairing in plan.all_pairings() {
                self.case_rows(plan, &heading, (index, pairing), &mut rows);
            }
        }
        rows
    }

    /// Adds the rows of one case and pairing to `rows`.
    fn case_rows(&self, plan: &BulkPlan, heading: &Heading, key: Key, rows: &mut Vec<Row>) {
        let (index, pairing) = key;
        let case = format!("{}, {}", plan.cases[index].name, pairing.name());
        let kernel = (index, Pairing::KernelToKernel);
        if pairing != Pairing::KernelToKernel {
            for (metric, higher, of) in METRICS {
                let pair = (self.values(kernel, of), self.values(key, of));
                rows.extend(pair_row(heading, &case, (metric, *higher), pair.0, pair.1));
            }
            if index > 0 && plan.cases[0].is_clean() {
                let pair = (self.kept(kernel), self.kept(key));
                let metric = ("goodput_kept", true);
                rows.extend(pair_row(heading, &case, metric, pair.0, pair.1));
            }
        }
        for (metric, of) in COUNTS {
            let values = self.values(key, of).unwrap_or_default();
            rows.push(cost_row(heading, &case, metric, &values));
        }
    }

    /// Returns the plot: a group of bars for each case, with one bar for each pairing.
    pub fn svg(&self, plan: &BulkPlan) -> String {
        let pairings = plan.all_pairings();
        let names: Vec<&str> = pairings.iter().map(|pairing| pairing.name()).collect();
        let groups: Vec<(&str, Vec<f64>)> = plan
            .cases
            .iter()
            .enumerate()
            .map(|(index, case)| {
                let of = |pairing: &Pairing| {
                    let values = self.values((index, *pairing), |s| s.goodput_bps / 1e9);
                    median(&values.unwrap_or_default())
                };
                (case.name.as_str(), pairings.iter().map(of).collect())
            })
            .collect();
        plot::bars(&plan.title, "Gbit/s", &names, &groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        title = "t"
        paper = "p"
        rounds = 2
        seconds = 1.0
        warmup = 0.1
        congestion = "cubic"
        sender_cpus = "0"
        receiver_cpus = "1"
        flows = 4
        offloads = false
        pairings = ["tidelane-to-kernel"]
        [[case]]
        name = "clean"
        middle = true
        [[case]]
        name = "loss"
        loss_ppm = 1000
        [[target]]
        case = "loss, tidelane to kernel"
        metric = "goodput_kept"
        target = 1.0
    "#;

    #[test]
    fn the_remaining_share_compares_the_same_pairing_and_round() {
        let plan: BulkPlan = toml::from_str(PLAN).expect("a plan");
        let mut results = Results::default();
        for (key, rates) in [
            ((0, Pairing::KernelToKernel), [10.0, 20.0]),
            ((0, Pairing::TidelaneToKernel), [8.0, 8.0]),
            ((1, Pairing::KernelToKernel), [5.0, 10.0]),
            ((1, Pairing::TidelaneToKernel), [6.0, 8.0]),
        ] {
            let sample = |rate: f64| Sample {
                goodput_bps: rate,
                retransmitted: 3.0,
                ..Default::default()
            };
            results.0.insert(key, rates.map(sample).to_vec());
        }
        let rows = results.rows(&plan);
        let find = |case: &str, metric: &str| {
            let found = rows.iter().find(|r| r.case == case && r.metric == metric);
            found.unwrap_or_else(|| panic!("no row {case} {metric}"))
        };
        let kept = find("loss, tidelane to kernel", "goodput_kept");
        let pair = kept.pair.expect("both sides");
        assert_eq!((pair.baseline, pair.tidelane), (0.5, 0.875));
        assert_eq!(pair.ratio, [1.75, 1.5, 2.0]);
        assert_eq!(kept.reached(), Some(true));
        let sent_again = find("clean, kernel to kernel", "retransmitted_segments");
        assert_eq!(
            (sent_again.value, sent_again.higher_is_better),
            (Some(3.0), false)
        );
        assert!(results.svg(&plan).contains("tidelane to kernel"));
    }
}
