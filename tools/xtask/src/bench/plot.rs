//! Draws the result of a figure (an experiment of `bench/figures`) as SVG.
//!
//! The plot of a request figure has one panel for each series (a workload at several numbers of
//! connections). A panel shows the requests per second by the number of connections. The plots of
//! other figures have groups of bars.

use std::fmt::Write;

use super::{
    plan::{Plan, Series},
    result::{Results, Variant},
};

/// Width of the panel of a series, in pixels.
const PANEL_WIDTH: f64 = 420.0;
/// Height of a panel and of the bars' area, in pixels.
const PANEL_HEIGHT: f64 = 300.0;
/// Space around panels and bars, in pixels.
const MARGIN: f64 = 64.0;
/// Width of a bar, in pixels.
const BAR_WIDTH: f64 = 24.0;
/// The variants (combinations of stack and path) that have a line, each with its colour. Bars have
/// the same colours, in this order. The colours are from the palette of Okabe and Ito, which
/// colour-blind readers can distinguish.
const LINES: [(Variant, &str); 6] = [
    (Variant::Kernel, "#000000"),
    (Variant::KernelNoIdle, "#999999"),
    (Variant::Tidelane, "#0072b2"),
    (Variant::Limit, "#e69f00"),
    (Variant::Loopback, "#cc79a7"),
    (Variant::LocalPath, "#009e73"),
];

/// Returns the plot of a request figure.
pub fn svg(plan: &Plan, results: &Results) -> String {
    let panels = plan.series.len().max(1) as f64;
    let width = panels * (PANEL_WIDTH + MARGIN) + MARGIN + 150.0;
    let mut text = open_svg(width, &plan.title);
    for (index, series) in plan.series.iter().enumerate() {
        let left = MARGIN + index as f64 * (PANEL_WIDTH + MARGIN);
        panel(&mut text, left, index, series, results);
    }
    legend(&mut text, MARGIN + panels * (PANEL_WIDTH + MARGIN) - 30.0);
    text + "</svg>\n"
}

/// Returns a plot of groups of bars. `names` are the names of the bars in a group. Each group has a
/// name, and one value in `unit` for each bar.
pub fn bars(title: &str, unit: &str, names: &[&str], groups: &[(&str, Vec<f64>)]) -> String {
    let width = (groups.len() * (names.len() + 1)) as f64 * BAR_WIDTH;
    let values = groups.iter().flat_map(|(_, values)| values.iter().copied());
    let top = nice_above(values.fold(0.0, f64::max));
    let y = |value: f64| MARGIN + PANEL_HEIGHT * (1.0 - value / top);
    let mut text = open_svg(width + 2.0 * MARGIN + 150.0, title);
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let ends = ((MARGIN, y(value)), (MARGIN + width, y(value)));
        line(&mut text, ends.0, ends.1, "#dddddd");
        let words = format!("{value:.2}");
        label(&mut text, (MARGIN - 6.0, y(value) + 4.0), "end", &words);
    }
    label(&mut text, (MARGIN, MARGIN - 12.0), "end", unit);
    for (group, (name, values)) in groups.iter().enumerate() {
        let left = MARGIN + (group * (names.len() + 1)) as f64 * BAR_WIDTH;
        for (index, value) in values.iter().enumerate() {
            let x = left + (index as f64 + 0.5) * BAR_WIDTH;
            let colour = LINES[index % LINES.len()].1;
            let (top, height) = (y(*value), y(0.0) - y(*value));
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{BAR_WIDTH}\" \
                 height=\"{height:.1}\" fill=\"{colour}\"/>"
            );
        }
        let middle = left + (values.len() + 1) as f64 * BAR_WIDTH / 2.0;
        label(&mut text, (middle, y(0.0) + 18.0), "middle", name);
    }
    for (index, name) in names.iter().enumerate() {
        let at = (MARGIN + width + 10.0, MARGIN + 20.0 * index as f64);
        line(
            &mut text,
            at,
            (at.0 + 20.0, at.1),
            LINES[index % LINES.len()].1,
        );
        label(&mut text, (at.0 + 26.0, at.1 + 4.0), "start", name);
    }
    text + "</svg>\n"
}

/// Returns the start of an SVG file with this width in pixels, and the title.
fn open_svg(width: f64, title: &str) -> String {
    let height = PANEL_HEIGHT + 2.0 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    label(&mut text, (MARGIN, 20.0), "start", title);
    text
}

fn label(text: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let (x, y) = at;
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

fn line(text: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        text,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// Draws the panel of the series with this index. `left` is the left edge of the panel in pixels.
fn panel(text: &mut String, left: f64, index: usize, series: &Series, results: &Results) {
    let points = |variant| -> Vec<(usize, f64)> {
        let of = |connections: &u32| results.requests_per_second((index, *connections, variant));
        series
            .connections
            .iter()
            .enumerate()
            .filter_map(|(i, c)| Some((i, of(c)?)))
            .collect()
    };
    let all = LINES.iter().flat_map(|(variant, _)| points(*variant));
    let top = nice_above(all.map(|(_, value)| value).fold(0.0, f64::max));
    let steps = series.connections.len().saturating_sub(1).max(1) as f64;
    let x = |step: usize| left + 20.0 + step as f64 * (PANEL_WIDTH - 40.0) / steps;
    let y = |value: f64| MARGIN + PANEL_HEIGHT * (1.0 - value / top);
    line(
        text,
        (left, y(0.0)),
        (left + PANEL_WIDTH, y(0.0)),
        "#000000",
    );
    for part in 1..=4 {
        let value = top * f64::from(part) / 4.0;
        line(
            text,
            (left, y(value)),
            (left + PANEL_WIDTH, y(value)),
            "#dddddd",
        );
        label(
            text,
            (left - 6.0, y(value) + 4.0),
            "end",
            &format!("{:.0} k", value / 1000.0),
        );
    }
    for (step, connections) in series.connections.iter().enumerate() {
        label(
            text,
            (x(step), y(0.0) + 18.0),
            "middle",
            &connections.to_string(),
        );
    }
    let name = if series.name.is_empty() { "" } else { ", " };
    let below = format!("connections{name}{} (requests/s)", series.name);
    label(
        text,
        (left + PANEL_WIDTH / 2.0, y(0.0) + 38.0),
        "middle",
        &below,
    );
    for (variant, colour) in LINES {
        let points = points(variant);
        for (step, value) in &points {
            let _ = writeln!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
                x(*step),
                y(*value)
            );
        }
        for pair in points.windows(2) {
            let ends = ((x(pair[0].0), y(pair[0].1)), (x(pair[1].0), y(pair[1].1)));
            line(text, ends.0, ends.1, colour);
        }
    }
}

/// Draws the names of the variants. `left` is the left edge of the names' area in pixels.
fn legend(text: &mut String, left: f64) {
    for (index, (variant, colour)) in LINES.iter().enumerate() {
        let y = MARGIN + 20.0 * index as f64;
        line(text, (left, y), (left + 20.0, y), colour);
        label(text, (left + 26.0, y + 4.0), "start", variant.name());
    }
}

/// Returns the smallest round number that is at least `value` and at least 1.
fn nice_above(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0]
        .iter()
        .map(|step| step * power)
        .find(|top| *top >= value)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number() {
        for (value, top) in [
            (0.0, 1.0),
            (1.0, 1.0),
            (1234.0, 1500.0),
            (245_000.0, 300_000.0),
        ] {
            assert_eq!(nice_above(value), top);
        }
    }
}
