//! Ephemeral ports: local ports for active opens in which the program names no port (RFC 6056
//! §2.1).

use std::ops::RangeInclusive;

/// The dynamic ports of RFC 6335 §6.
const RANGE: RangeInclusive<u16> = 49_152..=65_535;

/// Selects ephemeral ports in sequence, from a secret start.
#[derive(Debug)]
pub struct EphemeralPorts {
    /// The port that was tried most recently. The next attempt tries the port after `last`.
    last: u16,
}

impl EphemeralPorts {
    /// Starts the sequence after a port that `secret` selects. An observer must not know `secret`.
    pub fn new(secret: u16) -> Self {
        let count = RANGE.end() - RANGE.start() + 1;
        Self {
            last: RANGE.start() + secret % count,
        }
    }

    /// Returns the next port for which `is_free` returns true. Returns `None` if no port is free.
    pub fn choose(&mut self, mut is_free: impl FnMut(u16) -> bool) -> Option<u16> {
        for _ in RANGE {
            self.last = self.last.wrapping_add(1).max(*RANGE.start());
            if is_free(self.last) {
                return Some(self.last);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_each_other_and_wrap() {
        let mut ports = EphemeralPorts::new(65_534);
        assert_eq!(ports.choose(|_| true), Some(65_535));
        assert_eq!(ports.choose(|_| true), Some(49_152));
        assert_eq!(ports.choose(|port| port > 50_000), Some(50_001));
        assert_eq!(ports.choose(|_| false), None);
    }

    #[test]
    fn rfc6056_section_3_1_every_secret_selects_a_start() {
        let first = |secret| EphemeralPorts::new(secret).choose(|_| true);
        let mut starts: Vec<_> = (0..=u16::MAX).filter_map(first).collect();
        starts.sort_unstable();
        let each_four_times: Vec<u16> = RANGE.flat_map(|port| [port; 4]).collect();
        assert_eq!(starts, each_four_times);
    }
}
