//! Formats the kept results of all programs as the Markdown file `TABLE.md`, with a row for each
//! program.

use std::fmt::Write;

use super::{ALL_SIDES, CONDITIONS, Kept, LoadRow, Mark, Row};

/// Returns the content of `TABLE.md`.
pub fn text(kept: &Kept) -> String {
    let mut text = include_str!("head.md").to_owned();
    let measured: Vec<&Row> = kept
        .rows
        .iter()
        .filter(|row| row.skipped.is_none())
        .collect();
    let cells = measured.iter().flat_map(|row| &row.cells);
    let count = |mark| {
        cells
            .clone()
            .filter(|placed| placed.cell.mark == mark)
            .count()
    };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} programs on {}; cells: {} passed, {} left to the kernel, {} failed.\n",
        measured.len(),
        kept.machine,
        count(Mark::Passed),
        count(Mark::Kernel),
        count(Mark::Failed)
    );
    let columns = [
        "program",
        "kind",
        "undisturbed",
        "1 % loss",
        "kill -9",
        "request",
        "requests/s",
        "ratio",
        "p99 us",
        "CPU ms per 1000",
        "commit",
    ];
    let rule = columns.map(|_| "---").join("|");
    let _ = writeln!(text, "| {} |\n|{rule}|", columns.join(" | "));
    for row in &measured {
        text += &line(row);
    }
    text += "\n## Cells that did not pass\n\n";
    for row in &measured {
        findings(row, &mut text);
    }
    text += "\n## Versions\n\n";
    for row in &measured {
        let _ = writeln!(text, "* {}: {}", row.title, row.version);
    }
    let skipped: Vec<&Row> = kept
        .rows
        .iter()
        .filter(|row| row.skipped.is_some())
        .collect();
    if !skipped.is_empty() {
        text += "\n## Not measured\n\n";
    }
    for row in skipped {
        let why = row.skipped.as_deref().unwrap_or_default();
        let _ = writeln!(text, "* {}: {why}", row.title);
    }
    text
}

/// Returns the line of a program in the table.
fn line(row: &Row) -> String {
    let marks = CONDITIONS.map(|condition| {
        let mark = |sides| match row.cell(condition, sides).map(|cell| cell.mark) {
            Some(Mark::Passed) => Some("ok"),
            Some(Mark::Kernel) => Some("kernel"),
            Some(Mark::Failed) => Some("**failed**"),
            None => None,
        };
        ALL_SIDES
            .into_iter()
            .filter_map(mark)
            .collect::<Vec<_>>()
            .join(" ")
    });
    let load = load_columns(row.load.as_ref()).join(" | ");
    let Row {
        title,
        kind,
        commit,
        ..
    } = row;
    format!(
        "| {title} | {kind} | {} | {load} | {commit} |\n",
        marks.join(" | ")
    )
}

/// Returns the columns of a load: request, requests per second, ratio of Tidelane's rate to the
/// kernel's rate, 99th percentiles, and CPU time.
pub fn load_columns(load: Option<&LoadRow>) -> [String; 5] {
    let Some(load) = load else {
        return ["none", "", "", "", ""].map(str::to_owned);
    };
    if load.failed.is_some() {
        return [load.request.as_str(), "**failed**", "", "", ""].map(str::to_owned);
    }
    let both = |values: [f64; 2], digits: usize| {
        format!("{:.digits$} / {:.digits$}", values[0], values[1])
    };
    let p99 = match load.p99_us {
        [Some(kernel), Some(ours)] => both([kernel, ours], 0),
        _ => "not printed".to_owned(),
    };
    let [ratio, least, most] = load.ratio;
    let stack = if load.accelerated { "" } else { " (kernel)" };
    let digits = if load.rate[0] < 100.0 { 1 } else { 0 };
    [
        load.request.clone(),
        both(load.rate, digits),
        format!("{ratio:.2} ({least:.2} to {most:.2}){stack}"),
        p99,
        both(load.cpu_ms, if load.cpu_ms[0] < 10.0 { 1 } else { 0 }),
    ]
}

/// Appends to `text` a line for each reason for which cells of a program did not pass. Cells with
/// equal reasons share a line. If the load failed, appends a line with the reason for this failure.
fn findings(row: &Row, text: &mut String) {
    let mut notes: Vec<(String, String)> = Vec::new();
    for placed in row
        .cells
        .iter()
        .filter(|placed| placed.cell.mark != Mark::Passed)
    {
        let word = if placed.cell.mark == Mark::Failed {
            "failed"
        } else {
            "kernel"
        };
        let place = format!("{}, {}", placed.condition.name(), placed.sides.name());
        let note = format!("{word}: {}", placed.cell.note.replace('\n', " "));
        match notes.iter_mut().find(|(_, known)| *known == note) {
            Some((places, _)) => *places += &format!("; {place}"),
            None => notes.push((place, note)),
        }
    }
    if let Some(why) = row.load.as_ref().and_then(|load| load.failed.as_ref()) {
        notes.push(("load".to_owned(), format!("failed: {why}")));
    }
    for (places, note) in notes {
        let _ = writeln!(text, "* {} ({places}): {note}", row.title);
    }
}
