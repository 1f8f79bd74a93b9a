//! Releases of Linux, and ranges of releases in the remarks of scripts.

use std::fs;

/// A release of Linux: the major number, the minor number, and the number of the stable update.
/// Some distributions always write 0 for the stable update, as in `6.1.0-50-amd64`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    /// Parses the numbers at the start of a text such as `6.12.117+deb13-amd64`. If the text has
    /// only two numbers, the number of the stable update is 0. Returns `None` if the text does not
    /// start with at least two numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit());
        let mut numbers = text[..end.unwrap_or(text.len())].split('.').map(str::parse);
        match (numbers.next()?, numbers.next()?, numbers.next()) {
            (Ok(major), Ok(minor), None) => Some(Self(major, minor, 0)),
            (Ok(major), Ok(minor), Some(Ok(update))) => Some(Self(major, minor, update)),
            _ => None,
        }
    }

    /// Returns the release of the running kernel, or `None` if the release cannot be read or
    /// parsed.
    pub fn running() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
    }
}

/// A range of releases. The default contains all releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Range {
    /// First release of the range. `None` means no lower bound.
    pub from: Option<Release>,
    /// First release after the range. `None` means no upper bound.
    pub before: Option<Release>,
}

impl Range {
    /// Parses `< 6.10`, `>= 6.2`, or `>= 6.2 < 6.10`. An empty text is the range of all releases.
    /// Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut range = Self::default();
        let mut words = text.split_whitespace();
        while let Some(relation) = words.next() {
            let release = Some(Release::parse(words.next()?)?);
            match relation {
                "<" if range.before.is_none() => range.before = release,
                ">=" if range.from.is_none() => range.from = release,
                _ => return None,
            }
        }
        Some(range)
    }

    /// Returns true if the release is in the range. An unknown release (`None`) is only in the
    /// range of all releases.
    pub fn has(&self, release: Option<Release>) -> bool {
        let Some(release) = release else {
            return *self == Self::default();
        };
        self.from.is_none_or(|from| release >= from)
            && self.before.is_none_or(|before| release < before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        let [old, new] = ["6.9.1", "6.12.117+deb13-amd64"].map(Release::parse);
        assert_eq!(new, Some(Release(6, 12, 117)));
        assert_eq!(Release::parse("6.1"), Some(Release(6, 1, 0)));
        assert!(old < new);
        assert_eq!(Release::parse("next"), None);
    }

    #[test]
    fn a_range_has_its_first_and_not_its_end() {
        let range = Range::parse(">= 6.2 < 6.10").unwrap();
        let has = |major, minor| range.has(Some(Release(major, minor, 3)));
        assert_eq!(
            [has(6, 1), has(6, 2), has(6, 9), has(6, 10)],
            [false, true, true, false]
        );
        let range = Range::parse("< 6.18.33").unwrap();
        let has = |update| range.has(Some(Release(6, 18, update)));
        assert_eq!([has(0), has(32), has(33)], [true, true, false]);
        assert!(!range.has(None));
        assert!(Range::parse("").unwrap().has(None));
        assert_eq!(Range::parse("> 6.2"), None);
        assert_eq!(Range::parse("< six"), None);
    }
}
