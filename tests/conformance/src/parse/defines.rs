//! Definitions: `--define=NAME=value`, and `--define-ipv6=NAME=value` for IPv6.

use std::collections::BTreeMap;

/// Expands each `$NAME` of a script to the value of the last definition for `version` (a name), or
/// else of the last definition for all versions.
pub fn expand(text: &str, version: &str) -> String {
    let own = format!("--define-{version}=");
    let mut values = BTreeMap::new();
    for mark in ["--define=", &own] {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        values.extend(lines.filter_map(|line| line.split_once('=')));
    }
    // In reverse order a name is expanded before its own prefixes.
    values
        .iter()
        .rev()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${name}"), value.trim_end())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_s_own_definition_counts_first() {
        let text = "--define-ipv6=A=2\n--define=A=1\n--define=AB=3\n$A $AB $C";
        assert!(expand(text, "ipv4").ends_with("\n1 3 $C"));
        assert!(expand(text, "ipv6").ends_with("\n2 3 $C"));
    }
}
