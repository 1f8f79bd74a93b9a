//! The catalogue: a file of `catalog/` for each suite.
//!
//! Commands may name places: `{source}` (the suite's source), `{place}` (the folder of what is
//! built for it), `{part}` (the part that runs) and, where cases run again, `{cases}`.

use std::path::Path;

use serde::Deserialize;
use tidelane_programs::folder;
use tidelane_tests::Stop;

use crate::reads::Reads;

/// One suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Name of the file without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// What the row shows.
    pub title: String,
    /// A shell command in `{source}` that prints the version.
    pub version: String,
    /// Debian packages that building and running need.
    #[serde(default)]
    pub packages: Vec<String>,
    /// The source, if the packages do not bring the suite.
    pub source: Option<Source>,
    /// A shell command in `{source}` that builds the suite; run once.
    pub build: Option<String>,
    /// A shell command in `{source}` that runs one part, or all of a suite without parts.
    pub command: String,
    /// Whose output it is.
    pub reads: Reads,
    /// Parts that run one after the other.
    #[serde(default)]
    pub parts: Vec<String>,
    /// How long a part may take.
    pub seconds: u64,
    /// How cases run again; without it, their part does.
    pub again: Option<Again>,
    /// Cases that may differ.
    #[serde(default)]
    pub differs: Vec<Differs>,
    /// Cases that are not run: what the command leaves out.
    #[serde(default)]
    pub left_out: Vec<Differs>,
}

/// Where a source comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Source {
    /// A source package of Debian.
    Debian(String),
    /// A crate, as `NAME VERSION`.
    Crate(String),
}

/// How some cases run again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// A shell command in `{source}`.
    pub command: String,
    /// What a case is among `{cases}`, such as `-m {case}`.
    pub case: String,
    /// The command takes one case.
    #[serde(default)]
    pub single: bool,
}

/// Cases with a reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differs {
    /// The case; `*` stands for any text.
    pub case: String,
    /// The reason.
    pub why: String,
}

impl Suite {
    /// The chosen parts, or all. A suite without parts is one part without a name.
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

    /// Why this case may differ, if so.
    pub fn why_differs(&self, case: &str) -> Option<&str> {
        let differs = self.differs.iter();
        let mut fitting = differs.filter(|differs| fits(&differs.case, case));
        fitting.next().map(|differs| differs.why.as_str())
    }
}

/// Returns true if `text` is what `pattern` says, where `*` stands for any text.
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

/// The suites with these names, or all, in the order of their names.
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
