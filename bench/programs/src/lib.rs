//! What real programs and other people's test suites both need: packages of this machine, a folder
//! of TOML files that is a catalogue, the kernel's counters.
#![forbid(unsafe_code)]

pub mod counters;
pub mod folder;
pub mod packages;

/// The last words of a text, on one line.
pub fn brief(text: &str) -> String {
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
