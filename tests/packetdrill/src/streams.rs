//! Stream buffers in plain memory, addressed by the engine's stream positions.

use std::collections::VecDeque;

use tidelane_engine::IpFields;

use crate::{queue::Marks, rtt::RoundTrips};

/// One direction of a connection: the bytes from position `base` on.
#[derive(Debug, Default)]
pub struct Stream {
    base: u32,
    bytes: VecDeque<u8>,
}

impl Stream {
    /// Appends what a program wrote.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Puts bytes at `pos`, in order or not. What lies between is filled with zeros until it comes.
    pub fn put(&mut self, pos: u32, bytes: &[u8]) {
        let from = pos.wrapping_sub(self.base) as usize;
        let end = from + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        for (place, byte) in self.bytes.range_mut(from..end).zip(bytes) {
            *place = *byte;
        }
    }

    /// `len` bytes from `pos` on, fewer if there are not so many.
    pub fn copy(&self, pos: u32, len: usize) -> Vec<u8> {
        let from = pos.wrapping_sub(self.base) as usize;
        self.bytes.iter().skip(from).take(len).copied().collect()
    }

    /// Forgets what lies before `pos`.
    pub fn drop_before(&mut self, pos: u32) {
        let gone = pos.wrapping_sub(self.base) as usize;
        if gone <= self.bytes.len() {
            self.bytes.drain(..gone);
            self.base = pos;
        }
    }
}

/// Both directions.
#[derive(Debug, Default)]
pub struct Streams {
    /// Written and not acknowledged.
    pub tx: Stream,
    /// Received and not read.
    pub rx: Stream,
    /// Stream position after the last byte written, once there is one.
    pub written: Option<u32>,
    /// Where records end that the engine has not sent all of.
    pub record_ends: VecDeque<u32>,
    /// Where packets end.
    pub marks: Marks,
    /// How long they take.
    pub round_trips: RoundTrips,
    /// DiffServ field and TTL of what is sent.
    pub fields: IpFields,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_out_of_order_come_out_in_order() {
        let mut stream = Stream::default();
        stream.put(3, b"def");
        stream.put(0, b"abc");
        assert_eq!(stream.copy(0, 99), b"abcdef");
        stream.drop_before(2);
        assert_eq!(stream.copy(2, 3), b"cde");
        assert_eq!(stream.copy(5, 9), b"f");
    }

    #[test]
    fn positions_wrap() {
        let mut stream = Stream {
            base: u32::MAX - 1,
            bytes: VecDeque::new(),
        };
        stream.append(b"abcd");
        assert_eq!(stream.copy(1, 9), b"d");
        stream.drop_before(0);
        assert_eq!(stream.copy(0, 1), b"c");
    }
}
