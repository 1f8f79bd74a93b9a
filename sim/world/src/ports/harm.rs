//! The kinds of misbehaviour of a hostile program on a mux port. A mux port is a pair of packet
//! rings through which a program with a TCP/IP stack of its own shares the NIC. The program claims
//! the 3-tuples (protocol, local address, local port) whose packets its mux port gets. A 3-tuple is
//! foreign if the program has not claimed it.

/// A kind of misbehaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// Sends up to 64 valid packets, or fewer if the ring is full before.
    Flood,
    /// Sends packets with a source address or source link address that the host does not have,
    /// packets from foreign 3-tuples, or packets to impossible destinations.
    Forge,
    /// Sends frames with invalid headers or checksums, and random bytes.
    Garbage,
    /// Sends valid GSO frames.
    Gso,
    /// Sends GSO frames that the mux cannot split, or GSO frames that are forged (see `Forge`).
    GsoGarbage,
    /// Reads no received packets for a while.
    StopsReading,
    /// Writes a random value over one of its ring indices.
    Indices,
    /// Writes random lengths and segment sizes over entries of its ring.
    Lengths,
    /// Publishes valid packets, and then writes forged frames to random places of its ring.
    Change,
    /// Publishes valid packets, and then fills its memory with zeros from an offset to the end, as
    /// if the program had punched a hole in the file of the memory.
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
