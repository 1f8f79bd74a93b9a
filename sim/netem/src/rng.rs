//! The simulator's chance: xoshiro256++ by Blackman and Vigna, seeded through SplitMix64.
//!
//! Small, fast, and the same for ever: a seed that found a bug must find it again after any update.
//! Not for secrets.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of this seed. All seeds are good, zero too.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut counter)),
        }
    }

    /// The generator in a given state, of which not all words may be zero.
    #[cfg(test)]
    pub(crate) const fn with_state(state: [u64; 4]) -> Self {
        Self { state }
    }

    /// A stream of its own for a part, without a draw from this one: the same `name` gives the same
    /// stream again.
    pub fn fork(&self, name: u64) -> Self {
        let [a, b, c, d] = self.state;
        let mut counter = a ^ b.rotate_left(17) ^ c.rotate_left(31) ^ d.rotate_left(47) ^ name;
        Self::new(split_mix(&mut counter).wrapping_add(name))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// An even choice from `0..bound`; zero if `bound` is.
    ///
    /// The high half of a product: its bias, below `bound / 2^64`, is not one that a simulation
    /// could show.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An even choice from `low..=high`; `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.next_u64(),
        }
    }

    /// True `ppm` times in a million. Draws even where the answer is certain, so that the stream's
    /// position does not depend on configuration.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// One of `items`, or `None` if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*counter ^ (*counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
