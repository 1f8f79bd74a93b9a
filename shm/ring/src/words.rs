//! Words of the data rings between a program and the service (process `tidelaned`). Most words
//! announce a change of a slot, the record of a connection. A word is
//! `kind << 56 | arg << 32 | slot`, and `arg` has 24 bits.

/// A word of a data ring. The fields of a word that was decoded come from the peer, and are not
/// validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataWord {
    /// Kind of the word: a constant of [`tidelane_abi::data_request`] or
    /// [`tidelane_abi::data_event`].
    pub kind: u8,
    /// Argument, whose meaning depends on `kind`. At most [`ARG_MAX`].
    pub arg: u32,
    /// Number of the slot. With kind ACCEPT_TAKEN, `slot` is the number of a listener instead.
    pub slot: u32,
}

/// Largest value of `arg`.
pub const ARG_MAX: u32 = (1 << 24) - 1;

impl DataWord {
    /// Creates a word without an argument.
    #[inline]
    pub const fn new(kind: u8, slot: u32) -> DataWord {
        DataWord { kind, arg: 0, slot }
    }

    /// Creates a word with an argument.
    #[inline]
    pub const fn with_arg(kind: u8, arg: u32, slot: u32) -> DataWord {
        debug_assert!(arg <= ARG_MAX);
        DataWord { kind, arg, slot }
    }

    /// Encodes the word for the ring.
    #[inline]
    pub const fn encode(self) -> u64 {
        (self.kind as u64) << 56 | ((self.arg & ARG_MAX) as u64) << 32 | self.slot as u64
    }

    /// Decodes a word from the ring.
    #[inline]
    pub const fn decode(word: u64) -> DataWord {
        DataWord {
            kind: (word >> 56) as u8,
            arg: (word >> 32) as u32 & ARG_MAX,
            slot: word as u32,
        }
    }
}
