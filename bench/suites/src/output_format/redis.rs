//! Parses the output of the test suite of redis: `[ok]: name (12 ms)`.

use super::{Cases, Verdict, add_verdict};

/// Parses the output of a unit, which is a part of the suite.
pub fn read(text: &str) -> Cases {
    let mut cases = Cases::new();
    for line in text.lines() {
        let Some((word, name)) = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "))
        else {
            continue;
        };
        let verdict = match word {
            "ok" => Verdict::Passed,
            "err" => Verdict::Failed,
            "skip" | "ignore" => Verdict::Skipped,
            "exception" | "timeout" => Verdict::Lost,
            _ => continue,
        };
        let name = match verdict {
            Verdict::Failed => name.rsplit_once(" in tests/").map_or(name, |split| split.0),
            _ => without_time(name),
        };
        add_verdict(&mut cases, name, verdict);
    }
    cases
}

/// Removes the duration of the case, such as ` (12 ms)`, from a name.
fn without_time(name: &str) -> &str {
    match name.rsplit_once(" (") {
        Some((head, tail)) if tail.ends_with(" ms)") => head,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        let text = "Testing unit/auth\n[ok]: AUTH fails (2 ms)\n[err]: b (c) in tests/unit/a.tcl\n\
                    [skip]: d\n[1/1 done]: unit/auth (0 seconds)\n";
        let want = [
            ("AUTH fails", Verdict::Passed),
            ("b (c)", Verdict::Failed),
            ("d", Verdict::Skipped),
        ];
        let want = want.map(|(name, verdict)| (name.to_owned(), verdict));
        assert_eq!(read(text), Cases::from(want));
    }
}
