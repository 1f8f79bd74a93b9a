//! The limits of STYLE that a machine can hold: sizes, and where unsafe code and clocks may be.
//!
//! Offenders of the past are in `tidy-ratchet.txt` with their size; they may shrink, not grow.

use std::{collections::BTreeMap, fs, path::Path};

use clap::Args;
use tidelane_tests::tools::source_root;

use crate::source::{SourceFile, code_only, source_files};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
const LINE_LENGTH_MAX: usize = 100;
const RATCHET: &str = "tools/xtask/tidy-ratchet.txt";

/// Options of `tidy`.
#[derive(Args, Debug)]
pub struct Options {
    /// Record the present offenders as those of the past
    #[arg(long)]
    bless: bool,
}

/// Something over its limit: what and where, how much, and in words.
#[derive(Debug, PartialEq, Eq)]
struct Offence {
    key: String,
    size: usize,
    text: String,
}

/// Checks the tree.
pub fn run(options: &Options) -> Result<(), String> {
    let root = source_root();
    let offences: Vec<Offence> = source_files(&root)?.iter().flat_map(check_file).collect();
    if options.bless {
        return bless(&root, &offences);
    }
    let text = fs::read_to_string(root.join(RATCHET)).unwrap_or_default();
    let ratchet = parse_ratchet(&text);
    let mut new = 0;
    for offence in &offences {
        if ratchet
            .get(&offence.key)
            .is_some_and(|size| offence.size <= *size)
        {
            continue;
        }
        eprintln!("{}", offence.text);
        new += 1;
    }
    let past = offences.len() - new;
    if new > 0 {
        return Err(format!("tidy: {new} new offences ({past} of the past)"));
    }
    println!("tidy: no new offence ({past} of the past in {RATCHET})");
    Ok(())
}

fn bless(root: &Path, offences: &[Offence]) -> Result<(), String> {
    let head = "# Offenders of the past: `size key`. Written by `cargo xtask tidy --bless`.\n";
    let lines: String = offences
        .iter()
        .map(|o| format!("{} {}\n", o.size, o.key))
        .collect();
    fs::write(root.join(RATCHET), format!("{head}{lines}")).map_err(|error| error.to_string())
}

fn parse_ratchet(text: &str) -> BTreeMap<String, usize> {
    let entry = |line: &str| {
        let (size, key) = line.split_once(' ')?;
        Some((key.to_owned(), size.parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

fn check_file(file: &SourceFile) -> Vec<Offence> {
    let extension = Path::new(&file.path)
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or("");
    let mut offences = check_paths(file);
    if ["rs", "c", "h", "sh", "py"].contains(&extension) {
        offences.extend(check_lines(file));
    }
    if extension == "rs" {
        let code = code_only(&file.text);
        offences.extend(check_length(file, &code));
        offences.extend(check_functions(file, &code));
        offences.extend(check_words(file, &code));
    }
    offences
}

/// No path of one particular machine.
fn check_paths(file: &SourceFile) -> Vec<Offence> {
    // In pieces, so that this file is not an offender itself.
    let banned = [["/ho", "me/"].concat(), ["/wo", "rk/"].concat()];
    let count = |text: &str| -> usize { banned.iter().map(|b| text.matches(b).count()).sum() };
    let size = count(&file.text);
    if size == 0 {
        return Vec::new();
    }
    let line = file
        .text
        .lines()
        .position(|line| count(line) > 0)
        .unwrap_or(0)
        + 1;
    vec![Offence {
        key: format!("machine-path {}", file.path),
        size,
        text: format!("{}:{line}: a path of one particular machine", file.path),
    }]
}

fn check_lines(file: &SourceFile) -> Vec<Offence> {
    let long = |line: &str| line.chars().count() > LINE_LENGTH_MAX;
    let size = file.text.lines().filter(|line| long(line)).count();
    let Some(first) = file.text.lines().position(long) else {
        return Vec::new();
    };
    vec![Offence {
        key: format!("long-lines {}", file.path),
        size,
        text: format!(
            "{}:{}: {size} lines over {LINE_LENGTH_MAX} characters",
            file.path,
            first + 1
        ),
    }]
}

/// Whether a whole file is tests.
fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ["tests.rs", "props.rs"].contains(&name)
        || path.starts_with("tests/")
        || path
            .split('/')
            .any(|part| part == "tests" || part == "benches")
}

/// Where the tests at a file's end start.
fn tests_start(code: &str) -> usize {
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let rest = &code[at + line.len()..];
        let next = rest.trim_start();
        if line.trim() == "#[cfg(test)]" && next.starts_with("mod ") {
            return at;
        }
        at += line.len();
    }
    code.len()
}

fn check_length(file: &SourceFile, code: &str) -> Option<Offence> {
    let lines = code[..tests_start(code)].lines().count();
    if is_test_file(&file.path) || lines <= FILE_LINES_MAX {
        return None;
    }
    Some(Offence {
        key: format!("long-file {}", file.path),
        size: lines,
        text: format!(
            "{}: {lines} lines without tests, over {FILE_LINES_MAX}",
            file.path
        ),
    })
}

/// A function: its name, its first line (from 0) and how many lines it has.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

fn check_functions(file: &SourceFile, code: &str) -> Vec<Offence> {
    let long = functions(code)
        .into_iter()
        .filter(|f| f.lines > FUNCTION_LINES_MAX);
    long.map(|Function { name, line, lines }| Offence {
        key: format!("long-function {}:{name}", file.path),
        size: lines,
        text: format!(
            "{}:{}: {name} has {lines} lines, over {FUNCTION_LINES_MAX}",
            file.path,
            line + 1
        ),
    })
    .collect()
}

fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let before = at.checked_sub(1).map(|at| bytes[at]);
        if before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let name: String = code[at + 3..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let Some(len) = body_end(&code[at..]).filter(|_| !name.is_empty()) else {
            continue;
        };
        found.push(Function {
            name,
            line: code[..at].matches('\n').count(),
            lines: code[at..at + len].matches('\n').count() + 1,
        });
    }
    found
}

/// The length up to the end of a function's body; none for a declaration without one.
fn body_end(code: &str) -> Option<usize> {
    let mut brackets = 0;
    let mut braces = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            // A brace inside brackets is a constant's in a type, or a closure's.
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && brackets == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        if brackets < 0 || braces < 0 {
            return None;
        }
    }
    None
}

/// Words that only some places may use: STYLE rules 3 and 15.
fn check_words(file: &SourceFile, code: &str) -> Vec<Offence> {
    let path = file.path.as_str();
    let code = &code[..tests_start(code)];
    if is_test_file(path) {
        return Vec::new();
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut offences = Vec::new();
    let unsafe_place = name == "sys.rs" || name.ends_with("_unsafe.rs");
    if !unsafe_place && !path.starts_with("bench/") {
        offences.extend(count_word(
            path,
            code,
            "unsafe",
            "unsafe code outside *_unsafe.rs, sys.rs",
        ));
    }
    let pure = [
        "proto/",
        "service/host/",
        "sim/netem/",
        "sim/linux-model/",
        "sim/world/",
    ];
    if pure.iter().any(|folder| path.starts_with(folder)) {
        for word in ["SystemTime", "thread_rng", "RandomState"] {
            offences.extend(count_word(
                path,
                code,
                word,
                "time and chance are arguments",
            ));
        }
        offences.extend(count_word(
            path,
            code,
            "Instant::now",
            "time is an argument",
        ));
    }
    offences
}

fn count_word(path: &str, code: &str, word: &str, why: &str) -> Option<Offence> {
    let in_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let whole = |at: usize| {
        !in_word(code[..at].chars().next_back()) && !in_word(code[at + word.len()..].chars().next())
    };
    // `unsafe(no_mangle)` is how edition 2024 writes attributes, not a block.
    let attribute = |at: usize| code[..at].ends_with("#[") || code[..at].ends_with("#![");
    let found: Vec<usize> = code
        .match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| whole(*at) && !attribute(*at))
        .collect();
    let line = code[..*found.first()?].matches('\n').count() + 1;
    Some(Offence {
        key: format!("{word} {path}"),
        size: found.len(),
        text: format!("{path}:{line}: {word}, {} times: {why}", found.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: String) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text,
        }
    }

    #[test]
    fn functions_are_measured_whatever_is_inside() {
        let code = "trait T { fn declared(&self) -> [u8; 4]; }\n\
                    fn one() -> [u8; { 1 + 1 }] {\n    if x { y } else { z }\n}\n\
                    fn two<F: Fn(fn(u8)) -> u8>(f: F) {}\n";
        let found = functions(code);
        let names: Vec<_> = found
            .iter()
            .map(|f| (f.name.as_str(), f.line, f.lines))
            .collect();
        assert_eq!(names, [("one", 1, 3), ("two", 4, 1)]);
    }

    #[test]
    fn each_limit_is_held() {
        let long_line = format!("// {}\n", "x".repeat(LINE_LENGTH_MAX));
        let long_function = format!("fn f() {{\n{}}}\n", "    x;\n".repeat(FUNCTION_LINES_MAX));
        let long_file = "// x\n".repeat(FILE_LINES_MAX + 1);
        let tests = format!(
            "#[cfg(test)]\nmod tests {{\n{}}}\n",
            "// x\n".repeat(FILE_LINES_MAX)
        );
        let machine = ["// /ho", "me/x\n"].concat();
        let cases = [
            ("proto/a.rs", long_line, "long-lines proto/a.rs", 1),
            (
                "proto/a.rs",
                long_function,
                "long-function proto/a.rs:f",
                FUNCTION_LINES_MAX + 2,
            ),
            (
                "proto/a.rs",
                long_file.clone(),
                "long-file proto/a.rs",
                FILE_LINES_MAX + 1,
            ),
            ("README.md", machine, "machine-path README.md", 1),
            ("nic/a.rs", "unsafe { x }".to_owned(), "unsafe nic/a.rs", 1),
            (
                "proto/a.rs",
                "Instant::now()".to_owned(),
                "Instant::now proto/a.rs",
                1,
            ),
        ];
        for (path, text, key, size) in cases {
            let found = check_file(&file(path, text));
            let found: Vec<_> = found.iter().map(|o| (o.key.as_str(), o.size)).collect();
            assert_eq!(found, [(key, size)]);
        }
        for (path, text) in [
            ("proto/a.rs", tests),
            ("proto/a/tests.rs", long_file),
            ("nic/a_unsafe.rs", "unsafe { x }".to_owned()),
            (
                "nic/a.rs",
                "#![forbid(unsafe_code)]\n#[unsafe(no_mangle)]".to_owned(),
            ),
            ("nic/a.rs", "// unsafe\nfn f() { \"unsafe\" }".to_owned()),
        ] {
            assert_eq!(check_file(&file(path, text)), [], "{path}");
        }
    }
}
