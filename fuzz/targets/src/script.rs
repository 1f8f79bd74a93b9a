//! The parser of packet scripts: any text gives a script or says what it does not understand.

use tidelane_conformance::parse::parse;

/// A script.
pub fn script(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = parse(text);
}
