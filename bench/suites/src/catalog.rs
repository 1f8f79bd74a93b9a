//! The catalogue: the folder `catalog/` with a TOML file for each suite.
//!
//! A case is a single test of a suite. A part is a group of cases that one command runs. The two
//! stacks are the kernel's and Tidelane's.
//!
//! All commands are shell commands, and are executed in the folder of the suite's source. Commands
//! may contain placeholders: `{source}` (folder of the suite's source) and `{place}` (folder of the
//! suite's builds). The commands that run cases may also contain `{part}` (the part of the suite to
//! run) and, in repetitions, `{cases}` (arguments that select the cases to run).

use std::path::Path;

use serde::Deserialize;
use tidelane_programs::folder;
use tidelane_tests::Stop;

use crate::output_format::OutputFormat;

/// The catalogue entry of a test suite of another project.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Name of the suite: the name of the file without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// Title of the suite's row in the table.
    pub title: String,
    /// A command that prints the version.
    pub version: String,
    /// Debian packages for building and running.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Origin of the source. `None` if the packages contain the suite.
    pub source: Option<Source>,
    /// A command that builds the suite. The command is not executed again after it has succeeded.
    pub build: Option<String>,
    /// A command that runs one part. If the suite has no parts, the command runs the whole suite.
    pub command: String,
    /// Format of the command's output.
    pub output_format: OutputFormat,
    /// Names of the parts, which run in sequence.
    #[serde(default)]
    pub parts: Vec<String>,
    /// Time limit of a part in seconds.
    pub seconds: u64,
    /// The command that repeats single cases. `None` if only whole parts can be repeated.
    pub repeat: Option<Repeat>,
    /// Cases that may pass on only one stack, with the reasons.
    #[serde(default)]
    pub differs: Vec<ReasonedCases>,
    /// Cases that the command omits, with the reasons.
    #[serde(default)]
    pub left_out: Vec<ReasonedCases>,
}

/// The origin of a suite's source.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Source {
    /// A source package of Debian.
    Debian(String),
    /// A crate, as `NAME VERSION`.
    Crate(String),
}

/// The command that runs single cases of a part again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// A command that runs the cases again. Its placeholder `{cases}` stands for the arguments of
    /// all cases to run.
    pub command: String,
    /// Arguments that select one case, such as `-m {case}`. `{case}` stands for the case's name
    /// without the name of the part.
    pub case: String,
    /// True if the command accepts only one case.
    #[serde(default)]
    pub single: bool,
}

/// A pattern of cases that are omitted or may differ, and the reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonedCases {
    /// Pattern of the names of the cases, in which `*` matches any text. In `left_out`, the text
    /// is only shown, and may have any form.
    pub case: String,
    /// Reason, as the table shows it.
    pub why: String,
}

impl Suite {
    /// Returns the chosen parts, or all parts if none are chosen. A suite without parts has one
    /// part with an empty name. Fails if a chosen part is not a part of the suite.
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

    /// Returns the reason why the case may pass on only one stack, if the catalogue gives one.
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

/// Reads the suites with these names, or all suites if there are no names. Returns them in the
/// order of their names.
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
