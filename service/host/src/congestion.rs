//! Which congestion controls a program may choose.

use tidelane_abi::congestion;
use tidelane_engine::{Algorithm, SocketOptions};

/// Congestion controls that a program may choose: as in the kernel, those that
/// `net.ipv4.tcp_allowed_congestion_control` names, or all with CAP_NET_ADMIN. A request beyond
/// them leaves a connection with the congestion control that it has otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedCongestion(u32);

/// Names of the kernel's, and numbers of the ABI.
const NAMES: [(&str, u16); 4] = [
    ("reno", congestion::RENO),
    ("cubic", congestion::CUBIC),
    ("dctcp", congestion::DCTCP),
    ("bbr", congestion::BBR),
];

impl AllowedCongestion {
    /// All there are.
    pub const ALL: Self = Self(u32::MAX);

    /// The algorithms of a list of names with blanks between them.
    pub fn named(list: &str) -> Self {
        let known = |name: &str| NAMES.iter().find(|(known, _)| *known == name);
        let bits = list.split_whitespace().filter_map(known);
        Self(bits.fold(0, |all, (_, number)| all | 1 << number))
    }

    /// Returns true if a program may choose what has this number in the ABI.
    pub fn has(self, number: u16) -> bool {
        u32::from(number) < u32::BITS && self.0 & 1 << number != 0
    }

    /// The options without a choice that the program may not make.
    pub(crate) fn restrict(self, options: SocketOptions, base: &SocketOptions) -> SocketOptions {
        let number = |algorithm| match algorithm {
            Algorithm::NewReno => congestion::RENO,
            Algorithm::Cubic => congestion::CUBIC,
            Algorithm::Dctcp => congestion::DCTCP,
            Algorithm::Bbr => congestion::BBR,
        };
        let chosen = options.congestion.map(number);
        if chosen.is_none_or(|number| self.has(number)) {
            return options;
        }
        SocketOptions {
            congestion: base.congestion,
            ..options
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_choice_changes_nothing() {
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
