//! Parses the output of Rust's test programs (libtest): `test name ... ok`.

use super::{Cases, Verdict, add_verdict};

/// Parses the output of one or more test programs.
pub fn read(text: &str) -> Cases {
    let mut cases = Cases::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("test ") else {
            continue;
        };
        let Some((name, result)) = rest.split_once(" ... ") else {
            continue;
        };
        let name = name.trim_end_matches(" - should panic");
        let verdict = if result.starts_with("ignored") {
            Verdict::Skipped
        } else if result.ends_with("ok") {
            Verdict::Passed
        } else if result.ends_with("FAILED") {
            Verdict::Failed
        } else {
            Verdict::Lost
        };
        add_verdict(&mut cases, name, verdict);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read() {
        let text =
            "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, slow\n";
        let cases = read(text);
        let verdicts: Vec<Verdict> = cases.into_values().collect();
        let want = [Verdict::Passed, Verdict::Failed, Verdict::Skipped];
        assert_eq!(verdicts, want);
    }
}
