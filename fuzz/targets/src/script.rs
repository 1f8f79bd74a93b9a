//! The parser of packet scripts: any text is either a script or a parse error.

use tidelane_conformance::parse::parse;

/// Target: parses any text as a script.
pub fn script(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = parse(text);
}
