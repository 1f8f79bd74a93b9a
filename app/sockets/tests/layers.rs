//! Tests of the layers of this crate, which `src/lib.rs` describes: no file imports from a higher
//! layer. `cargo xtask tidy` finds files that import each other.
#![cfg(not(loom))]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The layers, lowest first.
const LAYERS: [&str; 6] = ["sys", "table", "service", "socket", "readiness", "calls"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the code of each file, without comment lines, up to the first line that begins with
/// `#[cfg(test)]`. The key of the map is the file's path without the extension, such as
/// `socket/inner`.
fn files() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    collect(&source(), &mut found);
    found
}

fn collect(folder: &Path, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder of the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a file of the source");
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let code: Vec<&str> = code
                .take_while(|line| !line.starts_with("#[cfg(test)]"))
                .collect();
            let module = path
                .strip_prefix(source())
                .expect("below the source")
                .with_extension("");
            into.insert(module.to_string_lossy().into_owned(), code.join("\n"));
        }
    }
}

fn layer(module: &str) -> Option<usize> {
    let top = module.split('/').next()?;
    LAYERS.iter().position(|layer| *layer == top)
}

/// Returns the paths in the code that start with `root`, without `root` and with braces expanded.
/// If `root` is `crate::`, the code `crate::{a::b, c}` yields `a/b` and `c`.
fn paths(code: &str, root: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(root) {
        let before = code[..at].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            expand("", &code[at + root.len()..], &mut found);
        }
    }
    found
}

/// Adds the path at the start of `code` to `found`, with `prefix` in front. If the path has braces,
/// adds each path that the braces stand for. Returns the rest of the code.
fn expand<'a>(prefix: &str, code: &'a str, found: &mut BTreeSet<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = expand(prefix, rest, found).trim_start();
            match rest.strip_prefix(',') {
                Some(more) if !more.trim_start().starts_with('}') => rest = more,
                Some(more) => return more.trim_start().strip_prefix('}').unwrap_or(more),
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let len = code
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(code.len());
    let (name, rest) = code.split_at(len);
    let path = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}/{name}")
    };
    match rest.strip_prefix("::") {
        Some(more) if len > 0 => expand(&path, more, found),
        _ => {
            found.insert(path);
            rest
        }
    }
}

/// Returns the file of a path: the longest prefix of the path that is a file, or that is a file
/// with `_unsafe` appended. Returns `None` if no prefix is a file.
fn file_of(path: &str, files: &BTreeMap<String, String>) -> Option<String> {
    let mut path = path;
    loop {
        for suffix in ["", "_unsafe"] {
            let name = format!("{path}{suffix}");
            if files.contains_key(&name) {
                return Some(name);
            }
        }
        path = path.rsplit_once('/')?.0;
    }
}

/// Returns the files that each file imports.
fn imports(files: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges = BTreeMap::new();
    for (module, code) in files {
        let parent = module.rsplit_once('/').map_or("", |(parent, _)| parent);
        let mut all = paths(code, "crate::");
        let above = paths(code, "super::");
        all.extend(above.into_iter().map(|path| format!("{parent}/{path}")));
        let targets = all.iter().filter_map(|path| file_of(path, files));
        let others = targets.filter(|target| target != module && target != "lib");
        edges.insert(module.clone(), others.collect::<BTreeSet<_>>());
    }
    edges
}

#[test]
fn no_layer_imports_from_one_above() {
    let files = files();
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (module, targets) in imports(&files) {
        let Some(from) = layer(&module) else { continue };
        for target in targets {
            let Some(to) = layer(&target) else { continue };
            seen.insert((from, to));
            if to > from {
                wrong.push(format!("{module} imports {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Ensure that the test finds imports at all: each layer except the highest is imported
    // by a higher layer.
    let used = (0..LAYERS.len() - 1).all(|to| seen.iter().any(|(a, b)| a > b && *b == to));
    assert!(used, "{seen:?}");
}

#[test]
fn every_file_is_in_a_layer() {
    let files = files();
    let outside = files.keys().filter(|module| layer(module).is_none());
    assert_eq!(outside.collect::<Vec<_>>(), ["lib"]);
}

#[test]
fn paths_in_braces_are_expanded() {
    let code = "use crate::{\n    a::{b, c::D},\n    e,\n};\nfn f() { crate::g::h(1) }";
    let found = paths(code, "crate::");
    assert_eq!(Vec::from_iter(found), ["a/b", "a/c/D", "e", "g/h"]);
    assert_eq!(paths("my_crate::x", "crate::"), BTreeSet::new());
}
