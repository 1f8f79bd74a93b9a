//! Parses the Test Anything Protocol (TAP): `ok 1 - name # SKIP reason`.

use super::{Cases, Verdict, add_verdict};

/// Parses TAP lines. The name of a case is its description if `named` is true, and otherwise its
/// number.
pub fn read(text: &str, named: bool) -> Cases {
    let mut cases = Cases::new();
    for line in text.lines() {
        // A test program that skips all its cases prints `1..0`. `prove` then prints `skipped`. The
        // program counts as one skipped case with the name `all`.
        if line.starts_with("1..0") || line.contains(" .. skipped: ") {
            add_verdict(&mut cases, "all", Verdict::Skipped);
        }
        let (passed, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        if number.parse::<u32>().is_err() {
            continue;
        }
        let (name, directive) = rest.split_once('#').unwrap_or((rest, ""));
        let directive = directive.trim_start().to_ascii_uppercase();
        let verdict = if directive.starts_with("SKIP") || directive.starts_with("TODO") {
            Verdict::Skipped
        } else if passed {
            Verdict::Passed
        } else {
            Verdict::Failed
        };
        let name = name.trim().trim_start_matches("- ");
        add_verdict(&mut cases, if named { name } else { number }, verdict);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tap_are_read() {
        let text =
            "1..3\nok 1 - tcp_close\n# a note\nnot ok 2 - udp_send\nok 3 - ip6 # SKIP none\n";
        let want = [
            ("ip6", Verdict::Skipped),
            ("tcp_close", Verdict::Passed),
            ("udp_send", Verdict::Failed),
        ];
        let want = want.map(|(name, verdict)| (name.to_owned(), verdict));
        assert_eq!(read(text, true), Cases::from(want));
        assert_eq!(read(text, false).get("2"), Some(&Verdict::Failed));
        let skipped = Some(&Verdict::Skipped);
        assert_eq!(read("t/a.t .. skipped: no\n", false).get("all"), skipped);
        assert_eq!(read("1..0 # SKIP no TLS\n", false).get("all"), skipped);
    }
}
