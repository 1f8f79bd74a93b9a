//! Random numbers of the simulator: xoshiro256++ by Blackman and Vigna, seeded through SplitMix64.
//!
//! The algorithm never changes, because a seed that found a bug must find the bug again in every
//! later version. The generator is not suitable for secrets.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates the stream of `seed`. Every seed is valid, including zero.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut counter)),
        }
    }

    /// Creates the stream with this state of the generator. At least one word must not be zero.
    #[cfg(test)]
    pub(crate) const fn with_state(state: [u64; 4]) -> Self {
        Self { state }
    }

    /// Returns an independent stream, without drawing a number from this stream. The new stream
    /// depends only on `name` and on the present state of this stream.
    pub fn fork(&self, name: u64) -> Self {
        let [a, b, c, d] = self.state;
        let mut counter = a ^ b.rotate_left(17) ^ c.rotate_left(31) ^ d.rotate_left(47) ^ name;
        Self::new(split_mix(&mut counter).wrapping_add(name))
    }

    /// Returns the next 64 bits.
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

    /// Returns the next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns a uniform random number in `0..bound`, or zero if `bound` is zero.
    ///
    /// The number is the upper half of the product of `bound` and 64 random bits. The bias of the
    /// number is below `bound / 2^64`, which is too small to affect a simulation.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform random number in `low..=high`, or `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.next_u64(),
        }
    }

    /// Returns true with a probability of `ppm` in a million. The function draws a number even if
    /// the result is certain, so that the next numbers of the stream do not depend on `ppm`.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// Returns a uniformly chosen element of `items`, or `None` if `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Advances `counter`, and returns the next number of SplitMix64.
fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*counter ^ (*counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
