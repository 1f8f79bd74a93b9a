//! Parses the output of libevent's tinytest: `group/name: [forking] OK`. A case may print text
//! between its name and its result.

use super::{Cases, Verdict};

/// Parses the output of the test program. If a case occurs several times, the result of its last
/// run counts.
pub fn read(text: &str) -> Cases {
    let mut cases = Cases::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(name) = begun(line) {
            cases.insert(name.to_owned(), Verdict::Lost);
            current = Some(name.to_owned());
        }
        if let (Some(name), Some(verdict)) = (&current, ended(line)) {
            cases.insert(name.clone(), verdict);
        }
    }
    cases
}

/// Returns the name of the case that begins in this line, if one begins.
fn begun(line: &str) -> Option<&str> {
    let (name, _) = line.split_once(": ")?;
    let word = |c: char| c.is_ascii_alphanumeric() || "_-/+.".contains(c);
    (name.contains('/') && !name.starts_with('/') && name.chars().all(word)).then_some(name)
}

/// Returns the result at the end of this line, if there is one.
fn ended(line: &str) -> Option<Verdict> {
    let line = line.trim_end();
    if line.ends_with("OK") {
        Some(Verdict::Passed)
    } else if line.ends_with("SKIPPED") || line.ends_with("DISABLED") {
        Some(Verdict::Skipped)
    } else if line.ends_with(" FAILED]") {
        Some(Verdict::Failed)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_follow_names() {
        let text = "http/basic: [forking] OK\nhttp/bad: text\n  [bad FAILED]\nutil/x: SKIPPED\n\
                    main/hangs: [forking] ";
        let want = [
            ("http/bad", Verdict::Failed),
            ("http/basic", Verdict::Passed),
            ("main/hangs", Verdict::Lost),
            ("util/x", Verdict::Skipped),
        ];
        let want = want.map(|(name, verdict)| (name.to_owned(), verdict));
        assert_eq!(read(text), Cases::from(want));
    }
}
