//! `tidelane rules`: the operator's rules, each with the number of connections that it matched.

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

/// Prints one line per rule in their order, the default last.
pub fn rules(service: &ServiceName) -> Result<(), Failure> {
    let answer: Answer = service.ask("rules")?;
    println!("{:>12}  RULE", "HITS");
    for Rule { rule, hits } in answer.rules {
        println!("{hits:>12}  {rule}");
    }
    Ok(())
}
