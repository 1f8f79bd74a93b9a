//! What goes over the wire.

/// SACK blocks that fit beside timestamps (RFC 2018 §3).
pub const BLOCKS_MAX: usize = 3;

/// A full segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Which.
    pub seq: u64,
    /// The sender's clock in milliseconds (RFC 7323).
    pub tsval: u64,
    /// PSH: the last of several that were sent as one.
    pub push: bool,
}

/// An acknowledgment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// All segments before this one have arrived.
    pub ack: u64,
    /// The echoed clock.
    pub tsecr: u64,
    /// Ranges that arrived besides, the latest first; empty ones mean nothing.
    pub blocks: [(u64, u64); BLOCKS_MAX],
}

impl Ack {
    /// The first block, if it tells of a duplicate (RFC 2883 §4).
    pub fn duplicate(&self) -> Option<(u64, u64)> {
        let [(start, end), (left, right), _] = self.blocks;
        let below = end <= self.ack;
        let inside = left <= start && end <= right;
        (start < end && (below || inside)).then_some((start, end))
    }

    /// Blocks that are not empty.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks.into_iter().filter(|(start, end)| start < end)
    }
}
