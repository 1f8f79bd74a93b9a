//! The ranges of a stream that have arrived at a host.

use std::collections::BTreeMap;

/// A set of ranges of stream positions. The SYN has position zero. No two ranges overlap or touch.
#[derive(Debug, Default)]
pub struct Received {
    /// Maps the start of a range to its end.
    ranges: BTreeMap<u64, u64>,
}

impl Received {
    /// Adds the positions `start..end`. An empty range has no effect.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            if before_end >= end {
                return;
            }
            start = before;
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..).next()
            && next <= end
        {
            end = end.max(next_end);
            self.ranges.remove(&next);
        }
        self.ranges.insert(start, end);
    }

    /// Returns the end of the range that begins at position zero. Returns zero if position zero has
    /// not arrived.
    pub fn first_end(&self) -> u64 {
        self.ranges.get(&0).copied().unwrap_or(0)
    }

    /// Returns true if all positions of `start..end` have arrived.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        let at = self.ranges.range(..=start).next_back();
        at.is_some_and(|(_, last)| *last >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_bitmap() {
        let mut rng = tidelane_netem::Rng::new(1);
        for _ in 0..200 {
            let (mut ranges, mut bits) = (Received::default(), [false; 64]);
            for _ in 0..rng.below(12) {
                let start = rng.below(64);
                let end = start + rng.below(65 - start);
                ranges.insert(start, end);
                bits[start as usize..end as usize].fill(true);
                let first = bits.iter().take_while(|bit| **bit).count() as u64;
                assert_eq!(ranges.first_end(), first);
            }
            let (from, to) = (rng.below(64) as usize, rng.below(65) as usize);
            if from < to {
                let all = bits[from..to].iter().all(|bit| *bit);
                assert_eq!(ranges.contains(from as u64, to as u64), all);
            }
        }
    }
}
