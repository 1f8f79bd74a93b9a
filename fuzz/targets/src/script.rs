//! The fuzz target of the conformance tests' script parser. The parser must return a script or a
//! parse error for every text, and never panic.

use tidelane_conformance::parse::parse;

/// Fuzz target: parses the input as a script.
pub fn script(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = parse(text);
}
