//! The catalogue: a file of `catalog/` for each suite.
//!
//! Commands may contain names of places: `{source}` (the suite's source), `{place}` (the folder of
//! its builds), `{part}` (the part that runs) and, in repetitions, `{cases}`.

use std::path::Path;

use serde::Deserialize;
use tidelane_programs::folder;
use tidelane_tests::Stop;

use crate::reads::Reads;

/// The entry of a suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Name of the file without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// The title of its row.
    pub title: String,
    /// A shell command in `{source}` that prints the version.
    pub version: String,
    /// Debian packages for building and running.
    #[serde(default)]
    pub packages: Vec<String>,
    /// The source, if the packages do not contain the suite.
    pub source: Option<Source>,
    /// A shell command in `{source}` that builds the suite; executed once.
    pub build: Option<String>,
    /// A shell command in `{source}` that runs one part, or all of a suite without parts.
    pub command: String,
    /// The format of its output.
    pub reads: Reads,
    /// Parts, which run in sequence.
    #[serde(default)]
    pub parts: Vec<String>,
    /// Time limit of a part.
    pub seconds: u64,
    /// The repetition of single cases; without it, whole parts are repeated.
    pub again: Option<Again>,
    /// Cases that may differ.
    #[serde(default)]
    pub differs: Vec<Differs>,
    /// Cases that the command omits.
    #[serde(default)]
    pub left_out: Vec<Differs>,
}

/// The origin of a source.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Source {
    /// A source package of Debian.
    Debian(String),
    /// A crate, as `NAME VERSION`.
    Crate(String),
}

/// The command that repeats cases.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// A shell command in `{source}`.
    pub command: String,
    /// The text of a case within `{cases}`, such as `-m {case}`.
    pub case: String,
    /// True if the command takes one case only.
    #[serde(default)]
    pub single: bool,
}

/// A pattern of cases, with a reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differs {
    /// The name of the case; `*` matches any text.
    pub case: String,
    /// The reason.
    pub why: String,
}

impl Suite {
    /// Returns the chosen parts, or all. A suite without parts is one part without a name.
    pub fn parts(&self, chosen: &[String]) -> Result<Vec<String>, Stop> {
        if let Some(part) = chosen.iter().find(|part| !self.parts.contains(part)) {
            return Err(Stop::Fail(format!("{} has no part {part}", self.name)));
        }
        Ok(match (chosen.is_empty(), self.parts.is_empty()) {
            (false, _) => chosen.to_vec(),
            (true, false) => self.parts.clone(),
            (true, true) => vec![String::new()],
        })
    }

    /// Returns the reason for which this case may differ, if there is one.
    pub fn why_differs(&self, case: &str) -> Option<&str> {
        let differs = self.differs.iter();
        let mut fitting = differs.filter(|differs| fits(&differs.case, case));
        fitting.next().map(|differs| differs.why.as_str())
    }
}

/// Returns true if `text` matches `pattern`, in which `*` matches any text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(tail) = text.strip_prefix(head) else {
        return false;
    };
    let mut ends = tail.char_indices().map(|(index, _)| index);
    ends.any(|index| fits(rest, &tail[index..])) || fits(rest, "")
}

/// Reads the suites with these names, or all, in the order of their names.
pub fn read(folder: &Path, names: &[String]) -> Result<Vec<Suite>, Stop> {
    let named = |(name, suite)| Suite { name, ..suite };
    let mut suites: Vec<Suite> = folder::read(folder, names)?
        .into_iter()
        .map(named)
        .collect();
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("catalog");
        let suites = read(&folder, &[]).expect("a catalogue");
        assert!(!suites.is_empty());
        for suite in suites {
            assert!(suite.seconds <= 1200, "{} may take too long", suite.name);
        }
    }

    #[test]
    fn stars_stand_for_any_text() {
        assert!(fits("a*c", "abbc"));
        assert!(fits("a*", "a"));
        assert!(fits("*b*", "abc"));
        assert!(!fits("a*c", "abb"));
        assert!(!fits("ab", "abc"));
    }
}
