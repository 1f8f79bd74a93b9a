//! `cargo xtask spec`: checks the lists of RFC requirements against code and tests.
//!
//! `specs/rfcNNNN.toml` lists the requirements of an RFC ([`mod@file`] describes the format). Each
//! requirement cites the code that implements it and a test that proves it, or gives the reason for
//! an exception. A requirement counts as missing if it has no code, if it has no test, or if a part
//! is not implemented. An exception and a MAY without code do not count as missing. The check fails
//!
//! * if cited code or a cited test does not exist, if the TCP engine (`proto/engine`) does not pass
//!   a cited packet script, or if code cites an id that RFC 9293 does not have ([`citations`]),
//! * if an RFC has more missing requirements than the ratchet (`spec-ratchet.txt`) allows, or
//! * if a promise of `docs/security.md` names no test or a test that does not exist
//!   ([`promises`]).

use std::{collections::BTreeMap, fs, path::Path};

use clap::Args;
use tidelane_tests::tools::source_root;

use crate::source::{SourceFile, source_files};

mod citations;
mod file;
mod promises;

use citations::Tree;
use file::{Level, Spec, Status};

/// Folder of the lists of requirements.
const FOLDER: &str = "specs";
/// Path of the ratchet: the accepted number of missing requirements of each RFC.
const RATCHET: &str = "tools/xtask/spec-ratchet.txt";

/// Options of `spec`.
#[derive(Args, Debug)]
pub struct Options {
    /// Print only the RFCs with these numbers; all RFCs are checked
    rfcs: Vec<u32>,
    /// List the missing requirements; for a requirement that is implemented in part, also list the
    /// missing part
    #[arg(long)]
    missing: bool,
    /// List the exceptions with their reasons
    #[arg(long)]
    exceptions: bool,
    /// Write the current numbers of missing requirements to the ratchet
    #[arg(long)]
    bless: bool,
}

/// Prints the counts of the selected RFCs, and checks all RFCs and promises. With `bless`, writes
/// the ratchet instead of checking.
pub fn run(options: &Options) -> Result<(), String> {
    let root = source_root();
    let files = source_files(&root)?;
    let specs = read_all(&files)?;
    print_table(options, &specs);
    if options.missing {
        print_listed(options, &specs, |status| !status.is_settled());
    }
    if options.exceptions {
        print_listed(options, &specs, |status| *status == Status::Excepted);
    }
    if options.bless {
        return bless(&root, &specs);
    }
    let messages = messages(&root, &files, &specs);
    messages.iter().for_each(|text| eprintln!("{text}"));
    if messages.is_empty() {
        return Ok(());
    }
    Err(format!("spec: {} messages", messages.len()))
}

/// Reads every `specs/rfcNNNN.toml`. Returns the lists in the order of the RFCs' numbers.
fn read_all(files: &[SourceFile]) -> Result<Vec<Spec>, String> {
    let is_spec = |file: &&SourceFile| {
        let name = file.path.strip_prefix(FOLDER);
        name.is_some_and(|name| name.starts_with("/rfc") && name.ends_with(".toml"))
    };
    let mut specs: Vec<Spec> = files
        .iter()
        .filter(is_spec)
        .map(|file| Spec::parse(&file.path, &file.text))
        .collect::<Result<_, _>>()?;
    specs.sort_by_key(|spec| spec.rfc);
    if specs.is_empty() {
        return Err(format!("spec: nothing in {FOLDER}"));
    }
    Ok(specs)
}

/// Returns the messages of all failed checks.
fn messages(root: &Path, files: &[SourceFile], specs: &[Spec]) -> Vec<String> {
    let tree = Tree::new(files);
    let mut messages: Vec<String> = specs.iter().flat_map(|spec| tree.check(spec)).collect();
    messages.extend(tree.check_ids(specs));
    messages.extend(promises::messages(files, &tree));
    let text = fs::read_to_string(root.join(RATCHET)).unwrap_or_default();
    messages.extend(grown(&parse_ratchet(&text), specs));
    messages
}

/// Returns a message for each RFC that has more missing requirements than the ratchet allows.
fn grown(ratchet: &BTreeMap<u32, usize>, specs: &[Spec]) -> Vec<String> {
    let more = |spec: &Spec| {
        let (now, then) = (
            spec.unsettled(),
            ratchet.get(&spec.rfc).copied().unwrap_or(0),
        );
        (now > then).then(|| {
            format!(
                "RFC {}: {now} requirements are missing, {then} in {RATCHET}",
                spec.rfc
            )
        })
    };
    specs.iter().filter_map(more).collect()
}

/// Returns the accepted number of missing requirements of each RFC.
fn parse_ratchet(text: &str) -> BTreeMap<u32, usize> {
    let entry = |line: &str| {
        let (rfc, missing) = line.split_once(' ')?;
        Some((rfc.parse().ok()?, missing.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

/// Writes the current numbers of missing requirements to the ratchet.
fn bless(root: &Path, specs: &[Spec]) -> Result<(), String> {
    let head = "# Each line: an RFC, and the number of its requirements that lack code or a test.\n\
                # No number may grow. Written by `cargo xtask spec --bless`.\n";
    let lines: String = specs
        .iter()
        .map(|spec| format!("{} {}\n", spec.rfc, spec.unsettled()))
        .collect();
    fs::write(root.join(RATCHET), format!("{head}{lines}")).map_err(|error| error.to_string())
}

fn print_table(options: &Options, specs: &[Spec]) {
    println!(
        "{:<5} {:>4} {:>8} {:>6} {:>7}  {:>4} {:>6} {:>8}  title",
        "RFC", "met", "excepted", "unused", "missing", "MUST", "SHOULD", "untested"
    );
    let mut sum = [0; 7];
    for spec in specs {
        let counts = counts(spec);
        sum.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        if options.rfcs.is_empty() || options.rfcs.contains(&spec.rfc) {
            print_row(&spec.rfc.to_string(), counts, &spec.title);
        }
    }
    print_row("all", sum, "");
}

/// Returns seven counts: the requirements that are met, excepted, unused (a MAY that is not
/// implemented) and missing, the missing MUSTs, the missing SHOULDs, and the untested requirements.
/// An untested requirement also counts as missing.
fn counts(spec: &Spec) -> [usize; 7] {
    let of = |status| spec.count(|s, _| *s == status);
    let missing = |level| spec.count(|s, l| !s.is_settled() && l == level);
    [
        of(Status::Met),
        of(Status::Excepted),
        of(Status::Unused),
        spec.unsettled(),
        missing(Level::Must),
        missing(Level::Should),
        of(Status::Untested),
    ]
}

fn print_row(name: &str, counts: [usize; 7], title: &str) {
    let [met, excepted, unused, missing, must, should, untested] = counts;
    println!(
        "{name:<5} {met:>4} {excepted:>8} {unused:>6} {missing:>7}  {must:>4} {should:>6} \
         {untested:>8}  {title}"
    );
}

/// Prints the requirements whose status `wanted` accepts.
fn print_listed(options: &Options, specs: &[Spec], wanted: impl Fn(&Status) -> bool) {
    for spec in specs {
        if !options.rfcs.is_empty() && !options.rfcs.contains(&spec.rfc) {
            continue;
        }
        for requirement in &spec.requirements {
            let status = requirement.status();
            if wanted(&status) {
                let (id, level) = (&requirement.id, requirement.level);
                println!("\nRFC {} {id} ({level}), {status}", spec.rfc);
                println!("    {}", requirement.text);
                if let Some(why) = requirement.why() {
                    println!("    {status}: {why}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
