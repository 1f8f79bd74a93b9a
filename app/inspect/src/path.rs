//! File paths that use no heap memory. A child must not use heap memory between `vfork` and `exec`.

use std::{ffi::CStr, fmt};

/// Size in bytes of the longest path that this crate inspects, including the final NUL. The crate
/// does not inspect a program with a longer path, and reports no reason why the program could not
/// run on Tidelane.
const LEN_MAX: usize = 512;

/// A file path of at most `LEN_MAX - 1` bytes, stored in the value itself.
#[derive(Clone, Copy)]
pub struct InlinePath {
    /// The path, padded with zeros.
    bytes: [u8; LEN_MAX],
}

impl InlinePath {
    /// Makes a path by joining all `parts` without separators. Returns `None` if the path is too
    /// long or contains a zero byte.
    pub(crate) fn new(parts: &[&[u8]]) -> Option<Self> {
        let mut bytes = [0; LEN_MAX];
        let mut used = 0;
        for part in parts {
            let end = used + part.len();
            if end >= LEN_MAX || part.contains(&0) {
                return None;
            }
            bytes[used..end].copy_from_slice(part);
            used = end;
        }
        Some(Self { bytes })
    }

    /// Returns the path as a C string.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Debug for InlinePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_c_str().fmt(f)
    }
}

impl fmt::Display for InlinePath {
    /// Writes bytes that are not UTF-8 as replacement characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_c_str().to_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}
