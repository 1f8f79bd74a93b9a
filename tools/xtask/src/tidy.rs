//! `cargo xtask tidy`: checks the style rules that can be automated.
//!
//! The rules limit the lengths of files, functions and lines. Only some files may contain unsafe
//! code, and only some crates may read clocks or draw random numbers. Further rules concern files
//! that import each other, paths of a developer's machine, the openings of comments, and the
//! subjects of commits. The ratchet, `tidy-ratchet.txt`, lists the known offences with their sizes.
//! The check accepts a known offence if its size is not larger than in the ratchet.

mod comments;
mod cycles;
mod imports;
mod subjects;

use std::{collections::BTreeMap, fs, path::Path};

use clap::Args;
use tidelane_tests::tools::source_root;

use crate::source::{SourceFile, code_only, is_name_char, source_files};

/// Largest number of lines of a Rust function.
const FUNCTION_LINES_MAX: usize = 70;
/// Largest number of lines of a Rust file, without its tests.
const FILE_LINES_MAX: usize = 500;
/// Largest number of characters of a line.
const LINE_LENGTH_MAX: usize = 100;
/// Path of the ratchet.
const RATCHET: &str = "tools/xtask/tidy-ratchet.txt";

/// Options of `tidy`.
#[derive(Args, Debug)]
pub struct Options {
    /// Write the current offences and their sizes to the ratchet
    #[arg(long)]
    bless: bool,
}

/// A violation of a rule by a file, a function or a commit.
#[derive(Debug, PartialEq, Eq)]
struct Offence {
    /// Key in the ratchet: the name of the rule, and the file, function or commit.
    key: String,
    /// Size of the offence: a number of lines, characters, occurrences or files.
    size: usize,
    /// Message for the user: the place and the rule.
    text: String,
}

/// Checks the files of the tree and the commits of the branch. Fails if the ratchet does not cover
/// an offence. With `bless`, writes the offences to the ratchet instead.
pub fn run(options: &Options) -> Result<(), String> {
    let root = source_root();
    let files = source_files(&root)?;
    let mut offences: Vec<Offence> = files.iter().flat_map(check_file).collect();
    offences.extend(cycles::check(&files));
    match subjects::check(&root) {
        Some(of_commits) => offences.extend(of_commits),
        None => println!("tidy: no origin/main here, the subjects of commits are not checked"),
    }
    if options.bless {
        return bless(&root, &offences);
    }
    let text = fs::read_to_string(root.join(RATCHET)).unwrap_or_default();
    let ratchet = parse_ratchet(&text);
    let new: Vec<_> = offences.iter().filter(|o| is_new(o, &ratchet)).collect();
    for offence in &new {
        eprintln!("{}", offence.text);
    }
    let known = offences.len() - new.len();
    if !new.is_empty() {
        let count = new.len();
        return Err(format!("tidy: {count} new offences ({known} known)"));
    }
    println!("tidy: no new offence ({known} known in {RATCHET})");
    Ok(())
}

/// Returns true if the ratchet does not contain `offence`, or contains a smaller size for it.
fn is_new(offence: &Offence, ratchet: &BTreeMap<String, usize>) -> bool {
    let known = ratchet.get(&offence.key);
    known.is_none_or(|size| offence.size > *size)
}

/// Writes the current offences to the ratchet.
fn bless(root: &Path, offences: &[Offence]) -> Result<(), String> {
    let head = "# Each line: the size and the key of a known offence. No size may grow. Written by \
                `cargo xtask tidy --bless`.\n";
    let lines: String = offences
        .iter()
        .map(|o| format!("{} {}\n", o.size, o.key))
        .collect();
    fs::write(root.join(RATCHET), format!("{head}{lines}")).map_err(|error| error.to_string())
}

/// Returns the size of each offence in the text of the ratchet, by key.
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
    offences.extend(comments::check(file));
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

/// Finds absolute paths that exist only on a developer's machine.
fn check_paths(file: &SourceFile) -> Vec<Offence> {
    // Each path is written in two pieces, because the check also reads this file.
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

/// Finds lines that are too long.
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

/// Returns true if the whole file at `path` is the code of tests or benchmarks.
fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ["tests.rs", "props.rs"].contains(&name)
        || path.starts_with("tests/")
        || path
            .split('/')
            .any(|part| part == "tests" || part == "benches")
}

/// Returns the offset of the first test module, which stands at the end of a file. Returns the
/// length of `code` if there is no test module.
fn tests_start(code: &str) -> usize {
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let rest = &code[at + line.len()..];
        let next = rest.trim_start();
        let is_test = ["#[cfg(test)]", "#[cfg(all(test,"]
            .iter()
            .any(|start| line.trim().starts_with(start));
        if is_test && next.starts_with("mod ") {
            return at;
        }
        at += line.len();
    }
    code.len()
}

/// Finds a file that is too long without its tests.
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

/// A function in a source file.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// First line, counted from 0.
    line: usize,
    /// Number of lines.
    lines: usize,
}

/// Finds functions that are too long.
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

/// Returns the functions with a body in `code`.
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
            .take_while(|c| is_name_char(*c))
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

/// Returns the length in bytes of the function at the start of `code`. Returns `None` for a
/// declaration without a body.
fn body_end(code: &str) -> Option<usize> {
    let mut brackets = 0;
    let mut braces = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                // A brace inside brackets belongs to a constant in a type, or to a closure.
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

/// Finds unsafe code in files that must not contain any, and clocks and random numbers in crates
/// that must be deterministic. Test code is not checked.
fn check_words(file: &SourceFile, code: &str) -> Vec<Offence> {
    let path = file.path.as_str();
    let code = &code[..tests_start(code)];
    if is_test_file(path) {
        return Vec::new();
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut offences = Vec::new();
    let may_be_unsafe = name == "sys.rs" || name.ends_with("_unsafe.rs");
    if !may_be_unsafe && !path.starts_with("bench/") {
        offences.extend(count_word(
            path,
            code,
            "unsafe",
            "unsafe code outside *_unsafe.rs, sys.rs",
        ));
    }
    let deterministic = [
        "proto/",
        "service/host/",
        "sim/netem/",
        "sim/linux-model/",
        "sim/world/",
    ];
    if deterministic.iter().any(|folder| path.starts_with(folder)) {
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

/// Counts the occurrences of `word` in the code of a file, except at the start of an attribute.
/// `why` is the rule that forbids the word.
fn count_word(path: &str, code: &str, word: &str, why: &str) -> Option<Offence> {
    let is_whole_word = |at: usize| {
        !code[..at].ends_with(is_name_char) && !code[at + word.len()..].starts_with(is_name_char)
    };
    // An attribute such as `#[unsafe(no_mangle)]` (edition 2024) is not an unsafe block.
    let is_attribute = |at: usize| code[..at].ends_with("#[") || code[..at].ends_with("#![");
    let found: Vec<usize> = code
        .match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| is_whole_word(*at) && !is_attribute(*at))
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
    fn functions_are_measured_with_any_content() {
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
    fn a_known_offender_may_shrink_but_not_grow() {
        let ratchet = parse_ratchet("# size key\n2 comment-opening proto/a.rs\n");
        let offence = |size, path: &str| Offence {
            key: format!("comment-opening {path}"),
            size,
            text: String::new(),
        };
        for (size, path, new) in [
            (1, "proto/a.rs", false),
            (2, "proto/a.rs", false),
            (3, "proto/a.rs", true),
            (1, "proto/b.rs", true),
        ] {
            let offence = offence(size, path);
            assert_eq!(is_new(&offence, &ratchet), new, "{offence:?}");
        }
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
            (
                "specs/a.toml",
                "# What is asked\n".to_owned(),
                "comment-opening specs/a.toml",
                1,
            ),
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
