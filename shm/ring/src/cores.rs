//! Division of a program's region and connections among several fast-path cores, which are the
//! polling threads of the service (process `tidelaned`). The region is the memory that the program
//! shares with the service.
//!
//! Program and service compute the same division. `docs/design/cores.md` explains it.

use std::ops::Range;

use tidelane_abi::RING_SETS_MAX;

use crate::{Layout, layout::UNIT};

/// Returns the core of the connections between these two TCP ports, for a service with `cores`
/// cores. The order of the ports does not matter.
///
/// The hash excludes the addresses, because a program that has bound its port needs the core before
/// the route determines the local address.
#[inline]
pub fn core_of(port: u16, other: u16, cores: u32) -> u32 {
    // The golden ratio spreads ports that differ only in low bits, as ephemeral ports do.
    let hash = u32::from(port ^ other).wrapping_mul(0x9e37_79b1);
    ((u64::from(hash) * u64::from(cores)) >> 32) as u32
}

/// The part of a program's region that belongs to one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreShare {
    /// Numbers of the core's slots, the records of its connections.
    pub slots: Range<u32>,
    /// Region offsets of the core's part of the receive-buffer area.
    pub rx_area: Range<u64>,
    /// Number of the core.
    core: u32,
    /// Number of cores of the service.
    cores: u32,
}

impl CoreShare {
    /// Returns the number of the ring set (a group of rings) between this core and context
    /// `context` (one of the program's threads). Returns `None` if `context` is not less than
    /// [`contexts_max`].
    pub fn ring_set(&self, context: u32) -> Option<u32> {
        let number = context.checked_mul(self.cores)?.checked_add(self.core)?;
        (context < contexts_max(self.cores)).then_some(number)
    }
}

/// Returns the largest number of contexts of a program, for a service with `cores` cores. A context
/// has one ring set for each core.
pub fn contexts_max(cores: u32) -> u32 {
    RING_SETS_MAX / cores.max(1)
}

impl Layout {
    /// Returns the part of the region that belongs to `core` of `cores` cores. With several cores,
    /// the number of slots of each core is a power of two, so that a shift of a slot's number gives
    /// the number of the core. The slots after the last core's slots are not used.
    pub fn share(&self, core: u32, cores: u32) -> CoreShare {
        let area = self.rx_area();
        let len = (area.end - area.start) / u64::from(cores) / UNIT * UNIT;
        let slots = self.slots_shift(cores).map_or(0..0, |shift| {
            let first = u64::from(core) << shift;
            let end = (first + (1 << shift)).min(u64::from(self.slots_max()));
            first as u32..end as u32
        });
        CoreShare {
            slots,
            rx_area: area.start + u64::from(core) * len..area.start + u64::from(core + 1) * len,
            core,
            cores,
        }
    }

    /// Returns the shift that turns a slot number into the number of its core. Returns `None` if
    /// there are several cores and fewer slots than cores.
    pub fn slots_shift(&self, cores: u32) -> Option<u32> {
        match cores {
            // This shift turns every slot number into zero.
            1 => Some(u32::BITS - 1),
            _ => (self.slots_max() / cores).checked_ilog2(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_are_on_one_core_and_cores_get_equal_parts() {
        for cores in 1..=16 {
            let mut counts = vec![0; cores as usize];
            // Linux chooses every second port for active opens.
            for port in (32_768..60_000).step_by(2) {
                let core = core_of(port, 80, cores);
                assert_eq!(core, core_of(80, port, cores));
                counts[core as usize] += 1;
            }
            let fair = counts.iter().sum::<u32>() / cores;
            let even = counts.iter().all(|count| count.abs_diff(fair) < fair / 5);
            assert!(even, "{cores}: {counts:?}");
        }
    }

    #[test]
    fn shares_do_not_overlap_and_one_core_has_all() {
        let layout = Layout::new(1000, 1 << 30, 1 << 20).unwrap();
        let all = layout.share(0, 1);
        assert_eq!(
            (all.slots.clone(), all.rx_area.clone()),
            (0..1000, layout.rx_area())
        );
        assert_eq!(all.ring_set(RING_SETS_MAX - 1), Some(RING_SETS_MAX - 1));
        assert_eq!(all.ring_set(RING_SETS_MAX), None);
        for cores in 2..=16 {
            let shift = layout.slots_shift(cores).unwrap();
            let shares: Vec<_> = (0..cores).map(|core| layout.share(core, cores)).collect();
            for (core, share) in shares.iter().enumerate() {
                assert!(share.slots.len() as u32 >= 1000 / cores / 2);
                assert!(share.slots.clone().all(|slot| slot >> shift == core as u32));
                assert!(share.slots.end <= 1000 && share.rx_area.end <= layout.rx_area().end);
                assert!(share.rx_area.end - share.rx_area.start >= 16 << 20);
            }
            for pair in shares.windows(2) {
                assert!(pair[0].slots.end <= pair[1].slots.start);
                assert!(pair[0].rx_area.end <= pair[1].rx_area.start);
            }
            let mut rings: Vec<_> = shares
                .iter()
                .flat_map(|share| (0..contexts_max(cores)).filter_map(|n| share.ring_set(n)))
                .collect();
            rings.sort_unstable();
            rings.dedup();
            assert_eq!(rings.len() as u32, contexts_max(cores) * cores);
            assert!(rings.iter().all(|number| *number < RING_SETS_MAX));
        }
        // With more cores than slots, no core gets a slot.
        assert_eq!(Layout::new(1, 0, 0).unwrap().share(0, 2).slots, 0..0);
    }
}
