//! Checks the citations between requirements and code.
//!
//! The code and tests that a requirement cites must exist. The TCP engine (`proto/engine`) must
//! pass each cited packet script. The list `specs/rfc9293.toml` must contain each id, such as
//! MUST-18, that code below `proto` and packet scripts cite.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{Requirement, Spec};
use crate::source::{SourceFile, code_only};

/// Folder of the packet scripts, `rfcNNNN/name.pkt`.
const SCRIPTS: &str = "tests/conformance/scripts/";
/// Start of a remark in a packet script that the engine does not pass.
const LACKS: &str = "// engine: lacks:";
/// Folders whose tests are named in a list instead of marked with `#[test]`. Each entry has the
/// folder and the file that contains the list.
const LISTED: [(&str, &str); 2] = [
    ("tests/interop/", "tests/interop/main.rs"),
    ("tests/posix/", "tests/posix/posix.c"),
];
/// Keywords of Rust that introduce the definition of a named item.
const KEYWORDS: [&str; 9] = [
    "fn", "struct", "enum", "const", "static", "trait", "type", "mod", "union",
];
/// Prefixes of the ids that RFC 9293 gives to its requirements.
const IDS: [&str; 3] = ["MUST-", "SHLD-", "MAY-"];
/// Number of the RFC whose requirements have these ids.
const IDS_OF: u32 = 9293;

/// The files of the source tree by path.
pub struct Tree<'a> {
    files: BTreeMap<&'a str, &'a SourceFile>,
}

impl<'a> Tree<'a> {
    /// Returns an index of `files`.
    pub fn new(files: &'a [SourceFile]) -> Self {
        let files = files.iter().map(|file| (file.path.as_str(), file));
        Self {
            files: files.collect(),
        }
    }

    /// Returns a message for each wrong citation in `spec`.
    pub fn check(&self, spec: &Spec) -> Vec<String> {
        let each = |requirement: &Requirement| {
            let code = requirement
                .code
                .iter()
                .map(|cited| (cited, self.code(cited)));
            let test = requirement
                .test
                .iter()
                .map(|cited| (cited, self.test(cited)));
            let wrong = |(cited, result): (&String, Result<(), String>)| {
                let why = result.err()?;
                Some(format!(
                    "RFC {} {}: {cited}: {why}",
                    spec.rfc, requirement.id
                ))
            };
            code.chain(test).filter_map(wrong).collect::<Vec<_>>()
        };
        spec.requirements.iter().flat_map(each).collect()
    }

    /// Splits a citation `path:symbol` into the file and the symbol.
    fn split<'c>(&self, cited: &'c str) -> Result<(&'a SourceFile, &'c str), String> {
        let (path, symbol) = cited.split_once(':').ok_or("not of the form path:symbol")?;
        let file = self.files.get(path).ok_or("no such file")?;
        Ok((file, symbol))
    }

    /// Checks a citation `path:symbol`. A Rust file must define the symbol. A file of another
    /// language must contain the symbol as a word outside of comments and literals.
    fn code(&self, cited: &str) -> Result<(), String> {
        let (file, symbol) = self.split(cited)?;
        let code = code_only(&file.text);
        let defined = if file.path.ends_with(".rs") {
            KEYWORDS.iter().any(|word| defines(&code, word, symbol))
        } else {
            words(&code).any(|(_, word)| word == symbol)
        };
        defined.then_some(()).ok_or("no such symbol".to_owned())
    }

    /// Checks a citation of a test: a script `rfcNNNN/name.pkt` that the engine passes, or a test
    /// `path:function`.
    pub fn test(&self, cited: &str) -> Result<(), String> {
        if cited.ends_with(".pkt") {
            let path = format!("{SCRIPTS}{cited}");
            let script = self.files.get(path.as_str()).ok_or("no such script")?;
            let lacks = script.text.lines().any(|line| line.starts_with(LACKS));
            return match lacks {
                true => Err("the engine does not pass this script".to_owned()),
                false => Ok(()),
            };
        }
        let (file, name) = self.split(cited)?;
        let list = LISTED
            .iter()
            .find(|(folder, _)| file.path.starts_with(folder));
        let is_test = match list {
            Some((_, list)) => self.is_listed(file, name, list),
            None => is_marked(&file.text, name),
        };
        is_test.then_some(()).ok_or("no such test".to_owned())
    }

    /// Returns true if the code of `file` and the code of the file at the path `list` both contain
    /// the word `name`.
    fn is_listed(&self, file: &SourceFile, name: &str, list: &str) -> bool {
        let has = |text: &str| words(&code_only(text)).any(|(_, word)| word == name);
        has(&file.text) && self.files.get(list).is_some_and(|list| has(&list.text))
    }

    /// Finds ids, such as MUST-18, that the list of RFC 9293 does not contain. Returns a message
    /// for each occurrence of an unknown id in a file below `proto` or in a packet script. Returns
    /// no message if `specs` does not contain the list of RFC 9293.
    pub fn check_ids(&self, specs: &[Spec]) -> Vec<String> {
        let Some(spec) = specs.iter().find(|spec| spec.rfc == IDS_OF) else {
            return Vec::new();
        };
        // RFC 9293 uses some ids twice. The list distinguishes them by a second word: `MUST-20 R1`.
        let name = |r: &'_ Requirement| r.id.split(' ').next().unwrap_or_default().to_owned();
        let known: BTreeSet<String> = spec.requirements.iter().map(name).collect();
        let is_source = |path: &str| {
            path.starts_with("proto/") || path.starts_with(SCRIPTS) && path.ends_with(".pkt")
        };
        let unknown = |file: &SourceFile| {
            let ids = IDS.iter().flat_map(|prefix| ids(&file.text, prefix));
            let path = &file.path;
            let complain = |id: String| format!("{path}: specs/rfc{IDS_OF}.toml has no {id}");
            ids.filter(|id| !known.contains(id))
                .map(complain)
                .collect::<Vec<_>>()
        };
        let files = self.files.values().filter(|file| is_source(&file.path));
        files.flat_map(|file| unknown(file)).collect()
    }
}

/// Returns the words of `text`, each with its offset.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let base = text.as_ptr() as usize;
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr() as usize - base, word))
}

/// Returns true if the word `keyword` is in `code`, and `symbol` is the word after it.
fn defines(code: &str, keyword: &str, symbol: &str) -> bool {
    let mut before = "";
    words(code).any(|(_, word)| {
        let found = before == keyword && word == symbol;
        // Only adjacent words count, so that `const fn f` does not define a constant `f`.
        before = word;
        found
    })
}

/// Returns true if the text defines a function `name` that is marked with `#[test]`, and not with
/// `#[ignore]`.
fn is_marked(text: &str, name: &str) -> bool {
    let code = code_only(text);
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let is_attribute = |line: &&&str| line.is_empty() || line.starts_with("#[");
    let marked = |at: usize| {
        let above: Vec<_> = lines[..at].iter().rev().take_while(is_attribute).collect();
        let ignored = above.iter().any(|line| line.starts_with("#[ignore"));
        above.contains(&&"#[test]") && !ignored
    };
    (0..lines.len()).any(|at| defines(lines[at], "fn", name) && marked(at))
}

/// Returns all ids in `text` that consist of `prefix` and a number.
fn ids(text: &str, prefix: &str) -> Vec<String> {
    let id = |(at, _): (usize, &str)| {
        let rest = &text[at + prefix.len()..];
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then(|| format!("{prefix}{digits}"))
    };
    text.match_indices(prefix).filter_map(id).collect()
}
