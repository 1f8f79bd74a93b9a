//! The internet checksum (RFC 1071): one's complement sum of 16-bit words.
//!
//! A [`Sum`] adds the words in the machine's byte order, which commutes with the byte order of the
//! wire up to one swap at the end, so whole machine words can be added. Partial sums of pieces add
//! up if each piece but the last has an even length.

use crate::address::IpAddress;

/// A partial sum. Sums of up to 2^32 bytes cannot overflow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u64);

/// Bytes that the unrolled loop takes at once: four accumulators of two 32-bit lanes each fill
/// vector registers.
const BLOCK: usize = 32;
const LANES: usize = BLOCK / 4;

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// The sum of a number that stands in network byte order on the wire.
    #[inline]
    pub const fn of_u16(number: u16) -> Self {
        Self(number.to_be() as u64)
    }

    /// The sum of two pieces.
    #[inline]
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The sum in 16 bits, not complemented, as a number (store it in network byte order).
    #[inline]
    pub const fn fold(self) -> u16 {
        // Adding the halves to each other leaves their sum with end-around carry in the upper one.
        let sum = (self.0.wrapping_add(self.0.rotate_left(32)) >> 32) as u32;
        let sum = sum.wrapping_add(sum.rotate_left(16)) >> 16;
        (sum as u16).to_be()
    }

    /// The value of a checksum field that was zero when the sum was taken.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Whether data that include their checksum field are intact.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

/// The sum of `bytes`, the last one padded with a zero where their number is odd.
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    let mut lanes = [0u64; LANES];
    for block in blocks {
        add_block(&mut lanes, block);
    }
    Sum(lanes.iter().sum::<u64>() + sum_tail(tail))
}

/// Copies `src` to the start of `dst` and returns the sum of what it copied.
///
/// # Panics
///
/// If `dst` is shorter than `src`.
#[inline]
pub fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> Sum {
    let dst = &mut dst[..src.len()];
    let (src_blocks, src_tail) = src.as_chunks::<BLOCK>();
    let (dst_blocks, dst_tail) = dst.as_chunks_mut::<BLOCK>();
    let mut lanes = [0u64; LANES];
    for (to, from) in dst_blocks.iter_mut().zip(src_blocks) {
        *to = *from;
        add_block(&mut lanes, from);
    }
    dst_tail.copy_from_slice(src_tail);
    Sum(lanes.iter().sum::<u64>() + sum_tail(src_tail))
}

#[inline]
fn add_block(lanes: &mut [u64; LANES], block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks::<4>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane += u64::from(u32::from_ne_bytes(*word));
    }
}

/// The sum of fewer bytes than a block.
#[inline]
fn sum_tail(tail: &[u8]) -> u64 {
    let (words, rest) = tail.as_chunks::<4>();
    let mut total = 0;
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    total + u64::from(u32::from_ne_bytes(last))
}

/// The sum of the pseudo-header that TCP and UDP checksums cover, for whichever version `src` is.
#[inline]
pub fn pseudo_header(src: IpAddress, dst: IpAddress, protocol: u8, len: u32) -> Sum {
    match (src.as_v4(), dst.as_v4()) {
        (Some(src), Some(dst)) => pseudo_header_v4(src, dst, protocol, len),
        _ => pseudo_header_v6(src.0, dst.0, protocol, len),
    }
}

/// The pseudo-header of RFC 9293 §3.1 for IPv4. `len` counts the transport header and payload.
#[inline]
pub fn pseudo_header_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: u32) -> Sum {
    let addresses = Sum(u64::from(u32::from_ne_bytes(src)) + u64::from(u32::from_ne_bytes(dst)));
    addresses.plus(protocol_and_len(protocol, len))
}

/// The pseudo-header of RFC 8200 §8.1 for IPv6. `len` counts the transport header and payload.
#[inline]
pub fn pseudo_header_v6(src: [u8; 16], dst: [u8; 16], protocol: u8, len: u32) -> Sum {
    Sum(sum_tail(&src) + sum_tail(&dst)).plus(protocol_and_len(protocol, len))
}

#[inline]
fn protocol_and_len(protocol: u8, len: u32) -> Sum {
    Sum(u64::from(u16::from(protocol).to_be()) + u64::from(len.to_be()))
}
