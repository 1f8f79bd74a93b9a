//! The common parts of `bench/programs` and `bench/suites`: installing packages, reading
//! catalogues, and reading the kernel's counters.
#![forbid(unsafe_code)]

pub mod counters;
pub mod folder;
pub mod packages;

/// Ignores the blank lines of `text`, and joins the last three of the other lines to one line.
/// Returns the last 301 characters of the joined line, or the whole line if it is shorter.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" | ");
    let start = last
        .char_indices()
        .rev()
        .nth(300)
        .map_or(0, |(index, _)| index);
    last[start..].to_owned()
}
