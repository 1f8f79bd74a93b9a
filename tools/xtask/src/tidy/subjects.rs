//! Checks the subjects of the commits that the branch adds to the main line. A subject has the form
//! `area: imperative`.

use std::{path::Path, process::Command};

use super::Offence;

/// Largest length of a subject in characters. After an abbreviated hash of seven characters and a
/// space, such a subject fits in 80 columns.
const LENGTH_MAX: usize = 72;
/// Largest number of words of an area, such as `host`, `xtask spec`, or `world, netem`.
const AREA_WORDS_MAX: usize = 3;
/// The main line, as of the last `git fetch`.
const MAIN_LINE: &str = "origin/main";

/// Words that open a noun phrase or a clause, and are not verbs.
const NOT_VERBS: [&str; 12] = [
    "a", "an", "the", "no", "what", "who", "when", "where", "how", "those", "one", "it",
];
/// Imperatives with the ending of another verb form, such as -ing or -ed.
const IMPERATIVES: [&str; 11] = [
    "bring", "ring", "string", "feed", "seed", "need", "speed", "embed", "shed", "exceed", "bias",
];

/// Checks the commits of `MAIN_LINE..HEAD`. Returns `None` if git fails, for example because git
/// does not know `MAIN_LINE`.
///
/// Merge commits are not checked, because git writes their subjects.
pub fn check(root: &Path) -> Option<Vec<Offence>> {
    let output = Command::new("git")
        .args(["log", "--no-merges", "--format=%h %s"])
        .arg(format!("{MAIN_LINE}..HEAD"))
        .arg("--")
        .current_dir(root)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let log = String::from_utf8_lossy(&output.stdout);
    Some(log.lines().filter_map(check_commit).collect())
}

/// Checks one commit, given as its abbreviated hash and its subject.
fn check_commit(commit: &str) -> Option<Offence> {
    let (hash, subject) = commit.split_once(' ')?;
    let fault = fault(subject)?;
    Some(Offence {
        // The key contains the subject instead of the hash, because a rebase changes the hash.
        key: format!("commit-subject {subject}"),
        size: subject.chars().count(),
        text: format!("commit {hash}: {fault}: {subject}"),
    })
}

/// Returns the first rule that `subject` breaks, if it breaks one.
fn fault(subject: &str) -> Option<&'static str> {
    if subject.chars().count() > LENGTH_MAX {
        return Some("the subject has more than 72 characters");
    }
    let Some((area, rest)) = subject.split_once(": ") else {
        return Some("the subject has no `area: `");
    };
    if !is_area(area) {
        return Some("the area is not a list of at most three names");
    }
    let verb = rest.split(' ').next().unwrap_or("");
    if !is_imperative(verb) {
        return Some("no imperative follows the area");
    }
    rest.ends_with('.')
        .then_some("the subject ends with a full stop")
}

/// Returns true if `area` is a list of at most [`AREA_WORDS_MAX`] names.
fn is_area(area: &str) -> bool {
    let in_name = |c: char| c.is_ascii_alphanumeric() || "/_-.+,".contains(c);
    let name = |word: &str| !word.is_empty() && word.chars().all(in_name);
    area.split(' ').count() <= AREA_WORDS_MAX && area.split(' ').all(name)
}

/// Returns true if `verb` may be an imperative. Words of another form, such as "adds", "added" and
/// "adding", are not accepted.
fn is_imperative(verb: &str) -> bool {
    let verb = verb.trim_end_matches(',').to_ascii_lowercase();
    let other = ["ed", "ing"].iter().any(|end| verb.ends_with(end))
        || verb.ends_with('s') && !["ss", "us"].iter().any(|end| verb.ends_with(end));
    let letters = verb.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
    let word = !verb.is_empty() && letters && !NOT_VERBS.contains(&verb.as_str());
    word && (!other || IMPERATIVES.contains(&verb.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_an_area_and_an_imperative() {
        for subject in [
            "host: keep the last acknowledgment",
            "Programs: measure four servers again, and name the causes",
            "world, netem: drop by seed",
            "bench/load: address both stacks",
            "xtask spec: focus on promises",
            "options: seed the hash",
        ] {
            assert_eq!(fault(subject), None, "{subject}");
        }
        for subject in [
            "Fewer stores for rare paths",
            "a part with a long name: add it",
            "host (core): add it",
            "host: adds a ring",
            "host: added a ring",
            "host: adding a ring",
            "host: what a ring holds",
            "host:  ",
            "host: add a ring.",
        ] {
            assert!(fault(subject).is_some(), "{subject}");
        }
    }

    #[test]
    fn a_subject_has_at_most_72_characters() {
        let subject = |len: usize| format!("host: {}", "x".repeat(len - 6));
        assert_eq!(fault(&subject(LENGTH_MAX)), None);
        let long = subject(LENGTH_MAX + 1);
        let offence = check_commit(&format!("abc1234 {long}")).expect("an offence");
        assert_eq!(offence.size, LENGTH_MAX + 1);
        assert_eq!(offence.key, format!("commit-subject {long}"));
        assert!(offence.text.starts_with("commit abc1234: "));
    }
}
