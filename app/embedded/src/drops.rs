//! Counters of dropped packets.

use tidelane_wire::DropReason;

/// Numbers of dropped packets, indexed by [`DropReason::index`].
pub type Drops = [u64; DropReason::COUNT];
