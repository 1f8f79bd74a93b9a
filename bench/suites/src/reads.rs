//! Parsers for the output of test suites.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod cargo;
mod redis;
mod tap;
mod tinytest;
mod unittest;

/// The result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The suite did not run the case, by its own choice.
    Skipped,
    /// The case passed.
    Passed,
    /// The suite reports a failure.
    Failed,
    /// The case began without an end, or the suite did not reach it.
    Lost,
}

/// Cases by name.
pub type Cases = BTreeMap<String, Verdict>;

/// Output formats of suites.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// Python's unittest, verbose.
    Unittest,
    /// TAP lines whose descriptions are the names, as libuv's.
    TapNamed,
    /// TAP lines whose numbers are the names.
    TapNumbered,
    /// libevent's tinytest.
    Tinytest,
    /// Rust's own test programs.
    Cargo,
    /// The test suite of redis.
    Redis,
}

impl Reads {
    /// Parses the cases of a part's output. Names get the part as prefix unless the suite does so.
    pub fn read(self, part: &str, text: &str) -> Cases {
        let cases = match self {
            Self::Unittest => return unittest::read(text),
            Self::TapNamed => tap::read(text, true),
            Self::TapNumbered => tap::read(text, false),
            Self::Tinytest => return tinytest::read(text),
            Self::Cargo => cargo::read(text),
            Self::Redis => redis::read(text),
        };
        if part.is_empty() {
            return cases;
        }
        let named = |(case, verdict)| (format!("{part}: {case}"), verdict);
        cases.into_iter().map(named).collect()
    }
}

/// Records a verdict. If a name occurs twice, the worse verdict counts.
fn note(cases: &mut Cases, name: &str, verdict: Verdict) {
    let known = cases.entry(name.to_owned()).or_insert(verdict);
    *known = verdict.max(*known);
}
