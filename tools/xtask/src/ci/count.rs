//! Counts passed, failed and skipped tests in the output of test programs. The output has the
//! format of libtest, Rust's test harness.

/// The counts of a step's tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of passed tests.
    pub passed: usize,
    /// Number of failed tests.
    pub failed: usize,
    /// Names of the failed tests, each as `STEP: TEST`. If the output does not name every failed
    /// test, the list also has the name of the step.
    pub failures: Vec<String>,
    /// Names of the skipped tests, each with the reason.
    pub skips: Vec<(String, String)>,
}

/// Prefixes of the line that a test prints if it skips itself. libtest counts this test as passed.
const SKIP_MARKS: [&str; 2] = ["SKIPPED: ", "SKIP: "];

impl Counts {
    /// Returns the counts of one skipped test or step.
    pub fn skip(name: &str, reason: &str) -> Self {
        let skips = vec![(name.to_owned(), reason.to_owned())];
        Self {
            skips,
            ..Self::default()
        }
    }

    /// Adds the counts of another step.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
    }

    /// Returns the counts of a step with the output `text`.
    ///
    /// If `tests` is true, counts the tests in the output. Otherwise the step counts as one check.
    /// If `succeeded` is false, the step counts as at least one failure.
    pub fn of_step(name: &str, tests: bool, succeeded: bool, text: &str) -> Self {
        let mut counts = if tests {
            Self::parse(text)
        } else {
            Self::default()
        };
        if !tests && succeeded {
            counts.passed = 1;
        }
        if !succeeded && counts.failed == 0 {
            counts.failed = 1;
        }
        let of_step = |test: &String| format!("{name}: {test}");
        counts.failures = counts.failures.iter().map(of_step).collect();
        if counts.failed > counts.failures.len() {
            counts.failures.push(name.to_owned());
        }
        if tests && succeeded && counts == Self::default() {
            // Report a step that ran no tests as skipped, because its filter is probably wrong.
            counts.skips.push((name.to_owned(), "no tests".to_owned()));
        }
        counts
    }

    /// Counts the tests in the output of test programs.
    fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        let mut test = "a test";
        // Number of tests that skipped themselves, which libtest counts as passed.
        let mut marked = 0;
        for line in text.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                counts.passed += number_before(result, " passed");
                counts.failed += number_before(result, " failed");
            } else if let Some((name, reason)) = ignored(line) {
                counts.skips.push((name.to_owned(), reason.to_owned()));
            } else if let Some(name) = failed(line) {
                counts.failures.push(name.to_owned());
            } else if let Some(name) = output_of(line) {
                test = name;
            } else if let Some(reason) = SKIP_MARKS.iter().find_map(|m| line.strip_prefix(m)) {
                counts.skips.push((test.to_owned(), reason.to_owned()));
                marked += 1;
            }
        }
        counts.passed = counts.passed.saturating_sub(marked);
        counts
    }
}

/// Parses `test NAME ... ignored, REASON`. Returns name and reason.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let reason = result.strip_prefix("ignored")?;
    Some((name, reason.strip_prefix(", ").unwrap_or("ignored")))
}

/// Parses `test NAME ... FAILED`. Returns the name.
fn failed(line: &str) -> Option<&str> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    result.starts_with("FAILED").then_some(name)
}

/// Parses `---- NAME stdout ----`, the line before the output of a test. Returns the name.
fn output_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Returns the number before `word` in `text`, or 0 if `word` is not found.
fn number_before(text: &str, word: &str) -> usize {
    let Some(at) = text.find(word) else { return 0 };
    let digits = text[..at].rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test a::one ... ok
test a::two ... ignored, needs a NIC
test a::three ... ok
test a::four ... FAILED

successes:

---- a::three stdout ----
SKIPPED: not root

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1s
test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s
";

    #[test]
    fn libtests_output_is_counted() {
        let counts = Counts::of_step("x", true, false, OUTPUT);
        assert_eq!((counts.passed, counts.failed), (11, 1));
        assert_eq!(counts.failures, ["x: a::four"]);
        let names: Vec<_> = counts
            .skips
            .iter()
            .map(|(n, r)| (n.as_str(), r.as_str()))
            .collect();
        assert_eq!(names, [("a::two", "needs a NIC"), ("a::three", "not root")]);
    }

    #[test]
    fn a_failed_step_is_never_a_success() {
        assert_eq!(Counts::of_step("x", true, false, "").failed, 1);
        assert_eq!(Counts::of_step("x", false, false, "").failed, 1);
        assert_eq!(Counts::of_step("x", false, false, "").failures, ["x"]);
        assert_eq!(Counts::of_step("x", false, true, "").passed, 1);
        assert_eq!(Counts::of_step("x", true, true, "").skips.len(), 1);
    }
}
