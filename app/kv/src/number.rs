//! Numbers as memcached reads and writes them: the rules of C's `strtol` and `strtoul`.
//!
//! A number may have leading white space and a sign. White space, a NUL or the end of the text ends
//! the number. A 32-bit number is the low half of the 64-bit number.

/// Sign and magnitude of a parsed number.
struct Scan {
    is_negative: bool,
    /// The magnitude. `None` if the magnitude does not fit into 64 bits.
    magnitude: Option<u64>,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 9..=13)
}

/// Returns the text before the first NUL, because a NUL ends a C string.
fn until_nul(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == 0);
    &text[..end.unwrap_or(text.len())]
}

/// Parses a number. Returns `None` if there are no digits, or if a byte other than white space
/// follows the digits.
fn scan(text: &[u8]) -> Option<Scan> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let text = &text[start..];
    let (is_negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let is_whole = digits.get(count).is_none_or(|byte| is_space(*byte));
    if count == 0 || !is_whole {
        return None;
    }
    let magnitude = digits[..count].iter().try_fold(0u64, |sum, digit| {
        sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    Some(Scan {
        is_negative,
        magnitude,
    })
}

/// Parses an unsigned 64-bit number. Like `strtoul`, converts a negative number modulo 2^64. Like
/// memcached, refuses a value of 2^63 or more if the text contains a minus sign.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    let text = until_nul(text);
    let scan = scan(text)?;
    let value = match scan.is_negative {
        true => scan.magnitude?.wrapping_neg(),
        false => scan.magnitude?,
    };
    let is_refused = (value as i64) < 0 && text.contains(&b'-');
    (!is_refused).then_some(value)
}

/// Parses an unsigned 64-bit number, and returns its low 32 bits.
pub fn parse_u32(text: &[u8]) -> Option<u32> {
    parse_u64(text).map(|value| value as u32)
}

/// Parses a signed 64-bit number, and returns its low 32 bits.
pub fn parse_i32(text: &[u8]) -> Option<i32> {
    let scan = scan(until_nul(text))?;
    let magnitude = i128::from(scan.magnitude?);
    let value = if scan.is_negative {
        -magnitude
    } else {
        magnitude
    };
    i64::try_from(value).ok().map(|value| value as i32)
}

/// Number of digits of the largest 64-bit number.
const DECIMAL_LEN_MAX: usize = 20;

/// A number as decimal digits.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; DECIMAL_LEN_MAX],
    /// Index of the first digit in `digits`.
    start: usize,
}

impl Decimal {
    pub fn new(value: u64) -> Self {
        let mut digits = [0; DECIMAL_LEN_MAX];
        let mut start = DECIMAL_LEN_MAX;
        let mut rest = value;
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return Self { digits, start };
            }
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_follow_strtoul() {
        let cases: [(&str, Option<u64>); 19] = [
            ("0", Some(0)),
            ("  12", Some(12)),
            ("12\t34", Some(12)),
            ("+7", Some(7)),
            ("-0", Some(0)),
            ("-1", None),
            ("-18446744073709551615", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999999999999999999999", None),
            ("", None),
            (" ", None),
            ("-", None),
            ("+", None),
            ("a", None),
            ("1a", None),
            ("0x10", None),
            ("12\0ab", Some(12)),
            ("9223372036854775808 \0-", Some(1 << 63)),
        ];
        for (text, value) in cases {
            assert_eq!(parse_u64(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(parse_u64(b"9223372036854775808 -"), None);
        assert_eq!(parse_u32(b"4294967296"), Some(0));
        assert_eq!(parse_u32(b"4294967297"), Some(1));
    }

    #[test]
    fn signed_numbers_follow_strtol() {
        let cases: [(&str, Option<i32>); 10] = [
            ("-1", Some(-1)),
            ("2147483647", Some(i32::MAX)),
            ("2147483648", Some(i32::MIN)),
            ("4294967300", Some(4)),
            ("9223372036854775807", Some(-1)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(0)),
            ("-9223372036854775809", None),
            ("--1", None),
            ("1.5", None),
        ];
        for (text, value) in cases {
            assert_eq!(parse_i32(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn decimals_equal_those_of_the_standard_library() {
        for value in [0, 1, 9, 10, 99, 100, 12345, u64::MAX - 1, u64::MAX] {
            assert_eq!(Decimal::new(value).as_bytes(), value.to_string().as_bytes());
        }
    }
}
