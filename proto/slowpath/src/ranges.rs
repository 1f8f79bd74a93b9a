//! Sorted sets of disjoint ranges of sequence space, for the data beyond RCV.NXT.

use tidelane_wire::SeqNumber;

/// Largest number of ranges in a set. A flow (connection) that has this many ranges drops further
/// out-of-order data, which the peer then retransmits.
pub const RANGES_MAX: usize = 4096;

/// A sorted set of disjoint, non-adjacent ranges `[start, end)` within half the sequence space.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<(SeqNumber, SeqNumber)>);

impl Ranges {
    /// Returns true if there is no range.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns an iterator over all ranges, in sequence order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (SeqNumber, SeqNumber)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the end of the highest range.
    pub fn highest(&self) -> Option<SeqNumber> {
        self.0.last().map(|range| range.1)
    }

    /// Returns the number of bytes in all ranges.
    pub fn bytes(&self) -> u32 {
        self.0
            .iter()
            .map(|(start, end)| end.distance_from(*start))
            .sum()
    }

    /// Returns the number of bytes at or after `from` in all ranges.
    pub fn bytes_above(&self, from: SeqNumber) -> u32 {
        self.0
            .iter()
            .filter(|(_, end)| end.after(from))
            .map(|(start, end)| end.distance_from(start.later_of(from)))
            .sum()
    }

    /// Adds `[start, end)`. Returns true if the set has changed. Returns false if one range of the
    /// set already contains `[start, end)`, or if a further range would exceed [`RANGES_MAX`].
    pub fn insert(&mut self, start: SeqNumber, end: SeqNumber) -> bool {
        let at = self.0.partition_point(|(_, e)| e.before(start));
        let past = self.0.partition_point(|(s, _)| s.at_or_before(end));
        if at == past {
            if self.0.len() >= RANGES_MAX {
                return false;
            }
            self.0.insert(at, (start, end));
            return true;
        }
        let merged = (
            self.0[at].0.earlier_of(start),
            self.0[past - 1].1.later_of(end),
        );
        if past == at + 1 && self.0[at] == merged {
            return false;
        }
        self.0[at] = merged;
        self.0.drain(at + 1..past);
        true
    }

    /// Removes all ranges and parts of ranges below `to`.
    pub fn remove_below(&mut self, to: SeqNumber) {
        let gone = self.0.partition_point(|(_, end)| end.at_or_before(to));
        self.0.drain(..gone);
        if let Some(first) = self.0.first_mut() {
            first.0 = first.0.later_of(to);
        }
    }

    /// Returns the first hole in `[from, limit)`: the first part that lies in no range.
    pub fn hole(&self, from: SeqNumber, limit: SeqNumber) -> Option<(SeqNumber, SeqNumber)> {
        let mut start = from;
        for (left, right) in self.iter() {
            if right.at_or_before(start) {
                continue;
            }
            if left.after(start) {
                let end = left.earlier_of(limit);
                return start.before(end).then_some((start, end));
            }
            start = right;
        }
        start.before(limit).then_some((start, limit))
    }

    /// Returns the first part of `[start, end)` that lies in a range.
    pub fn overlap(&self, start: SeqNumber, end: SeqNumber) -> Option<(SeqNumber, SeqNumber)> {
        let at = self.0.partition_point(|(_, e)| e.at_or_before(start));
        let (left, right) = *self.0.get(at)?;
        let part = (left.later_of(start), right.earlier_of(end));
        part.0.before(part.1).then_some(part)
    }

    /// Returns the range that contains `seq`.
    pub fn containing(&self, seq: SeqNumber) -> Option<(SeqNumber, SeqNumber)> {
        let at = self.0.partition_point(|(_, end)| end.at_or_before(seq));
        self.0
            .get(at)
            .copied()
            .filter(|(start, _)| start.at_or_before(seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u32) -> SeqNumber {
        SeqNumber(n)
    }

    #[test]
    fn ranges_merge_and_holes_are_found() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(s(10), s(20)));
        assert!(ranges.insert(s(30), s(40)));
        assert!(!ranges.insert(s(12), s(18)));
        assert_eq!(ranges.overlap(s(15), s(35)), Some((s(15), s(20))));
        assert_eq!(ranges.overlap(s(20), s(35)), Some((s(30), s(35))));
        assert_eq!(ranges.overlap(s(20), s(30)), None);
        assert_eq!(ranges.overlap(s(40), s(50)), None);
        assert_eq!(ranges.hole(s(0), s(50)), Some((s(0), s(10))));
        assert_eq!(ranges.hole(s(10), s(50)), Some((s(20), s(30))));
        assert_eq!(ranges.hole(s(35), s(38)), None);
        assert!(ranges.insert(s(20), s(30)));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(s(10), s(40))]);
        ranges.remove_below(s(15));
        assert_eq!(ranges.bytes(), 25);
        assert_eq!(ranges.containing(s(20)), Some((s(15), s(40))));
        assert_eq!(ranges.containing(s(40)), None);
    }
}
