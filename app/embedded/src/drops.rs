//! Counters of dropped packets.

use tidelane_wire::DropReason;

/// Number of dropped packets, by [`DropReason::index`].
pub type Drops = [u64; DropReason::COUNT];
