//! ECN codepoint of a reassembled packet, which follows from the codepoints of its fragments (RFC
//! 3168 §5.3).

use tidelane_wire::Ecn;

/// Set of the ECN codepoints that the fragments of one packet had. Bit `n` stands for codepoint
/// `n`.
#[derive(Clone, Copy, Default, Debug)]
pub struct EcnSet(u8);

impl EcnSet {
    /// Adds the codepoint of a fragment.
    pub fn add(&mut self, ecn: Ecn) {
        self.0 |= 1 << ecn as u8;
    }

    fn has(self, ecn: Ecn) -> bool {
        self.0 & 1 << ecn as u8 != 0
    }

    /// Returns the codepoint of the reassembled packet: CE if any fragment has CE, and otherwise
    /// `first`, the codepoint of the first fragment.
    ///
    /// Returns `None` if the set contains Not-ECT and another codepoint. The caller drops the
    /// packet, as in Linux. For a mix of Not-ECT and CE, RFC 3168 forbids the result CE, and any
    /// other result would hide congestion.
    pub fn combined(self, first: Ecn) -> Option<Ecn> {
        let only_not_ect = self.0 == 1 << Ecn::NotEct as u8;
        if self.has(Ecn::NotEct) && !only_not_ect {
            return None;
        }
        Some(if self.has(Ecn::Ce) { Ecn::Ce } else { first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3168_section_5_3_congestion_stays_and_is_not_invented() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let combined = |all: &[Ecn]| {
            let mut set = EcnSet::default();
            all.iter().for_each(|ecn| set.add(*ecn));
            set.combined(all[0])
        };
        for same in [NotEct, Ect0, Ect1, Ce] {
            assert_eq!(combined(&[same, same, same]), Some(same));
        }
        for capable in [Ect0, Ect1] {
            assert_eq!(combined(&[capable, Ce]), Some(Ce));
            assert_eq!(combined(&[Ce, capable]), Some(Ce));
            assert_eq!(combined(&[capable, NotEct]), None);
            assert_eq!(combined(&[NotEct, capable, Ce]), None);
        }
        assert_eq!(combined(&[Ce, NotEct]), None);
        assert_eq!(combined(&[Ect0, Ect1]), Some(Ect0));
        assert_eq!(combined(&[Ect1, Ect0]), Some(Ect1));
        assert_eq!(combined(&[Ect1, Ect0, Ce]), Some(Ce));
    }
}
