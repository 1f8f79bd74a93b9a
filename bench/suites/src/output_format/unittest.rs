//! Parses the verbose output of Python's unittest: `test_x (test.test_socket.Class.test_x) ... ok`.
//!
//! A case may print text between its name and its result. The parser may then miss the result.
//! The summary at the end names each failed case.

use super::{Cases, Verdict};

/// Parses the output of one or more runs.
pub fn read(text: &str) -> Cases {
    let mut cases = Cases::new();
    let mut failed = Vec::new();
    let mut current: Option<String> = None;
    let mut begun: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = after_any(line, &["FAIL: ", "ERROR: "]) {
            failed.extend(name(rest));
        } else if line.starts_with("Ran ") && line.contains(" test") {
            // The run has ended. A case whose result was not found counts as passed. If the summary
            // lists the case as failed, the end of this function corrects the verdict.
            for case in begun.drain(..) {
                record_if_absent(&mut cases, &case, Verdict::Passed);
            }
            current = None;
        } else if let Some(case) = name(line) {
            cases.entry(case.clone()).or_insert(Verdict::Lost);
            begun.push(case.clone());
            current = Some(case);
        }
        if let (Some(case), Some(verdict)) = (&current, ended(line)) {
            cases.insert(case.clone(), verdict);
            current = None;
        }
    }
    for case in failed {
        cases.insert(case, Verdict::Failed);
    }
    cases
}

/// Records `verdict` for `case` if the result of the case was not found.
fn record_if_absent(cases: &mut Cases, case: &str, verdict: Verdict) {
    if let Some(lost @ Verdict::Lost) = cases.get_mut(case) {
        *lost = verdict;
    }
}

/// Returns the rest of the line after the first of `heads` that the line starts with. Returns
/// `None` if the line starts with none of them.
fn after_any<'a>(line: &'a str, heads: &[&str]) -> Option<&'a str> {
    heads.iter().find_map(|head| line.strip_prefix(head))
}

/// Returns the dotted name in `test_x (test.test_socket.Class.test_x)`, without the package `test`.
/// Older versions of Python print `test_x (test.test_socket.Class)`. The method is then appended to
/// the name.
fn name(line: &str) -> Option<String> {
    let (method, rest) = line.split_once(" (")?;
    let (dotted, _) = rest.split_once(')')?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if method.is_empty() || !method.chars().all(is_word) || !dotted.contains('.') {
        return None;
    }
    let dotted = dotted.strip_prefix("test.").unwrap_or(dotted);
    Some(if dotted.rsplit('.').next() == Some(method) {
        dotted.to_owned()
    } else {
        format!("{dotted}.{method}")
    })
}

/// Returns the result at the end of this line. The result is the whole line, or follows `... `. In
/// a line of fewer than 200 bytes without `: `, the result may also follow other text, even without
/// a space. A longer line, or a line with `: `, is taken for a log message if it ends in this way.
fn ended(line: &str) -> Option<Verdict> {
    let (_, tail) = line.rsplit_once("... ").unwrap_or(("", line));
    let words = [
        "ok",
        "expected failure",
        "unexpected success",
        "FAIL",
        "ERROR",
    ];
    if tail.starts_with("skipped ") {
        return Some(Verdict::Skipped);
    }
    let word = words.iter().find(|word| {
        tail == **word || (line.ends_with(*word) && line.len() < 200 && !line.contains(": "))
    })?;
    Some(match *word {
        "ok" | "expected failure" => Verdict::Passed,
        _ => Verdict::Failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_cases(text: &str) -> Vec<(String, Verdict)> {
        read(text).into_iter().collect()
    }

    #[test]
    fn names_and_results_are_read() {
        let text = "testA (test.test_socket.C.testA) ... ok\n\
                    testB (test.test_socket.C.testB)\nWhat it does. ... skipped 'no reason'\n\
                    testC (test.test_socket.C.testC) ... printed\nok\n";
        let want = [
            ("test_socket.C.testA", Verdict::Passed),
            ("test_socket.C.testB", Verdict::Skipped),
            ("test_socket.C.testC", Verdict::Passed),
        ];
        let want = want.map(|(name, verdict)| (name.to_owned(), verdict));
        assert_eq!(all_cases(text), want);
    }

    #[test]
    fn a_failure_in_the_summary_overrides_the_line_of_a_case() {
        let text = "testA (test.t.C.testA) ... testB (test.t.C.testB) ... ok\n\
                    testA (test.t.C.testA) ... ok\n\
                    FAIL: testA (test.t.C.testA) [sub]\nRan 2 tests in 1s\n";
        assert_eq!(
            all_cases(text)[0],
            ("t.C.testA".to_owned(), Verdict::Failed)
        );
    }

    #[test]
    fn a_case_without_an_end_is_lost() {
        let text = "testA (test.t.C.testA) ... ok\ntestB (test.t.C.testB) ... Timeout (0:05:00)!\n";
        assert_eq!(all_cases(text)[1], ("t.C.testB".to_owned(), Verdict::Lost));
    }
}
