//! Finds comments that open with a pronoun instead of the name of their subject (see
//! CONTRIBUTING.md).

use std::path::Path;

use super::Offence;
use crate::source::{SourceFile, is_name_char};

/// Words that must not open a comment, because a comment opens with the name of its subject, such
/// as a segment, a flow or a program.
const BANNED: [&str; 5] = ["What", "Who", "Those", "One that", "As before"];

/// Comment markers. A longer marker comes before a shorter one that is its prefix.
const MARKERS: [&str; 7] = ["///", "//!", "//", "/**", "/*", "*", "#"];

/// Counts the comment lines of one file that open with one of `BANNED`. Returns `None` if there are
/// none, or if the file is not checked.
pub fn check(file: &SourceFile) -> Option<Offence> {
    if !is_checked(&file.path) {
        return None;
    }
    let lines = file.text.lines().enumerate();
    let found: Vec<_> = lines
        .filter_map(|(at, line)| Some((at + 1, banned_opening(line)?)))
        .collect();
    let (line, word) = found.first()?;
    let size = found.len();
    Some(Offence {
        key: format!("comment-opening {}", file.path),
        size,
        text: format!(
            "{}:{line}: {size} comments open with a pronoun, the first with {word:?}",
            file.path
        ),
    })
}

/// Returns true if the file is a source, script or manifest, whose comments are checked.
fn is_checked(path: &str) -> bool {
    let path = Path::new(path);
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    ["rs", "c", "h", "sh", "toml", "pkt"].contains(&extension)
        || path.file_name().is_some_and(|name| name == "Makefile")
}

/// Returns the entry of `BANNED` that opens the comment on `line`. Returns `None` if `line` is not
/// a comment or opens with other words.
fn banned_opening(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let comment = MARKERS.iter().find_map(|mark| line.strip_prefix(mark))?;
    // A marker without a space after it is no comment: `#!`, `#[`, `*pointer`.
    let text = comment.strip_prefix([' ', '\t'])?.trim_start();
    let opens = |words: &&&str| {
        let rest = text.strip_prefix(**words);
        rest.is_some_and(|rest| !rest.starts_with(is_name_char))
    };
    BANNED.iter().find(opens).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_are_found_after_each_comment_marker() {
        let cases = [
            ("/// What a flow owes.", Some("What")),
            ("//! Who may connect.", Some("Who")),
            ("    // Those in flight.", Some("Those")),
            ("/* One that is lost. */", Some("One that")),
            (" * As before.", Some("As before")),
            ("#\tWhat a user may set", Some("What")),
            ("/// What's left", Some("What")),
            ("/// Whatever comes", None),
            ("/// Returns what is left", None),
            ("/// One thing", None),
            ("//// What", None),
            ("let x = 1; // What", None),
            ("#What", None),
            ("What", None),
        ];
        for (line, opening) in cases {
            assert_eq!(banned_opening(line), opening, "{line}");
        }
    }

    #[test]
    fn openings_are_counted_per_file() {
        let text = "// What a\nfn f() {}\n// Who b\n".to_owned();
        for (path, checked) in [
            ("proto/a.rs", true),
            ("ebpf/a.c", true),
            ("ebpf/a.h", true),
            ("scripts/a.sh", true),
            ("specs/a.toml", true),
            ("tests/a.pkt", true),
            ("Makefile", true),
            ("README.md", false),
            ("bench/result.json", false),
        ] {
            let path = path.to_owned();
            let text = text.clone();
            let offence = check(&SourceFile { path, text });
            let size = offence.as_ref().map(|offence| offence.size);
            assert_eq!(size, checked.then_some(2), "{offence:?}");
        }
    }
}
