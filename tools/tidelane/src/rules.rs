//! `tidelane rules`: the operator's rules, and how many connections each decided on.

use serde::Deserialize;

use crate::{admin::ServiceName, failure::Failure};

#[derive(Deserialize, Debug)]
struct Answer {
    rules: Vec<Rule>,
}

#[derive(Deserialize, Debug)]
struct Rule {
    rule: String,
    hits: u64,
}

/// Prints a line per rule, in their order; the default is the last.
pub fn rules(service: &ServiceName) -> Result<(), Failure> {
    let answer: Answer = service.ask("rules")?;
    println!("{:>12}  RULE", "HITS");
    for Rule { rule, hits } in answer.rules {
        println!("{hits:>12}  {rule}");
    }
    Ok(())
}
