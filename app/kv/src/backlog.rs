//! [`Backlog`]: the received bytes that a client's session (the protocol parser) has not consumed.

/// Received bytes in the order of their arrival.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: Vec<u8>,
    /// Number of consumed bytes at the start of `bytes`.
    start: usize,
}

impl Backlog {
    /// Returns the bytes that are not consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns the memory of the backlog in bytes, including consumed bytes that are still stored.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Appends received bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        // Move the remaining bytes to the front only when they are fewer than the consumed bytes,
        // so that a byte moves less than once on average.
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Consumes the first `len` bytes. An empty backlog keeps no memory.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_their_order_and_free_the_memory() {
        let mut backlog = Backlog::default();
        let mut expected = Vec::new();
        for round in 0..100usize {
            let bytes: Vec<u8> = (0..round).map(|at| (at * round) as u8).collect();
            backlog.add(&bytes);
            expected.extend_from_slice(&bytes);
            let used = expected.len() * (round % 4) / 4;
            backlog.consume(used);
            expected.drain(..used);
            assert_eq!(backlog.bytes(), expected, "round {round}");
            assert_eq!(backlog.is_empty(), expected.is_empty());
        }
        backlog.consume(expected.len());
        assert_eq!((backlog.bytes(), backlog.memory()), (&[][..], 0));
    }
}
