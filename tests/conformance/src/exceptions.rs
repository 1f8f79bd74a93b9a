//! The table `embedded-lacks.txt`: the scripts that need a feature that the embedded stack lacks.
//!
//! ```text
//! # A comment.
//! rfc9999/1-name-of-a-script
//!     the missing feature, in one or more indented lines
//! ```

use crate::{ast::Remark, release::Range, suite::Source};

/// Name of the embedded stack in remarks.
const STACK: &str = "embedded";

/// An entry of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Exception {
    /// Name of the script.
    name: String,
    /// The missing feature.
    reason: String,
}

/// The parsed table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exceptions(Vec<Exception>);

impl Exceptions {
    /// Parses the text of the table. Fails with a message if an entry has no reason, if a reason
    /// precedes the first entry, or if a script has two entries.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all: Vec<Exception> = Vec::new();
        for line in text.lines() {
            let words = line.trim();
            if words.is_empty() || words.starts_with('#') {
                continue;
            }
            if !line.starts_with(' ') {
                let (name, reason) = (words.to_owned(), String::new());
                all.push(Exception { name, reason });
                continue;
            }
            let reason = match all.last_mut() {
                Some(exception) => &mut exception.reason,
                None => return Err(format!("a reason without a script: {words}")),
            };
            if !reason.is_empty() {
                reason.push(' ');
            }
            reason.push_str(words);
        }
        for (at, exception) in all.iter().enumerate() {
            let name = &exception.name;
            if exception.reason.is_empty() {
                return Err(format!("{name}: there is no reason"));
            }
            if all[..at].iter().any(|before| before.name == *name) {
                return Err(format!("{name}: there are two entries"));
            }
        }
        Ok(Self(all))
    }

    /// Adds each entry to its script as a remark. If the script of an entry passes on the embedded
    /// stack, the verdict on the run is a failure. Returns the names of entries without a script in
    /// `sources`.
    pub fn add_to(&self, sources: &mut [Source]) -> Vec<&str> {
        let mut unknown = Vec::new();
        for Exception { name, reason } in &self.0 {
            match sources.iter_mut().find(|source| source.name == *name) {
                Some(source) => source.add_remark(&Remark {
                    stack: STACK.to_owned(),
                    releases: Range::default(),
                    lacks: true,
                    reason: reason.clone(),
                }),
                None => unknown.push(name.as_str()),
            }
        }
        unknown
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        ip::Version,
        suite::{Platform, StackName, Verdict},
    };

    #[test]
    fn entries_have_a_name_and_a_reason() {
        let text = "# Comment.\n\na/one\n    it lacks\n    this\nb/two\n    that\n";
        let table = Exceptions::parse(text).unwrap();
        let entry = |name: &str, reason: &str| Exception {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        let expected = [entry("a/one", "it lacks this"), entry("b/two", "that")];
        assert_eq!(table, Exceptions(expected.to_vec()));
        assert_eq!(table.add_to(&mut []), ["a/one", "b/two"]);
        for bad in [
            "    why\n",
            "a/one\n",
            "a/one\nb/two\n    that\n",
            "a\n  x\na\n  y\n",
        ] {
            assert!(Exceptions::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_exception_for_a_passing_script_is_an_error_on_the_embedded_stack() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
        let name = "rfc9293/3.5-passive-open";
        let path = folder.join(format!("{name}.pkt"));
        let mut sources = [Source::read(&path, &folder).unwrap()];
        let table = Exceptions::parse(&format!("{name}\n    nothing\n")).unwrap();
        assert!(table.add_to(&mut sources).is_empty());
        let verdict = |stack| {
            let version = Version::V4;
            sources[0].run(Platform { stack, version }).verdict
        };
        assert_eq!(verdict(StackName::Engine), Verdict::Passed);
        let failed = verdict(StackName::Embedded);
        assert!(matches!(failed, Verdict::Failed(_)), "{failed:?}");
    }
}
