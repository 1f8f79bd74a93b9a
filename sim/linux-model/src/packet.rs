//! Packets that the model's sender and receiver exchange.

/// Largest number of SACK blocks that fit beside timestamps (RFC 2018 §3).
pub const BLOCKS_MAX: usize = 3;

/// A data packet: one full segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Sequence number, in segments.
    pub seq: u64,
    /// TSval: the sender's clock in milliseconds (RFC 7323).
    pub tsval: u64,
    /// PSH. Set in the last segment of a super-frame of several segments. A super-frame is a burst
    /// that Linux passes to TSO as one packet.
    pub push: bool,
}

/// An ACK packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// Cumulative ACK: sequence number of the next expected segment.
    pub ack: u64,
    /// TSecr: the echoed timestamp, in milliseconds.
    pub tsecr: u64,
    /// SACK blocks, the most recent block first. A block is its first sequence number, and the
    /// number after its last. Unused blocks are empty.
    pub blocks: [(u64, u64); BLOCKS_MAX],
}

impl Ack {
    /// Returns the first SACK block if the block is a DSACK, which reports segments that arrived
    /// twice (RFC 2883 §4).
    pub fn duplicate(&self) -> Option<(u64, u64)> {
        let [(start, end), (left, right), _] = self.blocks;
        let below = end <= self.ack;
        let inside = left <= start && end <= right;
        (start < end && (below || inside)).then_some((start, end))
    }

    /// Returns the SACK blocks that are not empty.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks.into_iter().filter(|(start, end)| start < end)
    }
}
