//! `cargo xtask bench FIGURE`: runs one experiment of `bench/figures`. Most experiments compare
//! Tidelane with the kernel's stack.
//!
//! An experiment is called a figure, because most experiments repeat a figure of a paper. The
//! figure's plan (`plan.toml`) describes the cases and the targets. A run has several rounds. A
//! round measures each case on all stacks in turn. Every second round reverses the order, so that a
//! slow phase of the machine affects all stacks alike. The result and its plot go to `target/bench`
//! and, without `--no-keep`, also to the folder of the plan.

use std::{fs, path::Path};

use clap::Args;
use tidelane_tests::{
    Stop,
    tools::{require_root, source_root, target_dir},
};

mod any_plan;
mod bulk;
mod heading;
mod http;
mod idle;
mod kv;
mod layers;
mod machine;
mod measure;
mod mux;
mod plan;
mod plot;
mod programs;
mod result;
mod rings;
mod rows;

pub use machine::CpuTimes;

use crate::package::{build_measured, run_package};

use any_plan::AnyPlan;
use heading::Heading;
use rows::Row;

/// Options of `bench`.
#[derive(Args, Debug)]
pub struct Options {
    /// Name of a folder of bench/figures, or `instructions`. Without a name, list the figures
    figure: Option<String>,
    /// Number of rounds (default: the plan's)
    #[arg(long, env = "TIDELANE_ROUNDS")]
    rounds: Option<u32>,
    /// Numbers of connections, such as 1,64 (default: the plan's)
    #[arg(long, env = "TIDELANE_CONNECTIONS", value_delimiter = ',')]
    connections: Vec<u32>,
    /// Measure only the kernel's stack and the upper limit of the wire (the test network)
    #[arg(long)]
    without_tidelane: bool,
    /// Do not write the result to the folder of the plan
    #[arg(long)]
    no_keep: bool,
}

impl Options {
    /// Fails if an option has no effect on figures of the plan's kind.
    fn check_for(&self, plan: &AnyPlan) -> Result<(), String> {
        let kind = plan.kind();
        let refuse = |option| {
            Err(format!(
                "{option} has no effect on figures of the kind {kind}"
            ))
        };
        if self.without_tidelane && !plan.can_omit_tidelane() {
            return refuse("--without-tidelane");
        }
        if !self.connections.is_empty() && !plan.has_connections() {
            return refuse("--connections (TIDELANE_CONNECTIONS)");
        }
        Ok(())
    }
}

/// Runs one figure, or lists the figures if the command line names none. The figure `instructions`
/// has no plan: the crate `bench/micro` counts instructions with callgrind.
pub fn run(options: &Options) -> Result<(), String> {
    let root = source_root().join("bench/figures");
    let Some(figure) = &options.figure else {
        return list(&root);
    };
    if figure == "instructions" {
        return run_package("tidelane-micro", &[]);
    }
    let folder = root.join(figure);
    let plan_file = folder.join("plan.toml");
    if !plan_file.is_file() {
        return Err(format!("no figure {figure:?}; make bench lists them"));
    }
    let plan = AnyPlan::read(&plan_file)?;
    options.check_for(&plan)?;
    require_root().map_err(reason_of)?;
    build_measured()?;
    let outcome = measure_plan(plan, options).map_err(reason_of)?;
    finish(figure, &folder, &outcome, !options.no_keep)
}

/// Measures a plan. A number of rounds on the command line replaces the plan's number of rounds.
/// Numbers of connections on the command line replace the plan's numbers of connections. However,
/// for a plan of the kind `requests`, the numbers on the command line select some of the plan's
/// numbers.
fn measure_plan(plan: AnyPlan, options: &Options) -> Result<Outcome, Stop> {
    let rounds = |planned: u32| options.rounds.unwrap_or(planned).max(1);
    let (heading, rows, svg) = match plan {
        AnyPlan::Requests(mut plan) => {
            plan.limit_to(options.rounds, &options.connections);
            let results = measure::run(&plan, !options.without_tidelane)?;
            (
                plan.heading(),
                results.rows(&plan),
                plot::svg(&plan, &results),
            )
        }
        AnyPlan::Bulk(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            let results = bulk::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
        AnyPlan::Http(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            let results = http::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
        AnyPlan::Mux(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            let results = mux::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
        AnyPlan::Idle(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            if !options.connections.is_empty() {
                plan.connections.clone_from(&options.connections);
            }
            let results = idle::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
        AnyPlan::Kv(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            if !options.connections.is_empty() {
                plan.connections.clone_from(&options.connections);
            }
            let results = kv::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
        AnyPlan::Layers(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            let results = layers::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
        AnyPlan::Rings(mut plan) => {
            plan.rounds = rounds(plan.rounds);
            if !options.connections.is_empty() {
                plan.connections.clone_from(&options.connections);
            }
            let results = rings::run(&plan)?;
            (plan.heading(), results.rows(&plan), results.svg(&plan))
        }
    };
    Ok(Outcome { heading, rows, svg })
}

/// The result of a figure: title and placement, the rows of the table, and the plot as SVG.
struct Outcome {
    heading: Heading,
    rows: Vec<Row>,
    svg: String,
}

/// Returns the reason of a skip or failure.
pub fn reason_of(stop: Stop) -> String {
    match stop {
        Stop::Skip(text) | Stop::Fail(text) => text,
    }
}

/// Prints the name and title of `instructions` and of each figure in the folder `root`.
fn list(root: &Path) -> Result<(), String> {
    println!("make bench FIGURE=NAME, where NAME is one of\n");
    println!("  {:<16} instruction counts (callgrind)", "instructions");
    let entries = fs::read_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("plan.toml").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in names {
        let plan = AnyPlan::read(&root.join(&name).join("plan.toml"))?;
        println!("  {name:<16} {}", plan.title());
    }
    Ok(())
}

/// Prints the table, and writes the result and the plot to `target/bench`. If `keep` is true, also
/// writes both to `folder`, the folder of the plan.
fn finish(figure: &str, folder: &Path, outcome: &Outcome, keep: bool) -> Result<(), String> {
    let Outcome { heading, rows, svg } = outcome;
    rows::print_table(heading, rows);
    let command = format!("make bench FIGURE={figure}");
    let json = rows::to_json(figure, heading, rows, &command);
    let text = serde_json::to_string_pretty(&json).map_err(|error| error.to_string())? + "\n";
    let out = target_dir().join("bench");
    fs::create_dir_all(&out).map_err(|error| error.to_string())?;
    let mut files = vec![
        (out.join(format!("{figure}.json")), text.clone()),
        (out.join(format!("{figure}.svg")), svg.clone()),
    ];
    if keep {
        files.push((folder.join("result.json"), text));
        files.push((folder.join("plot.svg"), svg.clone()));
    }
    for (path, text) in files {
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the plan of a figure of the kind `kind`.
    fn plan_of(kind: &str) -> AnyPlan {
        let folders = fs::read_dir(source_root().join("bench/figures")).expect("the figures");
        let files = folders.map(|folder| folder.expect("a folder").path().join("plan.toml"));
        let plans = files.filter(|file| file.is_file());
        let mut plans = plans.map(|file| AnyPlan::read(&file).expect("a plan"));
        let plan = plans.find(|plan| plan.kind() == kind);
        plan.unwrap_or_else(|| panic!("no figure of the kind {kind}"))
    }

    #[test]
    fn an_option_without_effect_is_refused() {
        let options = |connections: &[u32], without_tidelane| Options {
            figure: None,
            rounds: Some(1),
            connections: connections.to_vec(),
            without_tidelane,
            no_keep: true,
        };
        for (kind, has_connections, can_omit) in [
            ("requests", true, true),
            ("idle", true, false),
            ("rings", true, false),
            ("kv", true, false),
            ("bulk", false, false),
            ("http", false, false),
            ("mux", false, false),
            ("layers", false, false),
        ] {
            let plan = plan_of(kind);
            assert_eq!(options(&[], false).check_for(&plan), Ok(()));
            for (options, name, accepted) in [
                (options(&[1], false), "--connections", has_connections),
                (options(&[], true), "--without-tidelane", can_omit),
            ] {
                match options.check_for(&plan) {
                    Ok(()) => assert!(accepted, "{kind} {name}"),
                    Err(text) => {
                        assert!(
                            !accepted && text.contains(kind) && text.contains(name),
                            "{text}"
                        );
                    }
                }
            }
        }
    }
}
