//! Windowed maximum of the last rounds, with three samples (Kathleen Nichols' algorithm; Linux:
//! `win_minmax`). The caller chooses the unit of a round: BBR counts round trips for its bandwidth
//! filter. The crate `tidelane-slowpath` counts milliseconds for the minimum RTT, which it stores
//! as the maximum of the samples' bitwise complements.

/// A value, and the number of the round in which it was measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sample {
    /// Number of the round.
    round: u32,
    /// The value, in the caller's unit.
    value: u32,
}

/// Windowed maximum. `best[0]` is the largest stored sample. `best[1]` is the largest stored sample
/// of the rounds after `best[0]`, and `best[2]` is the largest stored sample of the rounds after
/// `best[1]`. While no sample of these rounds is stored, `best[1]` or `best[2]` repeats the element
/// before it. The filter does not store every sample, so the maximum may be lower than the largest
/// sample of the span.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MaxFilter {
    best: [Sample; 3],
}

impl MaxFilter {
    /// Returns the largest stored value; zero before the first sample.
    pub const fn max(&self) -> u32 {
        self.best[0].value
    }

    /// Returns the number of the round in which the largest stored value was measured.
    pub const fn round(&self) -> u32 {
        self.best[0].round
    }

    /// Adds a value that was measured in `round`. Drops values that are more than `span` rounds
    /// older.
    pub fn update(&mut self, round: u32, span: u32, value: u32) {
        let new = Sample { round, value };
        let last_is_old = round.wrapping_sub(self.best[2].round) > span;
        if value >= self.best[0].value || last_is_old {
            self.best = [new; 3];
            return;
        }
        if value >= self.best[1].value {
            self.best = [self.best[0], new, new];
        } else if value >= self.best[2].value {
            self.best[2] = new;
        }
        self.age(new, span);
    }

    /// Drops samples that are too old. Stores samples from different parts of the span, so that a
    /// recent sample can replace the largest sample when the largest sample expires.
    fn age(&mut self, new: Sample, span: u32) {
        let [first, second, third] = self.best;
        let age = new.round.wrapping_sub(first.round);
        if age > span {
            self.best = [second, third, new];
            if new.round.wrapping_sub(second.round) > span {
                self.best = [third, new, new];
            }
        } else if second.round == first.round && age > span / 4 {
            self.best = [first, new, new];
        } else if third.round == second.round && age > span / 2 {
            self.best = [first, second, new];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    extern crate std;
    use std::vec::Vec;

    #[test]
    fn a_maximum_is_forgotten_after_its_span() {
        let mut filter = MaxFilter::default();
        filter.update(1, 10, 900);
        for round in 2..=11 {
            filter.update(round, 10, 500);
            assert_eq!(filter.max(), 900, "round {round}");
        }
        filter.update(12, 10, 400);
        assert_eq!(filter.max(), 500);
    }

    proptest! {
        /// The maximum is at least the newest value, and at most the largest value of the span.
        #[test]
        fn the_maximum_is_one_of_the_span(values in prop::collection::vec(1u32..1000, 1..60)) {
            let mut filter = MaxFilter::default();
            let mut seen: Vec<u32> = Vec::new();
            for (round, value) in values.into_iter().enumerate() {
                filter.update(round as u32, 10, value);
                seen.push(value);
                let from = seen.len().saturating_sub(11);
                let most = seen[from..].iter().max().copied().unwrap_or(0);
                prop_assert!(filter.max() >= value && filter.max() <= most);
            }
        }
    }
}
