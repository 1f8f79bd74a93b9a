//! Numbers that a fuzz target takes from a fuzzer's input, in little-endian order.

/// The bytes of a fuzzer's input that are not used yet.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Wraps a whole input.
    pub const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Returns true if the input is used up. All numbers are zero from then on.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next byte. Returns 0 if the input is used up.
    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Takes the next two bytes as a number.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// Takes the next four bytes as a number.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }
}
