//! The send and receive buffers of connections, in plain memory.
//!
//! The engine addresses bytes by stream position, a 32-bit number that wraps.

use std::collections::VecDeque;

use tidelane_engine::IpFields;

use crate::{queue::PacketEnds, rtt::RoundTrips};

/// The buffer of one direction of a connection.
#[derive(Debug, Default)]
pub struct Stream {
    /// Stream position of the first byte in `bytes`.
    base: u32,
    bytes: VecDeque<u8>,
}

impl Stream {
    /// Appends bytes that a program wrote.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Places received bytes at `pos`. Bytes may arrive out of order. A gap holds zeros until its
    /// bytes arrive.
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

    /// Returns up to `len` bytes from `pos` on.
    pub fn copy(&self, pos: u32, len: usize) -> Vec<u8> {
        let from = pos.wrapping_sub(self.base) as usize;
        self.bytes.iter().skip(from).take(len).copied().collect()
    }

    /// Drops the bytes before `pos`. Does nothing if `pos` is outside of the buffer.
    pub fn drop_before(&mut self, pos: u32) {
        let gone = pos.wrapping_sub(self.base) as usize;
        if gone <= self.bytes.len() {
            self.bytes.drain(..gone);
            self.base = pos;
        }
    }
}

/// The data of one flow (connection) outside of the engine: the buffers of both directions, and the
/// state of packet building.
#[derive(Debug, Default)]
pub struct Streams {
    /// Written bytes that are not acknowledged.
    pub tx: Stream,
    /// Received bytes that are not read.
    pub rx: Stream,
    /// Stream position after the last written byte. `None` before the first write.
    pub written: Option<u32>,
    /// Stream positions of the ends of the records that are not sent completely. A record is the
    /// data up to the end of a write with MSG_EOR.
    pub record_ends: VecDeque<u32>,
    /// Positions in the send stream at which packets end or get PSH.
    pub packet_ends: PacketEnds,
    /// Measurement of the RTT.
    pub round_trips: RoundTrips,
    /// DiffServ field, and TTL or hop limit, of sent packets.
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
