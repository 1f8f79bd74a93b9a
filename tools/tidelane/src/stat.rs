//! `tidelane stat`: prints the counters of the service (`tidelaned`).

use std::collections::BTreeMap;

use clap::Args;
use serde::Deserialize;

use crate::{admin::ServiceName, failure::Failure, firewall::Firewall};

mod users;

/// Options of `stat`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    service: ServiceName,
    /// Show usage and limits of each user instead of the counters
    #[arg(long)]
    users: bool,
    /// Show counters that are zero, too
    #[arg(long, short)]
    all: bool,
    /// Print the service's answer unchanged, as JSON
    #[arg(long)]
    json: bool,
}

/// The service's answer to the request `stat`.
#[derive(Deserialize, Debug)]
struct Answer {
    /// Rules of the host's firewall that do not apply to the service's connections.
    #[serde(default)]
    firewall: Firewall,
    /// The value of each counter, by the counter's name.
    counters: BTreeMap<String, u64>,
    /// Features that the kernel or the NIC's driver lacks, each with its effect.
    #[serde(default)]
    missing_features: Vec<String>,
}

/// Prints the counters in the order of their names, or the table of users.
pub fn stat(options: &Options) -> Result<(), Failure> {
    if options.json {
        let what = if options.users { "users" } else { "stat" };
        println!("{}", options.service.ask::<serde_json::Value>(what)?);
        return Ok(());
    }
    if options.users {
        let answer: users::Answer = options.service.ask("users")?;
        print!("{}", users::table(&answer, options.all));
        return Ok(());
    }
    let answer: Answer = options.service.ask("stat")?;
    answer.firewall.warn();
    for text in &answer.missing_features {
        eprintln!("tidelane: {text}");
    }
    print!("{}", table(&answer.counters, options.all));
    Ok(())
}

/// Returns a line for each counter. If `all` is false, counters that are zero have no line.
fn table(counters: &BTreeMap<String, u64>, all: bool) -> String {
    let shown = || counters.iter().filter(|(_, value)| all || **value != 0);
    let width = shown().map(|(name, _)| name.len()).max().unwrap_or(0);
    shown()
        .map(|(name, value)| format!("{name:<width$} {value:>16}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out_by_default() {
        let counters = BTreeMap::from([("b_long".to_owned(), 7), ("a".to_owned(), 0)]);
        assert_eq!(table(&counters, false), "b_long                7\n");
        assert_eq!(table(&counters, true).lines().count(), 2);
        assert!(table(&counters, true).starts_with("a      "));
    }
}
