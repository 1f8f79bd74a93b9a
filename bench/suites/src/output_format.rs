//! Parsers for the output of test suites. A case is a single test of a suite. A part is a group of
//! cases that one command runs.

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
    /// Lines of the Test Anything Protocol (TAP). The name of a case is its description, as in the
    /// suite of libuv.
    TapNamed,
    /// Lines of TAP. The name of a case is its number.
    TapNumbered,
    /// libevent's tinytest.
    Tinytest,
    /// Rust's test programs (libtest).
    Cargo,
    /// The test suite of redis.
    Redis,
}

impl OutputFormat {
    /// Parses the output `text` of a part. If the format has names that are unique in the whole
    /// suite, the names of the cases stay unchanged. In the other formats, the names of the cases
    /// get the name of the part as a prefix, if the part has a name.
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

/// Records a verdict for the case `name`. If the case already has a verdict, the greater verdict
/// counts, in the order of the variants of [`Verdict`].
fn add_verdict(cases: &mut Cases, name: &str, verdict: Verdict) {
    let known = cases.entry(name.to_owned()).or_insert(verdict);
    *known = verdict.max(*known);
}
