//! The two ends of a packet ring: see [`tidelane_abi::port`] for the layout.
//!
//! A peer may write its own memory at any time. The consumer of a hostile peer therefore validates
//! each length once, and copies the frame before it looks at it.

use std::{ptr::NonNull, slice, sync::Arc};

use tidelane_abi::port::{
    PACKET_SKIP, PACKET_UNIT, PORT_DATA_OFFSET, PORT_FRAME_LEN_MAX, PacketHead, PortHead,
};

use crate::{
    Corrupt, PortRegions, PushError, Region,
    cursor::{ConsumerCursor, ProducerCursor},
    sync::AtomicU32,
};

/// Length of the head of an entry in bytes.
const HEAD_LEN: u32 = size_of::<PacketHead>() as u32;
/// Units of an entry with the longest frame.
const ENTRY_UNITS_MAX: u32 = units(PORT_FRAME_LEN_MAX);

/// Returns the number of units of an entry with a frame of `len` bytes.
const fn units(len: u32) -> u32 {
    (HEAD_LEN + len).div_ceil(PACKET_UNIT)
}

/// The words and packets of both memories, as pointers. The value keeps the memories mapped.
#[derive(Debug)]
struct Memory {
    own: NonNull<PortHead>,
    peer: NonNull<PortHead>,
    /// The packets of the memory that the ring's producer writes.
    data: NonNull<u8>,
    regions: PortRegions,
}

// SAFETY: the pointers refer to mappings that the value keeps, and belong to no thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Returns the pointers. `data_is_own` is true for the producer.
    fn new(regions: &PortRegions, data_is_own: bool) -> Self {
        let data = if data_is_own {
            &regions.own
        } else {
            &regions.peer
        };
        let whole = PORT_DATA_OFFSET + u64::from(regions.ring_len);
        assert!(
            regions.own.len() == whole && regions.peer.len() == whole,
            "memories of another length"
        );
        let head = |region: &Region| region.pointer(0).expect("a memory has a head");
        Self {
            own: head(&regions.own),
            peer: head(&regions.peer),
            data: data
                .pointer(PORT_DATA_OFFSET)
                .expect("a memory has packets"),
            regions: regions.clone(),
        }
    }

    #[inline]
    fn own(&self) -> &PortHead {
        // SAFETY: the pointer came from the mapping that `regions` keeps. A head has only atomics.
        unsafe { self.own.as_ref() }
    }

    #[inline]
    fn peer(&self) -> &PortHead {
        // SAFETY: as in `own`.
        unsafe { self.peer.as_ref() }
    }

    /// Returns a pointer to the unit at `at`. `at` must be at most the number of units.
    #[inline]
    fn unit(&self, at: usize) -> *mut u8 {
        // SAFETY: the data has the length of the ring, and positions are within the ring.
        unsafe { self.data.as_ptr().add(at * PACKET_UNIT as usize) }
    }
}

/// The producing end of a packet ring. Each ring must have only one producer.
#[derive(Debug)]
pub struct PacketProducer {
    cursor: ProducerCursor,
    units: u32,
    /// Position of the room that the caller has for its next frame.
    room: Option<usize>,
    memory: Memory,
}

impl PacketProducer {
    /// Creates the producer of a new ring in the memory that this process writes.
    pub fn new(regions: &PortRegions) -> Self {
        let units = regions.ring_len / PACKET_UNIT;
        Self {
            cursor: ProducerCursor::new(units),
            units,
            room: None,
            memory: Memory::new(regions, true),
        }
    }

    /// Returns room for a frame of [`PORT_FRAME_LEN_MAX`] bytes. Returns the same room again until
    /// [`commit`](Self::commit).
    #[inline]
    pub fn frame(&mut self) -> Result<&mut [u8], PushError> {
        let at = match self.room {
            Some(at) => at,
            None => self.find_room()?,
        };
        self.room = Some(at);
        // SAFETY: `find_room` returned a position with room for the longest entry within the ring.
        // Only this end writes the memory. The consumer does not read the entry before it is
        // published.
        Ok(unsafe {
            let start = self.memory.unit(at).add(HEAD_LEN as usize);
            slice::from_raw_parts_mut(start, PORT_FRAME_LEN_MAX as usize)
        })
    }

    /// Returns the position of room for the longest entry. Skips the end of the ring if the end is
    /// too short.
    #[inline]
    fn find_room(&mut self) -> Result<usize, PushError> {
        let at = self.claim(ENTRY_UNITS_MAX)?;
        let left = self.units - at as u32;
        if left >= ENTRY_UNITS_MAX {
            return Ok(at);
        }
        self.claim(left + ENTRY_UNITS_MAX)?;
        self.write_head(at, PACKET_SKIP);
        self.cursor.commit_many(left);
        Ok(0)
    }

    /// Queues the first `len` bytes of the frame that [`frame`](Self::frame) returned last. The
    /// consumer sees the frame after [`publish`](Self::publish).
    ///
    /// # Panics
    ///
    /// Panics if the frame is longer than [`PORT_FRAME_LEN_MAX`], or if there is no frame.
    #[inline]
    pub fn commit(&mut self, len: u32) {
        assert!(len <= PORT_FRAME_LEN_MAX, "the frame is too long");
        let at = self.room.take().expect("the caller has a frame");
        self.write_head(at, len);
        self.cursor.commit_many(units(len));
    }

    /// Makes queued frames visible. Returns true if there were any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.cursor.publish(&self.memory.own().produced.word)
    }

    #[inline]
    fn claim(&mut self, units: u32) -> Result<usize, PushError> {
        self.cursor
            .claim_many(units, &self.memory.peer().consumed.word)
    }

    fn write_head(&mut self, at: usize, len: u32) {
        let head = PacketHead { len, reserved: 0 };
        // SAFETY: the position is within the ring, and a unit has room and alignment for a head.
        unsafe {
            self.memory
                .unit(at)
                .cast::<PacketHead>()
                .write_volatile(head)
        };
    }

    /// Returns the word by which the peer announces its sleep: see
    /// [`should_ring_sleeper`](crate::sleep::should_ring_sleeper).
    pub fn peer_sleep_word(&self) -> &AtomicU32 {
        &self.memory.peer().sleep.word
    }

    /// Returns the word by which this process announces its sleep: see
    /// [`announce_sleep`](crate::sleep::announce_sleep).
    pub fn own_sleep_word(&self) -> &AtomicU32 {
        &self.memory.own().sleep.word
    }
}

/// A frame in a ring: its position, and its validated length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPlace {
    at: u32,
    len: u32,
}

impl PacketPlace {
    /// Returns the length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The consuming end of a packet ring. Each ring must have only one consumer.
#[derive(Debug)]
pub struct PacketConsumer {
    cursor: ConsumerCursor,
    units: u32,
    memory: Memory,
}

impl PacketConsumer {
    /// Creates the consumer of a new ring in the memory that the peer writes.
    pub fn new(regions: &PortRegions) -> Self {
        let units = regions.ring_len / PACKET_UNIT;
        Self {
            cursor: ConsumerCursor::new(units),
            units,
            memory: Memory::new(regions, false),
        }
    }

    /// Returns the next frame. The frame stays in the ring until [`release`](Self::release).
    #[inline]
    pub fn take(&mut self) -> Result<Option<PacketPlace>, Corrupt> {
        let Some((mut at, mut known)) = self.known()? else {
            return Ok(None);
        };
        let mut len = self.read_len(at);
        if len == PACKET_SKIP {
            self.skip(at, known)?;
            (at, known) = match self.known()? {
                Some(next) => next,
                None => return Ok(None),
            };
            // A producer skips the end of the ring, and the next entry is at its start.
            len = self.read_len(at);
        }
        if len > PORT_FRAME_LEN_MAX {
            return Err(Corrupt);
        }
        let units = units(len);
        if units > known || at + units > self.units {
            return Err(Corrupt);
        }
        self.cursor.commit_many(units);
        Ok(Some(PacketPlace { at, len }))
    }

    /// Returns the position of the next entry, and the number of units that the ring is known to
    /// have.
    #[inline]
    fn known(&mut self) -> Result<Option<(u32, u32)>, Corrupt> {
        let known = self.cursor.known(&self.memory.peer().produced.word)?;
        Ok((known > 0).then(|| (self.cursor.ahead(0) as u32, known)))
    }

    /// Skips the end of the ring.
    fn skip(&mut self, at: u32, known: u32) -> Result<(), Corrupt> {
        let left = self.units - at;
        if left > known {
            return Err(Corrupt);
        }
        self.cursor.commit_many(left);
        Ok(())
    }

    #[inline]
    fn read_len(&self, at: u32) -> u32 {
        // SAFETY: the position is within the ring, and a unit has room and alignment for a head.
        // The volatile read happens exactly once, so the caller validates the value that it uses.
        let head = unsafe {
            let unit = self.memory.unit(at as usize).cast::<PacketHead>();
            unit.read_volatile()
        };
        head.len
    }

    /// Appends a copy of a frame to `bytes`.
    #[inline]
    pub fn append_to(&self, place: PacketPlace, bytes: &mut Vec<u8>) {
        let (old, len) = (bytes.len(), place.len());
        bytes.reserve(len);
        // SAFETY: `take` checked that the frame is within the ring. The vector has room for `len`
        // more bytes, which the copy initializes.
        unsafe {
            let from = self.memory.unit(place.at as usize).add(HEAD_LEN as usize);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr().add(old), len);
            bytes.set_len(old + len);
        }
    }

    /// Gives the room of all frames that [`take`](Self::take) has returned back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.cursor.release(&self.memory.own().consumed.word);
    }

    /// Returns true if the ring is empty, at the cost of one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.cursor.is_empty(&self.memory.peer().produced.word)
    }

    /// Returns a view of the ring's frames.
    ///
    /// # Safety
    ///
    /// The producer must be trusted: it does not change a frame before the consumer has released
    /// the frame.
    pub unsafe fn view(&self) -> PacketView {
        PacketView {
            data: self.memory.data,
            len: self.units as usize * PACKET_UNIT as usize,
            _region: self.memory.regions.peer.clone(),
        }
    }
}

/// A view of the frames of a ring whose producer is trusted.
#[derive(Clone, Debug)]
pub struct PacketView {
    data: NonNull<u8>,
    /// Length of the ring in bytes.
    len: usize,
    _region: Arc<Region>,
}

// SAFETY: the pointer refers to the mapping that the value keeps, and belongs to no thread.
unsafe impl Send for PacketView {}

impl PacketView {
    /// Returns the bytes of a frame of this ring. Returns `None` for a place outside of the ring.
    #[inline]
    pub fn bytes(&self, place: PacketPlace) -> Option<&[u8]> {
        let start = place.at as usize * PACKET_UNIT as usize + HEAD_LEN as usize;
        if start + place.len() > self.len {
            return None;
        }
        // SAFETY: the place is within the mapping. The trusted producer does not write the frame
        // before its release.
        Some(unsafe { slice::from_raw_parts(self.data.as_ptr().add(start), place.len()) })
    }
}

#[cfg(test)]
mod tests;
