//! A table of address prefixes with values, and the look-up of the longest prefix that covers an
//! address. A look-up takes at most one binary search per prefix length in use.

use tidelane_wire::IpAddress;

/// A prefix with its value.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    /// Length in bits, in the 128-bit form of addresses. For an IPv4 prefix, the length includes
    /// the 96 bits of the mapped form: the length of `10.0.0.0/8` is 104.
    len: u8,
    /// The prefix. The bits after the first `len` bits are zero.
    prefix: IpAddress,
    /// The value of the prefix.
    known: T,
}

impl<T> Entry<T> {
    /// Returns the sort key of the entry.
    fn place(&self) -> (u8, IpAddress) {
        (self.len, self.prefix)
    }
}

/// A table of prefixes.
#[derive(Clone, Debug)]
pub struct Prefixes<T> {
    /// Entries, sorted by length and then by prefix. No two entries have the same prefix and
    /// length.
    entries: Vec<Entry<T>>,
    /// Prefix lengths in use, the longest first.
    lengths: Vec<u8>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            lengths: Vec::new(),
        }
    }
}

impl<T: Copy> Prefixes<T> {
    /// Makes a table from prefixes, their lengths and their values. The lengths are in bits of the
    /// 128-bit form. If `known` has several values for a prefix, the table keeps the first value.
    pub fn new(known: impl Iterator<Item = (IpAddress, u8, T)>) -> Self {
        let entry = |(prefix, len, known): (IpAddress, u8, T)| {
            let len = len.min(128);
            let prefix = prefix.masked(len);
            Entry { len, prefix, known }
        };
        let mut entries: Vec<Entry<T>> = known.map(entry).collect();
        entries.sort_by_key(Entry::place);
        entries.dedup_by_key(|entry| entry.place());
        let mut lengths: Vec<u8> = entries.iter().map(|entry| entry.len).collect();
        lengths.dedup();
        lengths.reverse();
        Self { entries, lengths }
    }

    /// Returns the value of the longest prefix that covers `addr`. Returns `None` if no prefix
    /// covers `addr`.
    pub fn lookup(&self, addr: IpAddress) -> Option<T> {
        self.lengths.iter().find_map(|len| {
            // Prefixes of fewer than 96 bits belong to IPv6 and contain no IPv4 address.
            let wanted = (*len >= 96 || !addr.is_v4()).then(|| (*len, addr.masked(*len)))?;
            let found = self.entries.binary_search_by_key(&wanted, Entry::place);
            self.entries.get(found.ok()?).map(|entry| entry.known)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts_and_of_equals_the_first() {
        let v4 = IpAddress::from_v4;
        let v6 = IpAddress([0xfd; 16]);
        let table = Prefixes::new(
            [
                (v4([10, 0, 0, 0]), 96 + 8, 1),
                (v4([10, 1, 0, 0]), 96 + 16, 2),
                (v4([10, 1, 0, 9]), 96 + 16, 3),
                (v4([10, 1, 0, 9]), 128, 4),
                (IpAddress::UNSPECIFIED_V6, 0, 5),
                (v6, 64, 6),
            ]
            .into_iter(),
        );
        assert_eq!(table.lookup(v4([10, 9, 9, 9])), Some(1));
        assert_eq!(table.lookup(v4([10, 1, 9, 9])), Some(2));
        assert_eq!(table.lookup(v4([10, 1, 0, 9])), Some(4));
        assert_eq!(table.lookup(v4([11, 0, 0, 1])), None);
        assert_eq!(table.lookup(IpAddress([0x20; 16])), Some(5));
        assert_eq!(table.lookup(v6), Some(6));
        assert_eq!(Prefixes::<u8>::default().lookup(v6), None);
    }
}
