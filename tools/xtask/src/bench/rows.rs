//! The rows in the result of a figure (an experiment of `bench/figures`): medians, ratios and
//! targets.
//!
//! A ratio divides Tidelane's value by the baseline's value of the same round. The baseline is
//! usually the kernel. A row has the median, the least and the largest of the rounds' ratios.

use serde_json::{Value, json};
use tidelane_tests::machine::{commit, describe, median};

use super::heading::Heading;

/// One row of the result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// Name of the metric.
    pub metric: String,
    /// True if a higher value is better.
    pub higher_is_better: bool,
    /// The comparison of the stacks. `None` for a row without a comparison.
    pub pair: Option<Pair>,
    /// The value of a row without a comparison. `None` for a row with a comparison.
    pub value: Option<f64>,
    /// Number of rounds.
    pub rounds: usize,
    /// Target for the ratio or the value, if there is one.
    pub target: Option<f64>,
}

/// The comparison of Tidelane with the kernel, or with another baseline, in one metric.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Median of the baseline's values.
    pub baseline: f64,
    /// Median of Tidelane's values.
    pub tidelane: f64,
    /// Median, least and largest ratio of Tidelane's value to the baseline's value of the same
    /// round.
    pub ratio: [f64; 3],
}

impl Row {
    /// Returns `Some(true)` if the target was reached. Returns `None` if the row has no target, or
    /// neither a comparison nor a value.
    pub fn reached(&self) -> Option<bool> {
        let target = self.target?;
        let got = self.pair.map(|pair| pair.ratio[0]).or(self.value)?;
        Some(if self.higher_is_better {
            got >= target
        } else {
            got <= target
        })
    }
}

/// Returns a row that compares the stacks in one metric. `baseline` and `tidelane` have the values
/// in the order of the rounds. Returns `None` if one of the two was not measured.
pub fn pair_row(
    heading: &Heading,
    case: &str,
    (metric, higher_is_better): (&str, bool),
    baseline: Option<Vec<f64>>,
    tidelane: Option<Vec<f64>>,
) -> Option<Row> {
    let (baseline, tidelane) = (baseline?, tidelane?);
    let ratios: Vec<f64> = tidelane
        .iter()
        .zip(&baseline)
        .map(|(t, b)| t / b.max(1e-9))
        .collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let ratio = [median(&ratios), least, most];
    Some(Row {
        case: case.to_owned(),
        metric: metric.to_owned(),
        higher_is_better,
        pair: Some(Pair {
            baseline: median(&baseline),
            tidelane: median(&tidelane),
            ratio,
        }),
        value: None,
        rounds: ratios.len(),
        target: heading.target(case, metric),
    })
}

/// Returns a row without a comparison. `values` has one value for each round. The row has the
/// median of `values`, and says that a higher value is better.
pub fn value_row(heading: &Heading, case: &str, metric: &str, values: &[f64]) -> Row {
    Row {
        case: case.to_owned(),
        metric: metric.to_owned(),
        higher_is_better: true,
        pair: None,
        value: Some(median(values)),
        rounds: values.len(),
        target: heading.target(case, metric),
    }
}

/// Returns a row without a comparison, as [`value_row`] does, which says that a lower value is
/// better.
pub fn cost_row(heading: &Heading, case: &str, metric: &str, values: &[f64]) -> Row {
    Row {
        higher_is_better: false,
        ..value_row(heading, case, metric, values)
    }
}

/// Returns the result of a figure as JSON. All figures have the same schema.
pub fn to_json(figure: &str, heading: &Heading, rows: &[Row], command: &str) -> Value {
    json!({
        "figure": figure,
        "commit": commit(),
        "machine": describe(),
        "command": command,
        "placement": heading.placement,
        "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}

fn row_json(row: &Row) -> Value {
    let better = if row.higher_is_better {
        "higher"
    } else {
        "lower"
    };
    let mut json = json!({ "case": row.case, "metric": row.metric, "better": better });
    if let Some(Pair {
        baseline,
        tidelane,
        ratio,
    }) = row.pair
    {
        json["kernel"] = round(baseline).into();
        json["tidelane"] = round(tidelane).into();
        json["ratio"] = round(ratio[0]).into();
        json["ratio_min"] = round(ratio[1]).into();
        json["ratio_max"] = round(ratio[2]).into();
    }
    if let Some(value) = row.value {
        json["value"] = round(value).into();
    }
    json["rounds"] = row.rounds.into();
    if let Some(target) = row.target {
        json["target"] = target.into();
    }
    json
}

/// Rounds to four significant digits, because further digits would be noise. Returns 0 for a value
/// that is not finite.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Prints the rows as a table, and marks the targets as reached or missed.
pub fn print_table(heading: &Heading, rows: &[Row]) {
    println!(
        "\n{} ({} rounds)\n{}\n",
        heading.title, heading.rounds, heading.placement
    );
    let width = rows.iter().map(|row| row.case.len()).max().unwrap_or(0);
    println!(
        "{:<width$}  {:<34} {:>10} {:>10} {:>7} {:>15} {:>7}",
        "case", "metric", "kernel", "tidelane", "ratio", "spread", "target"
    );
    for row in rows {
        let head = format!("{:<width$}  {:<34}", row.case, row.metric);
        let target = match (row.target, row.reached()) {
            (Some(target), Some(true)) => format!("{target:>7}  reached"),
            (Some(target), _) => format!("{target:>7}  MISSED"),
            (None, _) => String::new(),
        };
        match (row.pair, row.value) {
            (
                Some(Pair {
                    baseline,
                    tidelane,
                    ratio: [ratio, least, most],
                }),
                _,
            ) => {
                let spread = format!("{least:.2} to {most:.2}");
                let (baseline, tidelane) = (number(baseline), number(tidelane));
                println!("{head} {baseline:>10} {tidelane:>10} {ratio:>7.2} {spread:>15} {target}");
            }
            (None, Some(value)) => {
                println!(
                    "{head} {:>10} {:>10} {:>7} {:>15} {target}",
                    "",
                    number(value),
                    "",
                    ""
                );
            }
            (None, None) => {}
        }
    }
    println!();
}

/// Formats a number of at least 100 without decimals, and any other number with two decimals.
pub fn number(value: f64) -> String {
    let digits = if value >= 100.0 { 0 } else { 2 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_four_digits() {
        assert_eq!(round(123_456.0), 123_500.0);
        assert_eq!(round(1.234_56), 1.235);
        assert_eq!(round(0.0), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0, 10.0]), 2.5);
    }

    /// Checks the results in `bench/figures`.
    #[test]
    fn less_time_and_fewer_calls_are_better() {
        let figures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/figures");
        let mut costs = 0;
        for figure in std::fs::read_dir(figures).expect("the folder of the figures") {
            let path = figure.expect("a figure").path().join("result.json");
            let Ok(result) = std::fs::read_to_string(&path) else {
                continue;
            };
            let result: Value = serde_json::from_str(&result).expect("JSON");
            for row in result["rows"].as_array().expect("rows") {
                let metric = row["metric"].as_str().expect("a metric");
                if metric.ends_with("_us") || metric.ends_with("_per_request") {
                    assert_eq!(row["better"], "lower", "{}: {row}", path.display());
                    costs += 1;
                }
            }
        }
        assert!(costs > 0, "no figure has a time");
    }
}
