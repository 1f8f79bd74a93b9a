//! What suites print about their cases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod cargo;
mod redis;
mod tap;
mod tinytest;
mod unittest;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The suite did not run the case, by its own choice.
    Skipped,
    /// It passed.
    Passed,
    /// The suite says that it failed.
    Failed,
    /// It began and has no end, or the suite never came to it.
    Lost,
}

/// Cases by name.
pub type Cases = BTreeMap<String, Verdict>;

/// Suites whose output can be read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// Python's unittest, verbose.
    Unittest,
    /// Lines of TAP whose descriptions are names, as libuv's.
    TapNamed,
    /// Lines of TAP; the numbers are the names.
    TapNumbered,
    /// libevent's tinytest.
    Tinytest,
    /// Rust's own test programs.
    Cargo,
    /// The test suite of redis.
    Redis,
}

impl Reads {
    /// The cases of a part's output. Names begin with the part where the suite's own do not.
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

/// Notes a verdict. Of a name that occurs twice the worse one counts.
fn note(cases: &mut Cases, name: &str, verdict: Verdict) {
    let known = cases.entry(name.to_owned()).or_insert(verdict);
    *known = verdict.max(*known);
}
