//! The source files of the tree, and a scanner that removes comments and literals from Rust code.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A text file of the tree.
#[derive(Debug)]
pub struct SourceFile {
    /// Path relative to the root of the tree.
    pub path: String,
    /// Whole content of the file.
    pub text: String,
}

/// Returns true if `c` may stand in a name (identifier) of Rust or C.
pub fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the text files of the tree, sorted by path: the files that git tracks, and the other
/// files that git does not ignore.
pub fn source_files(root: &Path) -> Result<Vec<SourceFile>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    let mut paths: Vec<String> = if output.status.success() {
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect()
    } else {
        // A source archive has no git repository.
        let mut paths = Vec::new();
        walk(root, Path::new(""), &mut paths);
        paths
    };
    paths.sort();
    paths.dedup();
    let read = |path: String| {
        let text = fs::read_to_string(root.join(&path)).ok()?;
        Some(SourceFile { path, text })
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

/// Adds the paths of all files below the directory `below` to `paths`, except for files in folders
/// called `target` or `.git`. The paths and `below` are relative to `root`.
fn walk(root: &Path, below: &Path, paths: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(root.join(below)) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let path: PathBuf = below.join(&name);
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match (is_dir, name.to_str()) {
            (true, Some("target" | ".git")) => {}
            (true, _) => walk(root, &path, paths),
            (false, _) => paths.push(path.to_string_lossy().into_owned()),
        }
    }
}

/// Replaces comments, strings and character literals in Rust code by spaces. The offsets and line
/// numbers of the remaining code do not change.
pub fn code_only(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = skipped_until(&bytes, at);
        for byte in &mut bytes[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the end of the comment, string or character literal that starts at `at`. Returns `at` if
/// none of them starts there.
fn skipped_until(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let before = at.checked_sub(1).map(|at| bytes[at]);
    let in_word = before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    match rest {
        [b'/', b'/', ..] => find(bytes, at, b"\n"),
        [b'/', b'*', ..] => block_comment_end(bytes, at),
        [b'"', ..] => string_end(bytes, at),
        [b'r', ..] | [b'b', b'r', ..] | [b'c', b'r', ..] if !in_word => {
            raw_string_end(bytes, at).unwrap_or(at)
        }
        [b'\'', ..] => char_end(bytes, at).unwrap_or(at),
        _ => at,
    }
}

/// Returns the offset of `what` at or after `from`, or the length of `bytes` if there is no `what`.
fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let found = bytes[from..]
        .windows(what.len())
        .position(|window| window == what);
    found.map_or(bytes.len(), |found| from + found)
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0;
    let mut at = at;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let start = at + bytes[at..].iter().position(|b| *b == b'r')? + 1;
    let hashes = bytes[start..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(start + hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    Some((find(bytes, start + hashes + 1, &end) + end.len()).min(bytes.len()))
}

/// Returns the end of the character literal at `at`, or `None` if a lifetime starts there.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    match &bytes[at + 1..] {
        [b'\\', _, ..] => {
            let close = bytes[at + 3..].iter().take(10).position(|b| *b == b'\'')?;
            Some(at + 3 + close + 1)
        }
        rest => {
            let len = std::str::from_utf8(&rest[..rest.len().min(4)])
                .map_or_else(
                    |error| std::str::from_utf8(&rest[..error.valid_up_to()]).ok(),
                    Some,
                )?
                .chars()
                .next()?
                .len_utf8();
            (rest.get(len) == Some(&b'\'')).then_some(at + 1 + len + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_removed() {
        let cases = [
            ("a /* { /* } */ { */ b", "ab"),
            ("a // {\nb", "ab"),
            (r#"f("{\"{", x)"#, "f(,x)"),
            ("f(r#\"{\"#, b'{', '\\'', '{')", "f(,b,,)"),
            ("fn f<'a>(x: &'a str) {}", "fnf<'a>(x:&'astr){}"),
            ("'é' 'a", "'a"),
            ("for r in x {}", "forrinx{}"),
        ];
        for (text, compact) in cases {
            let code = code_only(text);
            assert_eq!(code.len(), text.len(), "{text}: the length changed");
            let seen: String = code.split_whitespace().collect();
            assert_eq!(seen, compact);
        }
    }
}
