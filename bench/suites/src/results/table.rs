//! Formats the kept results of all test suites as the Markdown file `TABLE.md`, with a row for each
//! suite.

use std::fmt::Write;

use super::{Finding, Kept, Row};
use crate::{output_format::Verdict, testbed::Opens};

const COLUMNS: [&str; 10] = [
    "suite",
    "tidelane run",
    "cases",
    "passed on both",
    "kernel only",
    "Tidelane only",
    "neither",
    "skipped on both",
    "accelerated",
    "commit",
];

/// Returns the content of `TABLE.md`.
pub fn text(kept: &Kept) -> String {
    let mut text = include_str!("head.md").to_owned();
    let (measured, skipped): (Vec<&Row>, Vec<&Row>) =
        kept.rows.iter().partition(|row| row.skipped.is_none());
    let rule = COLUMNS.map(|_| "---").join("|");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "On {}.\n", kept.machine);
    let _ = writeln!(text, "| {} |\n|{rule}|", COLUMNS.join(" | "));
    for row in &measured {
        text += &line(row);
    }
    text += "\n## Cases\n\n";
    for row in &measured {
        text += &findings(row);
    }
    text += "\n## Versions\n\n";
    for row in &measured {
        let _ = writeln!(text, "* {}{}: {}", row.title, options(row), row.version);
    }
    if !skipped.is_empty() {
        text += "\n## Not run\n\n";
    }
    for row in skipped {
        text += &line(row);
    }
    text
}

/// Returns the line of a row: a line of the table, or a line of the list of suites that were not
/// run.
pub fn line(row: &Row) -> String {
    if let Some(why) = &row.skipped {
        return format!("* {}{}: {why}\n", row.title, options(row));
    }
    // The number of cases that passed only on one stack: the kernel (0) or Tidelane (1).
    let only = |index: usize| {
        let of = |finding: &&Finding| verdicts(finding)[index] == Verdict::Passed;
        let all = row.differ.iter().filter(of).count();
        let known = row.differ.iter().filter(of).filter(|f| f.why.is_some());
        match known.count() {
            0 => all.to_string(),
            known => format!("{all} ({known} explained)"),
        }
    };
    let cells = [
        row.title.clone(),
        row.run_options.clone(),
        row.cases.to_string(),
        row.passed_on_both.to_string(),
        only(0),
        only(1),
        row.passed_on_neither.len().to_string(),
        row.skipped_on_both.to_string(),
        share(row.connections[1]),
        row.commit.clone(),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// Returns the text for the share of the connections that the service opened.
fn share(opens: Opens) -> String {
    let all = opens.kernel + opens.service;
    match opens.share() {
        Some(share) => format!("{:.1} % ({} of {all})", 100.0 * share, opens.service),
        None => "no connections".to_owned(),
    }
}

/// Returns the options of `tidelane run` in parentheses, or an empty text if there are none.
fn options(row: &Row) -> String {
    if row.run_options.is_empty() {
        String::new()
    } else {
        format!(" ({})", row.run_options)
    }
}

/// Returns the verdicts on the kernel and on Tidelane.
fn verdicts(finding: &Finding) -> [Verdict; 2] {
    [finding.kernel, finding.tidelane]
}

/// Returns the word that the table uses for a verdict.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Skipped => "skipped",
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::Lost => "no result",
    }
}

/// Returns lines for the cases that passed on only one stack or on neither in the first run, and
/// for the cases that the suite's command omits. Cases that were skipped on both stacks have no
/// line.
pub fn findings(row: &Row) -> String {
    let mut text = String::new();
    let title = format!("{}{}", row.title, options(row));
    for finding in &row.differ {
        let [kernel, ours] = verdicts(finding).map(word);
        let why = finding.why.as_deref().unwrap_or("**not explained**");
        let case = &finding.case;
        let _ = writeln!(
            text,
            "* {title}: `{case}`: kernel {kernel}, Tidelane {ours}: {why}"
        );
    }
    // Headings, each with the names of its cases.
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for finding in &row.passed_on_neither {
        let [kernel, ours] = verdicts(finding).map(word);
        let why = finding
            .why
            .as_deref()
            .map_or(String::new(), |why| format!(" ({why})"));
        let head = format!("passed on neither, kernel {kernel}, Tidelane {ours}{why}");
        add(&mut groups, head, &finding.case);
    }
    for flaky in &row.flaky {
        let head = format!(
            "passed on {} when run again ({})",
            flaky.stack, flaky.repeat
        );
        add(&mut groups, head, &flaky.case);
    }
    for (head, cases) in groups {
        let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        let _ = writeln!(text, "* {title}: {head}: {}", cases.join(", "));
    }
    for left_out in &row.left_out {
        let _ = writeln!(
            text,
            "* {title}: not run: `{}`: {}",
            left_out.cases, left_out.why
        );
    }
    text
}

/// Adds `case` to the group with the heading `head`.
fn add<'a>(groups: &mut Vec<(String, Vec<&'a str>)>, head: String, case: &'a str) {
    match groups.iter_mut().find(|(known, _)| *known == head) {
        Some((_, cases)) => cases.push(case),
        None => groups.push((head, vec![case])),
    }
}
