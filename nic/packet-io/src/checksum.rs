//! The Internet checksum (RFC 1071), for ports (queues of a NIC, or ends of a link in memory)
//! that complete partial checksums in software.

/// Sums `bytes` as big-endian 16-bit words without folding, with an odd last byte padded with zero.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words
        .remainder()
        .first()
        .map_or(0, |byte| u64::from(*byte) << 8);
    words
        .map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])))
        .sum::<u64>()
        + last
}

/// Completes the partial checksum of a frame
/// ([`TxChecksum::Partial`](crate::TxChecksum::Partial)).
///
/// The checksum field at `start + offset` holds the sum of the pseudo-header. The function sums all
/// bytes from `start`, and stores the complement of the sum in the field. Returns false, and
/// changes nothing, if the field is not within the frame.
pub fn finish_checksum(frame: &mut [u8], start: u16, offset: u16) -> bool {
    let start = usize::from(start);
    let field = start + usize::from(offset);
    if field + 2 > frame.len() {
        return false;
    }
    let mut folded = sum(&frame[start..]);
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    // A UDP checksum of zero means "no checksum" (RFC 768). Store 0xffff instead, which has the
    // same value in ones' complement, and which TCP accepts, too.
    let complement = match !(folded as u16) {
        0 => 0xffff,
        value => value,
    };
    frame[field..field + 2].copy_from_slice(&complement.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::finish_checksum;

    /// Returns a frame with a UDP datagram from 10.0.0.1:1 to 10.0.0.2:2 and three bytes of
    /// payload. The checksum field holds the sum of the pseudo-header. The other headers are zeros.
    fn datagram() -> Vec<u8> {
        let mut bytes = vec![0u8; 14 + 20];
        bytes.extend([0, 1, 0, 2, 0, 11, 0, 0, b'a', b'b', b'c']);
        let pseudo: u32 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 11;
        bytes[40..42].copy_from_slice(&(pseudo as u16).to_be_bytes());
        bytes
    }

    #[test]
    fn finished_datagram_sums_to_all_ones() {
        let mut frame = datagram();
        assert!(finish_checksum(&mut frame, 34, 6));
        let pseudo: u64 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 11;
        let mut total = super::sum(&frame[34..]) + pseudo;
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        assert_eq!(total, 0xffff);
    }

    #[test]
    fn field_outside_the_frame_is_refused() {
        let mut frame = datagram();
        let before = frame.clone();
        assert!(!finish_checksum(&mut frame, 34, 10));
        assert!(!finish_checksum(&mut frame, u16::MAX, u16::MAX));
        assert_eq!(frame, before);
    }
}
