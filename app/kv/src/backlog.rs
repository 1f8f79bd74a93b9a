//! Received bytes that a session has not used.

/// Bytes in the order of their arrival.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: Vec<u8>,
    /// Number of bytes that are used.
    start: usize,
}

impl Backlog {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns the number of bytes in memory, with those that are used but not yet removed.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Adds bytes at the end.
    pub fn add(&mut self, bytes: &[u8]) {
        // The used bytes are removed when they are the larger part, so that each byte moves once.
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes the first `len` bytes. An empty backlog takes no memory.
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
