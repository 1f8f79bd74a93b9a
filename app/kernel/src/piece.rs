//! A piece of the stream that a connection sends.
//!
//! A zero-copy send (the kernel reads the program's buffers instead of copying them) may end within
//! a buffer. The kernel then reads the start of the payload while the rest waits for the next send,
//! so the two pieces share the buffer:
//!
//! ```text
//!   buffer   | start: the kernel reads | rest: in the queue |
//!   owners     the first send            the queue, then the second send
//! ```

use std::rc::Rc;

use tidelane_rings::{Buffer, Pool};

/// A piece of the stream to send. A buffer returns to its pool when its last piece is dropped.
#[derive(Debug)]
pub enum Piece {
    /// The payload of a buffer that has no other owner.
    Whole(Buffer),
    /// The end of the payload of a shared buffer. The number is the offset in bytes at which the
    /// piece begins in the payload.
    Shared(Rc<Buffer>, usize),
}

impl Piece {
    /// Returns the bytes to send.
    pub fn payload(&self) -> &[u8] {
        match self {
            Self::Whole(buffer) => buffer.payload(),
            Self::Shared(buffer, start) => &buffer.payload()[*start..],
        }
    }

    /// Removes `sent` bytes from the front.
    fn advance(&mut self, sent: usize) {
        match self {
            Self::Whole(buffer) => buffer.advance(sent as u32),
            Self::Shared(_, start) => *start += sent,
        }
    }

    /// Splits a piece of which a zero-copy send has sent the first `sent` bytes. Returns the piece
    /// that the kernel reads, and the rest to send. The sole purpose of the first piece is to keep
    /// the buffer allocated while the kernel reads it. The [`payload`](Self::payload) of this piece
    /// therefore still includes the rest.
    fn share(self, sent: usize) -> (Self, Self) {
        let (buffer, start) = match self {
            Self::Whole(buffer) => (Rc::new(buffer), 0),
            Self::Shared(buffer, start) => (buffer, start),
        };
        let rest = Self::Shared(Rc::clone(&buffer), start + sent);
        (Self::Shared(buffer, start), rest)
    }

    /// Gives up the buffer of a piece that the kernel still reads when the context ends. The
    /// context does not get the notification that the kernel has read the buffer, so the buffer is
    /// never used again. The number of a buffer of `pool` stays allocated. Memory that does not
    /// belong to `pool` is leaked. The end of `pool` unmaps its buffers, and the kernel frees the
    /// pages when the kernel has read them.
    pub fn give_up(self, pool: &Pool) {
        let buffer = match self {
            Self::Whole(buffer) => Some(buffer),
            // The last piece of a shared buffer gives the buffer up.
            Self::Shared(buffer, _) => Rc::into_inner(buffer),
        };
        match buffer {
            Some(buffer) if pool.owns(&buffer) => _ = buffer.into_index(),
            other => std::mem::forget(other),
        }
    }
}

/// Returns `pieces` without the first `sent` bytes. Drops the pieces that are sent completely.
pub fn drop_sent(pieces: Vec<Piece>, mut sent: usize) -> Vec<Piece> {
    let mut unsent = Vec::new();
    for mut piece in pieces {
        let part = sent.min(piece.payload().len());
        sent -= part;
        piece.advance(part);
        if !piece.payload().is_empty() {
            unsent.push(piece);
        }
    }
    unsent
}

/// Removes the unsent pieces from `pieces` after a zero-copy send of `sent` bytes, and returns the
/// unsent pieces. If a piece is sent in part, the piece stays in `pieces`, and the rest of its
/// payload is returned.
pub fn split_off_unsent(pieces: &mut Vec<Piece>, mut sent: usize) -> Vec<Piece> {
    let mut unsent = Vec::new();
    for piece in std::mem::take(pieces) {
        let len = piece.payload().len();
        match sent {
            0 => unsent.push(piece),
            _ if sent >= len => pieces.push(piece),
            _ => {
                let (lent, rest) = piece.share(sent);
                pieces.push(lent);
                unsent.push(rest);
            }
        }
        sent = sent.saturating_sub(len);
    }
    unsent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `count` pieces of three bytes each: "abc", "def" and so on.
    fn pieces(pool: &Pool, count: u8) -> Vec<Piece> {
        let piece = |number: u8| {
            let mut buffer = pool.allocate().expect("free");
            let first = b'a' + 3 * number;
            buffer.append(&[first, first + 1, first + 2]);
            Piece::Whole(buffer)
        };
        (0..count).map(piece).collect()
    }

    fn bytes(pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(Piece::payload).copied().collect()
    }

    #[test]
    fn each_byte_is_sent_once_for_any_results_of_send() {
        for first in 0..=9 {
            for second in 0..=9 - first {
                let pool = Pool::new(3, 3).expect("there is memory");
                let mut lent = pieces(&pool, 3);
                let mut again = split_off_unsent(&mut lent, first);
                assert_eq!(bytes(&again), b"abcdefghi"[first..], "{first}");
                assert!(lent.len() == first.div_ceil(3));
                let rest = split_off_unsent(&mut again, second);
                assert_eq!(bytes(&rest), b"abcdefghi"[first + second..]);
                let rest = drop_sent(rest, 1);
                assert_eq!(bytes(&rest), b"abcdefghi"[(first + second + 1).min(9)..]);
                // A buffer is free when none of `rest`, `lent` and `again` has a piece of it.
                drop(rest);
                let held = (first + second).div_ceil(3) as u32;
                assert_eq!(pool.free_count(), 3 - held);
                drop(lent);
                drop(again);
                assert_eq!(pool.free_count(), 3);
            }
        }
    }

    #[test]
    fn a_buffer_that_was_given_up_is_never_free() {
        let pool = Pool::new(3, 3).expect("there is memory");
        let mut lent = pieces(&pool, 2);
        let mut again = split_off_unsent(&mut lent, 1);
        let rest = split_off_unsent(&mut again, 1);
        drop(rest);
        for piece in lent.into_iter().chain(again) {
            piece.give_up(&pool);
        }
        // The two sends have reached only the first of the three buffers. The others are free.
        assert_eq!(pool.free_count(), 2);
        let other = Pool::new(1, 3).expect("there is memory");
        for piece in pieces(&other, 1) {
            piece.give_up(&pool);
        }
        assert_eq!(other.free_count(), 0);
    }
}
