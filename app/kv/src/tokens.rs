//! The words of a request line of the memcached protocol: a command and its arguments.

use std::ops::Range;

/// Limit of the words that [`Tokens`] finds in a line, as in memcached. Further words are ignored.
/// The session reads the keys of `get`, `gets`, `gat` and `gats` from the line itself, so the limit
/// does not apply to these keys.
pub const TOKENS_MAX: usize = 23;

/// A request line, and the positions of its words.
#[derive(Debug)]
pub struct Tokens<'a> {
    line: &'a [u8],
    /// Start and end of each word, as offsets in the line.
    places: [(usize, usize); TOKENS_MAX],
    /// Number of words.
    len: usize,
}

impl<'a> Tokens<'a> {
    /// Splits a line at its spaces into at most [`TOKENS_MAX`] words.
    pub fn new(line: &'a [u8]) -> Self {
        let mut tokens = Self {
            line,
            places: [(0, 0); TOKENS_MAX],
            len: 0,
        };
        let mut at = 0;
        while tokens.len < TOKENS_MAX {
            let rest = &line[at..];
            let Some(spaces) = rest.iter().position(|byte| *byte != b' ') else {
                break;
            };
            let start = at + spaces;
            let word = line[start..].iter().position(|byte| *byte == b' ');
            at = word.map_or(line.len(), |len| start + len);
            tokens.places[tokens.len] = (start, at);
            tokens.len += 1;
        }
        tokens
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the word with the index `at`. Returns an empty slice if `at` is not less than the
    /// number of words.
    pub fn get(&self, at: usize) -> &'a [u8] {
        &self.line[self.place(at)]
    }

    /// Returns the position in the line of the word with the index `at`. Returns an empty range if
    /// `at` is not less than the number of words.
    pub fn place(&self, at: usize) -> Range<usize> {
        let (start, end) = self.places.get(at).copied().unwrap_or((0, 0));
        start..end
    }

    /// Returns the last of the found words. Returns an empty slice if the line has no words.
    pub fn last(&self) -> &'a [u8] {
        self.get(self.len.wrapping_sub(1))
    }

    /// Iterates over the words, beginning with the word of index `start`.
    pub fn from(&self, start: usize) -> impl Iterator<Item = &'a [u8]> {
        (start..self.len).map(|at| self.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separated_by_spaces_only() {
        let tokens = Tokens::new(b"  set a\tb  7 ");
        let words: Vec<&[u8]> = tokens.from(0).collect();
        assert_eq!(words, [&b"set"[..], b"a\tb", b"7"]);
        assert_eq!(tokens.get(3), b"");
        assert_eq!(tokens.last(), b"7");
        assert_eq!(Tokens::new(b"   ").len(), 0);
        assert_eq!(Tokens::new(b"").last(), b"");
        assert_eq!(Tokens::new("x ".repeat(40).as_bytes()).len(), TOKENS_MAX);
    }
}
