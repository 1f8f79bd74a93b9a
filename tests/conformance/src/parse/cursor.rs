//! The parser's cursor, which reads words and numbers, skips blanks (whitespace, line ends and
//! comments), and counts lines and columns. The cursor also collects the remarks in comments. A
//! remark says why the script fails on a stack.

use crate::{
    ast::{Position, Remark},
    release::Range,
};

/// A syntax error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Position of the error.
    pub at: Position,
    /// The message, such as `expected "=", found the end of the script`.
    pub message: String,
}

/// Parses a remark in a comment. Returns `None` if the comment contains no remark.
///
/// A remark has the form `STACK [RANGE]: differs: REASON` or `STACK [RANGE]: lacks: REASON`, such
/// as `kernel-ipv6 < 6.10: differs: REASON`. STACK is `kernel` or `engine`, and may have the suffix
/// of an IP version. RANGE is a range of kernel releases. A remark on the engine must have the word
/// `lacks` and no range.
fn remark(comment: &str) -> Option<Remark> {
    let mut parts = comment.trim_start().splitn(3, ':');
    let (head, word, reason) = (parts.next()?, parts.next()?, parts.next()?);
    let (stack, releases) = head.split_once(' ').unwrap_or((head, ""));
    let lacks = match word.trim() {
        "lacks" => true,
        "differs" => false,
        _ => return None,
    };
    let releases = Range::parse(releases)?;
    let is_known = match stack.split('-').next()? {
        "kernel" => true,
        "engine" => lacks && releases == Range::default(),
        _ => false,
    };
    is_known.then(|| Remark {
        stack: stack.to_owned(),
        releases,
        lacks,
        reason: reason.trim().to_owned(),
    })
}

/// Result of a parser function.
pub type Parsed<T> = Result<T, ParseError>;

/// The position of the parser in the text of a script, and the remarks in the `//` comments before
/// this position.
pub struct Cursor<'a> {
    /// The text from the position on.
    rest: &'a str,
    /// Number of the line, from 1.
    line: u32,
    /// Number of the character in the line, from 1.
    column: u32,
    /// True if comments begin with `#`, as in Python. False for `//` and `/* */`.
    hash_comments: bool,
    /// Remarks in the `//` comments so far.
    pub remarks: Vec<Remark>,
}

/// Returns true if `c` may be in a word.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the start of `text`.
    pub fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            line: 1,
            column: 1,
            hash_comments: false,
            remarks: Vec::new(),
        }
    }

    /// Returns a cursor over `text`, the content of a `%{ }%` block. `at` is the position of the
    /// content in the script.
    pub fn within(text: &'a str, at: Position) -> Self {
        Self {
            rest: text,
            line: at.line,
            column: at.column,
            hash_comments: true,
            remarks: Vec::new(),
        }
    }

    /// Returns the line and the column of the next character.
    pub fn position(&self) -> Position {
        Position {
            line: self.line,
            column: self.column,
        }
    }

    /// Returns true at the end of the text.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next character without consuming it.
    pub fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Returns true if the rest of the script starts with `text`.
    pub fn is_next(&self, text: &str) -> bool {
        self.rest.starts_with(text)
    }

    /// Returns true if the rest of the script starts with the whole word `word`.
    pub fn is_next_word(&self, word: &str) -> bool {
        let after = self.rest.strip_prefix(word);
        after.is_some_and(|after| !after.starts_with(is_word))
    }

    /// Returns the error "expected `what`, found ...". After "found", the message has the word or
    /// the character at the position, or says that the line or the script ends there.
    pub fn error<T>(&self, what: &str) -> Parsed<T> {
        let line = self.rest.lines().next().unwrap_or("").trim_end();
        let found: String = match line.chars().next() {
            None if self.rest.is_empty() => "the end of the script".to_owned(),
            None => "the end of the line".to_owned(),
            Some(c) if is_word(c) => line.chars().take_while(|c| is_word(*c)).collect(),
            Some(c) => c.to_string(),
        };
        Err(ParseError {
            at: self.position(),
            message: format!("expected {what}, found {found}"),
        })
    }

    /// Consumes and returns `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        for c in taken.chars() {
            if c == '\n' {
                (self.line, self.column) = (self.line + 1, 1);
            } else {
                self.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    /// Consumes and returns the text before the first character for which `wanted` returns false.
    pub fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let len = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        self.take(len)
    }

    /// Returns true if `text` is next. In this case consumes `text` and the blanks after it.
    pub fn eat(&mut self, text: &str) -> bool {
        let found = self.is_next(text);
        if found {
            self.take(text.len());
            self.skip_blanks();
        }
        found
    }

    /// Returns true if the whole word `word` is next. In this case consumes `word` and the blanks
    /// after it.
    pub fn eat_word(&mut self, word: &str) -> bool {
        self.is_next_word(word) && self.eat(word)
    }

    /// Consumes `text` and the blanks after it. Fails if `text` is not next.
    pub fn need(&mut self, text: &str) -> Parsed<()> {
        match self.eat(text) {
            true => Ok(()),
            false => self.error(&format!("\"{text}\"")),
        }
    }

    /// Consumes the text up to and including `end`, and the blanks after it. Returns the text
    /// before `end`.
    pub fn need_until(&mut self, end: &str) -> Parsed<&'a str> {
        let Some(len) = self.rest.find(end) else {
            return self.error(&format!("a closing {end}"));
        };
        let inside = self.take(len);
        self.take(end.len());
        self.skip_blanks();
        Ok(inside)
    }

    /// Consumes and returns a word, and consumes the blanks after it. Fails with "expected `what`"
    /// if there is no word.
    pub fn need_word(&mut self, what: &str) -> Parsed<&'a str> {
        if !self.rest.starts_with(is_word) {
            return self.error(what);
        }
        let word = self.take_while(is_word);
        self.skip_blanks();
        Ok(word)
    }

    /// Parses a decimal or hexadecimal (`0x`) number. Fails if the number exceeds `max`. `what`
    /// names the number in errors.
    pub fn need_number(&mut self, what: &str, max: u64) -> Parsed<u64> {
        let at = self.position();
        if !self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return self.error(what);
        }
        let number = match self.rest.strip_prefix("0x") {
            Some(_) => {
                self.take(2);
                u64::from_str_radix(self.take_while(|c| c.is_ascii_hexdigit()), 16)
            }
            None => self.take_while(|c| c.is_ascii_digit()).parse(),
        };
        self.skip_blanks();
        match number {
            Ok(number) if number <= max => Ok(number),
            _ => Err(ParseError {
                at,
                message: format!("{what} is out of range: at most {max}"),
            }),
        }
    }

    /// Parses an unsigned 32-bit number.
    pub fn need_u32(&mut self, what: &str) -> Parsed<u32> {
        Ok(self.need_number(what, u32::MAX.into())? as u32)
    }

    /// Parses an unsigned 16-bit number.
    pub fn need_u16(&mut self, what: &str) -> Parsed<u16> {
        Ok(self.need_number(what, u16::MAX.into())? as u16)
    }

    /// Parses a time in seconds, with an optional fraction. Returns microseconds.
    pub fn need_time(&mut self) -> Parsed<u64> {
        let what = "a time in seconds";
        if !self
            .rest
            .starts_with(|c: char| c.is_ascii_digit() || c == '.')
        {
            return self.error(what);
        }
        let at = self.position();
        let whole = self.take_while(|c| c.is_ascii_digit());
        // Do not read "..." as a fraction. The three points separate the two times of a blocking
        // call: the start and the return, as in `0.1...0.2 read(...)`.
        let fraction = match self.is_next("...") {
            false if self.is_next(".") => {
                self.take(1);
                self.take_while(|c| c.is_ascii_digit())
            }
            _ => "",
        };
        self.skip_blanks();
        let micros = format!("{fraction:0<6}");
        let bad = || ParseError {
            at,
            message: format!("{what} has at most six digits after the point"),
        };
        if micros.len() > 6 || whole.len() > 9 {
            return Err(bad());
        }
        let whole: u64 = format!("0{whole}").parse().map_err(|_| bad())?;
        Ok(whole * 1_000_000 + micros.parse::<u64>().map_err(|_| bad())?)
    }

    /// Consumes whitespace, line ends and comments. Stores the remarks in `//` comments.
    pub fn skip_blanks(&mut self) {
        loop {
            self.take_while(|c| c.is_ascii_whitespace());
            if self.hash_comments {
                if !self.is_next("#") {
                    return;
                }
                self.take_while(|c| c != '\n');
            } else if self.is_next("//") {
                let comment = self.take_while(|c| c != '\n');
                self.add_remark(&comment[2..]);
            } else if self.is_next("/*") {
                let len = self.rest.find("*/").map_or(self.rest.len(), |at| at + 2);
                self.take(len);
            } else {
                return;
            }
        }
    }

    /// Stores the remark in `comment` (the text after `//`), if there is a remark. A comment that
    /// begins with two spaces continues the reason of the previous remark.
    fn add_remark(&mut self, comment: &str) {
        if let Some(remark) = remark(comment) {
            self.remarks.push(remark);
            return;
        }
        if let Some(remark) = self
            .remarks
            .last_mut()
            .filter(|_| comment.starts_with("  "))
        {
            remark.reason.push(' ');
            remark.reason.push_str(comment.trim());
        }
    }
}
