//! The congestion control algorithms that a program may choose.

use tidelane_abi::congestion;
use tidelane_engine::{Algorithm, SocketOptions};

/// The set of congestion control algorithms that a program may choose. As in the kernel, a program
/// with CAP_NET_ADMIN may choose all algorithms, and any other program may choose the algorithms in
/// `net.ipv4.tcp_allowed_congestion_control`. If a program requests an algorithm outside the set,
/// the connection uses the algorithm of the service's base options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedCongestion(u32);

/// The kernel's name and the ABI's number of each algorithm.
const NAMES: [(&str, u16); 4] = [
    ("reno", congestion::RENO),
    ("cubic", congestion::CUBIC),
    ("dctcp", congestion::DCTCP),
    ("bbr", congestion::BBR),
];

impl AllowedCongestion {
    /// The set of all algorithms.
    pub const ALL: Self = Self(u32::MAX);

    /// Returns the set of the algorithms in `list`, in which blanks separate the names. Ignores
    /// unknown names.
    pub fn named(list: &str) -> Self {
        let known = |name: &str| NAMES.iter().find(|(known, _)| *known == name);
        let bits = list.split_whitespace().filter_map(known);
        Self(bits.fold(0, |all, (_, number)| all | 1 << number))
    }

    /// Returns true if a program may choose the algorithm with this ABI number.
    pub fn has(self, number: u16) -> bool {
        u32::from(number) < u32::BITS && self.0 & 1 << number != 0
    }

    /// Returns `options`, but with the algorithm of `base` if the program may not choose the
    /// algorithm of `options`.
    pub(crate) fn restrict(self, options: SocketOptions, base: &SocketOptions) -> SocketOptions {
        let chosen = options.congestion.map(number_of);
        if chosen.is_none_or(|number| self.has(number)) {
            return options;
        }
        SocketOptions {
            congestion: base.congestion,
            ..options
        }
    }
}

/// Returns the ABI number of an algorithm. Returns zero for a custom algorithm of a program that
/// embeds the engine.
pub(crate) const fn number_of(algorithm: Algorithm) -> u16 {
    match algorithm {
        Algorithm::NewReno => congestion::RENO,
        Algorithm::Cubic => congestion::CUBIC,
        Algorithm::Dctcp => congestion::DCTCP,
        Algorithm::Bbr => congestion::BBR,
        Algorithm::Custom(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_algorithm_leaves_the_congestion_control_unchanged() {
        let allowed = AllowedCongestion::named("reno cubic  nonsense\n");
        assert!(allowed.has(congestion::RENO) && allowed.has(congestion::CUBIC));
        assert!(!allowed.has(congestion::DCTCP) && !allowed.has(u16::MAX));
        let base = SocketOptions::default();
        let chosen = |algorithm| SocketOptions {
            congestion: Some(algorithm),
            nodelay: true,
            ..base
        };
        let restricted = allowed.restrict(chosen(Algorithm::Dctcp), &base);
        assert_eq!(
            (restricted.congestion, restricted.nodelay),
            (base.congestion, true)
        );
        let kept = allowed.restrict(chosen(Algorithm::NewReno), &base);
        assert_eq!(kept.congestion, Some(Algorithm::NewReno));
        let all = AllowedCongestion::ALL.restrict(chosen(Algorithm::Bbr), &base);
        assert_eq!(all.congestion, Some(Algorithm::Bbr));
        assert_eq!(allowed.restrict(base, &base).congestion, base.congestion);
    }
}
