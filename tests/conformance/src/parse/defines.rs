//! Definitions in scripts. The line `--define=NAME=value` holds for all IP versions. A line such as
//! `--define-ipv6=NAME=value` holds for one IP version.

use std::collections::BTreeMap;

/// Replaces each `$NAME` in a script by its value. `version` is the name of the IP version, such as
/// `ipv6`. If a name has definitions for this version, the last of them counts. Otherwise the last
/// definition for all versions counts.
pub fn expand(text: &str, version: &str) -> String {
    let own = format!("--define-{version}=");
    let mut values = BTreeMap::new();
    for mark in ["--define=", &own] {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        values.extend(lines.filter_map(|line| line.split_once('=')));
    }
    // Expand the names in reverse order, so that `$AB` is expanded before `$A`.
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
    fn a_definition_for_the_ip_version_has_precedence() {
        let text = "--define-ipv6=A=2\n--define=A=1\n--define=AB=3\n$A $AB $C";
        assert!(expand(text, "ipv4").ends_with("\n1 3 $C"));
        assert!(expand(text, "ipv6").ends_with("\n2 3 $C"));
    }
}
