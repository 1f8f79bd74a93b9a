//! Layout of a program region: the memory that one program shares with the service (process
//! `tidelaned`). The region has a header, ring sets (each has the rings between one thread of the
//! program and one polling thread of the service), slots (the records of connections), receive
//! buffers and send buffers, in this order.

use std::ops::Range;

use tidelane_abi::{
    ABI_VERSION, Header, REGION_MAGIC, RING_SETS_MAX, STREAM_BUFFER_LOG2_MAX,
    STREAM_BUFFER_LOG2_MIN, Slot, ring_set_offset,
};

use crate::memories::MEMORIES;

/// A validated layout of a program region. The layout is a private copy of the shared header. The
/// header is not read again, because the other process could change it after the validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of slots.
    slots_max: u32,
    /// Length of the region in bytes.
    region_len: u64,
    /// Region offset of the slots in bytes.
    slots_offset: u64,
    /// Region offset of the receive buffers in bytes.
    rx_offset: u64,
    /// Length of the area for receive buffers in bytes.
    rx_len: u64,
    /// Region offset of the send buffers in bytes.
    tx_offset: u64,
    /// Length of the area for send buffers in bytes.
    tx_len: u64,
}

/// Reason why a header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The header does not begin with the magic number.
    Magic,
    /// The header has this version of the ABI, which differs from ours.
    Version(u32),
    /// An offset or a length is invalid.
    Range,
}

/// Length of a slot in bytes.
pub(crate) const SLOT_LEN: u64 = size_of::<Slot>() as u64;
/// Alignment in bytes of the buffer areas in a new layout: the size of the largest buffer.
const AREA_ALIGN: u64 = 1 << STREAM_BUFFER_LOG2_MAX;
/// Alignment in bytes of the buffer areas that a valid header must have: the size of the smallest
/// buffer.
pub(crate) const UNIT: u64 = 1 << STREAM_BUFFER_LOG2_MIN;

impl Layout {
    /// Creates the layout for `slots_max` slots, and for buffer areas of at least `rx_len` and
    /// `tx_len` bytes. Returns `None` if the region would be too large.
    pub fn new(slots_max: u32, rx_len: u64, tx_len: u64) -> Option<Layout> {
        let slots_offset = ring_set_offset(RING_SETS_MAX);
        let slots_end = slots_offset.checked_add(u64::from(slots_max) * SLOT_LEN)?;
        let rx_offset = slots_end.checked_next_multiple_of(AREA_ALIGN)?;
        let rx_len = rx_len.checked_next_multiple_of(UNIT)?;
        let tx_offset = rx_offset
            .checked_add(rx_len)?
            .checked_next_multiple_of(AREA_ALIGN)?;
        let tx_len = tx_len.checked_next_multiple_of(UNIT)?;
        let region_len = tx_offset
            .checked_add(tx_len)?
            .checked_next_multiple_of(4096)?;
        let layout = Layout {
            slots_max,
            region_len,
            slots_offset,
            rx_offset,
            rx_len,
            tx_offset,
            tx_len,
        };
        (region_len <= i64::MAX as u64).then_some(layout)
    }

    /// Returns the region header for this layout.
    pub fn header(&self) -> Header {
        Header {
            magic: REGION_MAGIC,
            abi_version: ABI_VERSION,
            slots_max: self.slots_max,
            region_len: self.region_len,
            slots_offset: self.slots_offset,
            rx_offset: self.rx_offset,
            rx_len: self.rx_len,
            tx_offset: self.tx_offset,
            tx_len: self.tx_len,
        }
    }

    /// Validates a header. All parts must be aligned, in order, and within `mapped_len` bytes, the
    /// length of the mapping.
    pub fn from_header(header: &Header, mapped_len: u64) -> Result<Layout, LayoutError> {
        if header.magic != REGION_MAGIC {
            return Err(LayoutError::Magic);
        }
        if header.abi_version != ABI_VERSION {
            return Err(LayoutError::Version(header.abi_version));
        }
        let slots_len = u64::from(header.slots_max) * SLOT_LEN;
        let ordered = [
            Some(ring_set_offset(RING_SETS_MAX)),
            Some(header.slots_offset),
            header.slots_offset.checked_add(slots_len),
            Some(header.rx_offset),
            header.rx_offset.checked_add(header.rx_len),
            Some(header.tx_offset),
            header.tx_offset.checked_add(header.tx_len),
            Some(mapped_len),
        ];
        let in_order = ordered.iter().all(Option::is_some) && ordered.is_sorted();
        let aligned = header.slots_offset.is_multiple_of(SLOT_LEN)
            && header.rx_offset.is_multiple_of(UNIT)
            && header.tx_offset.is_multiple_of(UNIT);
        if !in_order || !aligned {
            return Err(LayoutError::Range);
        }
        Ok(Layout {
            slots_max: header.slots_max,
            region_len: mapped_len,
            slots_offset: header.slots_offset,
            rx_offset: header.rx_offset,
            rx_len: header.rx_len,
            tx_offset: header.tx_offset,
            tx_len: header.tx_len,
        })
    }

    /// Returns the number of slots.
    pub fn slots_max(&self) -> u32 {
        self.slots_max
    }

    /// Returns the length of the region in bytes.
    pub fn region_len(&self) -> u64 {
        self.region_len
    }

    /// Returns the lengths in bytes of the region's three memories (memfds), in this order:
    /// `control` (header, ring sets and slots), `received` (receive buffers) and `sent` (send
    /// buffers).
    pub fn parts(&self) -> [u64; MEMORIES] {
        let rx_len = self.tx_offset - self.rx_offset;
        [self.rx_offset, rx_len, self.region_len - self.tx_offset]
    }

    /// Returns the region offset of slot `n`, or `None` if the slot does not exist.
    #[inline]
    pub fn slot_offset(&self, n: u32) -> Option<u64> {
        (n < self.slots_max).then(|| self.slots_offset + u64::from(n) * SLOT_LEN)
    }

    /// Returns the region offsets of the receive-buffer area.
    #[inline]
    pub fn rx_area(&self) -> Range<u64> {
        self.rx_offset..self.rx_offset + self.rx_len
    }

    /// Returns the region offsets of the send-buffer area.
    #[inline]
    pub fn tx_area(&self) -> Range<u64> {
        self.tx_offset..self.tx_offset + self.tx_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_back() {
        let layout = Layout::new(1000, 1 << 30, 3 << 20).unwrap();
        assert_eq!(
            Layout::from_header(&layout.header(), layout.region_len()),
            Ok(layout)
        );
        assert!(layout.slot_offset(999).unwrap() + 256 <= layout.rx_area().start);
        assert_eq!(layout.slot_offset(1000), None);
        assert_eq!(layout.tx_area().end, layout.region_len());
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Layout::new(16, 1 << 20, 1 << 20).unwrap();
        let len = good.region_len();
        let refused = |change: &dyn Fn(&mut Header), len| {
            let mut header = good.header();
            change(&mut header);
            Layout::from_header(&header, len).unwrap_err()
        };
        assert_eq!(refused(&|h| h.magic = 1, len), LayoutError::Magic);
        assert_eq!(
            refused(&|h| h.abi_version += 1, len),
            LayoutError::Version(ABI_VERSION + 1)
        );
        assert_eq!(
            refused(&|h| h.slots_max = u32::MAX, len),
            LayoutError::Range
        );
        assert_eq!(refused(&|h| h.slots_offset = 256, len), LayoutError::Range);
        assert_eq!(refused(&|h| h.slots_offset += 8, len), LayoutError::Range);
        assert_eq!(refused(&|h| h.rx_offset += 1, len), LayoutError::Range);
        assert_eq!(refused(&|h| h.rx_len = u64::MAX, len), LayoutError::Range);
        assert_eq!(refused(&|h| h.tx_len += 1, len), LayoutError::Range);
        assert_eq!(refused(&|_| (), len - 1), LayoutError::Range);
        assert!(Layout::new(16, u64::MAX, 0).is_none());
        assert!(Layout::new(16, i64::MAX as u64, i64::MAX as u64).is_none());
    }
}
