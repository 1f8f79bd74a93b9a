//! Checks that each security promise in the tables of `docs/security.md` names an existing test.

use super::citations::Tree;
use crate::source::SourceFile;

/// Path of the page with the tables of promises.
const PAGE: &str = "docs/security.md";
/// Start of the header row of a table of promises.
const HEAD: &str = "| asset | attacker | promise |";

/// Returns a message for each row that names no test, and for each named test that does not exist.
/// Also returns a message for a row that does not have five columns, and for a page that is missing
/// or has no promise.
pub fn messages(files: &[SourceFile], tree: &Tree<'_>) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE}: no such file")];
    };
    let rows: Vec<&str> = rows(&page.text).collect();
    if rows.is_empty() {
        return vec![format!("{PAGE}: no promise")];
    }
    rows.into_iter().flat_map(|row| check(row, tree)).collect()
}

/// Returns the rows of all tables of promises, without the header rows.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        if line.starts_with(HEAD) {
            inside = true;
            return false;
        }
        inside &= line.starts_with('|');
        inside && !line.starts_with("|---")
    })
}

/// Returns the messages for one row.
fn check(row: &str, tree: &Tree<'_>) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [_, _, promise, _, tests] = cells[..] else {
        return vec![format!("{PAGE}: not five columns: {row}")];
    };
    let cited: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
    if cited.is_empty() {
        return vec![format!("{PAGE}: no test: {promise}")];
    }
    let wrong = |cited: &str| {
        let why = tree.test(cited).err()?;
        Some(format!("{PAGE}: {cited}: {why}"))
    };
    cited.into_iter().filter_map(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages_of(table: &str) -> Vec<String> {
        let file = |path: &str, text: &str| SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file("a/tests.rs", "#[test]\nfn it_holds() {}\nfn helper() {}\n"),
            file(PAGE, &format!("# Title\n\n{HEAD} how | test |\n{table}")),
        ];
        messages(&files, &Tree::new(&files))
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        const RULE: &str = "|---|---|---|---|---|\n";
        let table = |row: &str| messages_of(&format!("{RULE}{row}\n\n| x | y |\n"));
        assert!(table("| a | b | c | d | `a/tests.rs:it_holds` |").is_empty());
        assert_eq!(messages_of(RULE), [format!("{PAGE}: no promise")]);
        for (row, why) in [
            ("| a | b | c | d | none |", "no test: c"),
            ("| a | b | c | `a/tests.rs:it_holds` |", "not five columns"),
            ("| a | b | c | d | `a/tests.rs:helper` |", "no such test"),
            (
                "| a | b | c | d | `a/tests.rs:it_holds`, `b.rs:gone` |",
                "b.rs:gone: no such file",
            ),
        ] {
            let messages = table(row);
            assert!(
                messages.len() == 1 && messages[0].contains(why),
                "{row}: {messages:?}"
            );
        }
    }
}
