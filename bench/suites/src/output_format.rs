//! Parsers for the output of test suites.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod cargo;
mod redis;
mod tap;
mod tinytest;
mod unittest;

/// The result of a case in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The suite skipped the case.
    Skipped,
    /// The case passed.
    Passed,
    /// The suite reports that the case failed.
    Failed,
    /// The output has no result of the case: the case did not end, or was not reached.
    Lost,
}

/// Results by the names of the cases.
pub type Cases = BTreeMap<String, Verdict>;

/// Output formats of suites.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// The verbose output of Python's unittest.
    Unittest,
    /// TAP lines. The name of a case is its description, as in libuv.
    TapNamed,
    /// TAP lines. The name of a case is its number.
    TapNumbered,
    /// libevent's tinytest.
    Tinytest,
    /// Rust's test programs (libtest).
    Cargo,
    /// The test suite of redis.
    Redis,
}

impl OutputFormat {
    /// Parses the output `text` of a part. The names of cases get the part as a prefix, except in
    /// the formats whose names are unique without the part.
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

/// Records a verdict. If a name occurs twice, the greater verdict counts: for example, failed
/// exceeds passed, and passed exceeds skipped.
fn add_verdict(cases: &mut Cases, name: &str, verdict: Verdict) {
    let known = cases.entry(name.to_owned()).or_insert(verdict);
    *known = verdict.max(*known);
}
