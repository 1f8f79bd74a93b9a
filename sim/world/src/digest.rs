//! Digest of all events and frames of a run. Equal runs have equal digests.

use std::hash::{Hash, Hasher};

use tidelane_time::Instant;

/// A hash like FNV-1a, with the same constants. Unlike FNV-1a, the hash takes 64-bit words instead
/// of bytes, and rotates its state after each word. The result is the same on every little-endian
/// machine.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds the event `what` at time `now`.
    pub fn event(&mut self, now: Instant, what: &impl Hash) {
        self.word(now.as_nanos());
        what.hash(self);
    }

    /// Adds the bytes of a frame.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.write(bytes);
    }

    /// Returns the digest of all events and bytes so far.
    pub const fn value(&self) -> u64 {
        self.0
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(17);
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}
