//! [`RingOutput`]: writes the answers to a client into buffers of the pool of a ring context
//! (`tidelane-rings`).

use std::collections::VecDeque;

use tidelane_rings::{Buffer, Pool};

use crate::output::Output;

/// An output that appends to the buffers with the answers to one client. The room is limited,
/// because the output may take only a limited number of further buffers from the pool.
pub struct RingOutput<'a> {
    pool: &'a Pool,
    buffers: &'a mut VecDeque<Buffer>,
    /// Number of buffers that the output may still take from the pool.
    allowance: u32,
}

impl<'a> RingOutput<'a> {
    /// Returns an output that appends to `buffers` and takes at most `allowance` buffers from the
    /// pool.
    pub fn new(pool: &'a Pool, buffers: &'a mut VecDeque<Buffer>, allowance: u32) -> Self {
        Self {
            pool,
            buffers,
            allowance: allowance.min(pool.free_count()),
        }
    }

    fn add_buffer(&mut self) {
        assert!(self.allowance > 0, "the session writes more than the room");
        self.allowance -= 1;
        let buffer = self.pool.allocate();
        self.buffers
            .push_back(buffer.expect("the allowance has only free buffers"));
    }
}

impl Output for RingOutput<'_> {
    fn room(&self) -> usize {
        // Some back ends reserve headroom for headers in each buffer.
        let len = self.pool.payload_len_max();
        let in_last = self.buffers.back().map_or(0, Buffer::tail_room);
        in_last as usize + self.allowance as usize * len as usize
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.buffers.back_mut().map_or(0, |last| last.append(rest));
            rest = &rest[written..];
            if !rest.is_empty() {
                self.add_buffer();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_continue_in_the_next_buffer_until_the_allowance_is_used() {
        let pool = Pool::new(8, 10).expect("there is memory");
        let mut buffers = VecDeque::new();
        let mut output = RingOutput::new(&pool, &mut buffers, 3);
        assert_eq!(output.room(), 30);
        output.write(b"abcdefghijklm");
        assert_eq!(output.room(), 17);
        output.write(b"nopqrstuvwxyzABCD");
        assert_eq!(output.room(), 0);
        output.write(b"");
        let text: Vec<&[u8]> = buffers.iter().map(Buffer::payload).collect();
        assert_eq!(text, [&b"abcdefghij"[..], b"klmnopqrst", b"uvwxyzABCD"]);
        // The number of free buffers limits the room if the allowance is larger.
        assert_eq!(RingOutput::new(&pool, &mut buffers, 100).room(), 50);
    }

    /// Headroom for headers reduces the room for answers.
    #[test]
    fn buffers_with_headroom_hold_less() {
        let pool = Pool::with_headroom(3, 10, 6).expect("there is memory");
        let mut buffers = VecDeque::new();
        let mut output = RingOutput::new(&pool, &mut buffers, 3);
        assert_eq!(output.room(), 12);
        output.write(b"abcde");
        assert_eq!(output.room(), 7);
        output.write(b"fghijkl");
        assert_eq!(output.room(), 0);
        let text: Vec<&[u8]> = buffers.iter().map(Buffer::payload).collect();
        assert_eq!(text, [&b"abcd"[..], b"efgh", b"ijkl"]);
    }
}
