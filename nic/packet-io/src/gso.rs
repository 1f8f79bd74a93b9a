//! GSO frames. A GSO frame has the payload of many TCP segments, and the link splits the frame into
//! segments.

use std::sync::atomic::{AtomicU8, Ordering};

/// Smallest segment size, in payload bytes, of a GSO frame on a link that splits the frame in
/// software. A mux port is an example: shared memory over which a program with a TCP/IP stack of
/// its own sends frames to the service (the process `tidelaned`). The minimum limits the number of
/// segments per frame. The minimum is below 524 bytes, the default MSS of IPv4 (536 bytes) less the
/// timestamp option (12 bytes), so that every ordinary connection may use GSO.
pub const GSO_SEGMENT_MIN: u16 = 512;

/// Parameters for the segmentation of a GSO frame by the link. Each segment has a copy of the
/// headers and a part of the payload. The link sets the lengths, the sequence number and the
/// checksums in each copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoParameters {
    /// Length in bytes of all headers, from the link header to the TCP header.
    pub headers_len: u16,
    /// Number of payload bytes (MSS) in each segment except the last segment, which may be shorter.
    pub segment_size: u16,
    /// Offset of the TCP header in the frame, in bytes. The checksum field of the TCP header holds
    /// the sum of the pseudo-header of the whole GSO frame.
    pub tcp_start: u16,
    /// True if the IP header is IPv6.
    pub is_v6: bool,
}

/// Payload of a GSO frame. The payload has two parts, because it may wrap at the end of a circular
/// stream buffer.
#[derive(Clone, Copy, Debug)]
pub enum GsoPayload<'a> {
    /// Memory that only this process accesses, as with `MAP_PRIVATE`.
    Private([&'a [u8]; 2]),
    /// Memory to which a program may write at the same time.
    Shared([&'a [AtomicU8]; 2]),
}

impl GsoPayload<'_> {
    /// Returns the length of the payload in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Private([first, second]) => first.len() + second.len(),
            Self::Shared([first, second]) => first.len() + second.len(),
        }
    }

    /// Returns true if the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the payload to `to`.
    ///
    /// # Panics
    ///
    /// If `to` has another length than the payload.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(
            to.len(),
            self.len(),
            "the destination and the payload differ in length"
        );
        match self {
            Self::Private([first, second]) => {
                let (to_first, to_second) = to.split_at_mut(first.len());
                to_first.copy_from_slice(first);
                to_second.copy_from_slice(second);
            }
            Self::Shared(parts) => {
                for (to, byte) in to.iter_mut().zip(parts.iter().copied().flatten()) {
                    *to = byte.load(Ordering::Relaxed);
                }
            }
        }
    }
}
