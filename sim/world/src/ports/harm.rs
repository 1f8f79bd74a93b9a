//! The kinds of misbehaviour of a hostile program.

/// A kind of misbehaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// Sends up to 64 valid packets, until the ring is full.
    Flood,
    /// Sends from foreign addresses, 3-tuples and link addresses, or to impossible destinations.
    Forge,
    /// Sends frames with invalid headers or checksums, and random bytes.
    Garbage,
    /// Sends valid GSO frames.
    Gso,
    /// Sends GSO frames that cannot be split, or from foreign 3-tuples.
    GsoGarbage,
    /// Does not read for a while.
    StopsReading,
    /// Writes a random value over one of its ring indices.
    Indices,
    /// Writes random lengths and segment sizes over entries of its ring.
    Lengths,
    /// Publishes valid packets, and then writes forged frames to random places of its ring.
    Change,
    /// Fills its memory with zeros from an offset to the end, as a hole in a file would.
    Zeros,
    /// Publishes entries without writing them, and dies.
    HalfWritten,
    /// Dies with unpublished frames.
    Die,
    /// Closes its mux port, and opens a new port.
    Reopen,
    /// Moves one claim or all claims to another hostile program.
    Move,
    /// Claims a 3-tuple, which another program may have claimed.
    Claim,
    /// Releases a claim.
    Release,
}

impl Harm {
    /// All kinds of misbehaviour.
    pub const ALL: [Self; 16] = [
        Self::Flood,
        Self::Forge,
        Self::Garbage,
        Self::Gso,
        Self::GsoGarbage,
        Self::StopsReading,
        Self::Indices,
        Self::Lengths,
        Self::Change,
        Self::Zeros,
        Self::HalfWritten,
        Self::Die,
        Self::Reopen,
        Self::Move,
        Self::Claim,
        Self::Release,
    ];
}
