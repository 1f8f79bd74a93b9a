//! `tidelane rules`: prints the rules of the configuration file of the service (`tidelaned`), each
//! with the number of connections that it matched.

use serde::Deserialize;

use crate::{admin::ServiceName, failure::Failure};

/// The service's answer to the request `rules`.
#[derive(Deserialize, Debug)]
struct Answer {
    rules: Vec<Rule>,
}

/// A rule of the configuration, or the default.
#[derive(Deserialize, Debug)]
struct Rule {
    /// Text of the rule.
    rule: String,
    /// Number of connections that the rule matched.
    hits: u64,
}

/// Prints one line for each rule, in the order in which the service applies the rules. The last
/// line is the default, which applies if no rule matches.
pub fn rules(service: &ServiceName) -> Result<(), Failure> {
    let answer: Answer = service.ask("rules")?;
    println!("{:>12}  RULE", "HITS");
    for Rule { rule, hits } in answer.rules {
        println!("{hits:>12}  {rule}");
    }
    Ok(())
}
