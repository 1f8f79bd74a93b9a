//! The two ends of a packet ring: see [`tidelane_abi::port`] for the layout.
//!
//! A packet ring carries frames between the service (process `tidelaned`) and a program with its
//! own TCP/IP stack. The rings between service and program belong to the program's *port*. Each
//! process writes one memory and reads the memory of the other process, its *peer*. The peer may be
//! hostile and may change its memory at any time. The consumer therefore reads and validates each
//! length once, and copies a frame before it examines the frame.
//!
//! A ring consists of units of [`PACKET_UNIT`] bytes. An entry is a head and then a frame, in
//! consecutive units. If a frame does not fit before the end of the ring, the producer writes an
//! entry that skips the rest of the ring. A GSO frame is a large TCP segment of the program, which
//! the service or the NIC divides into segments.

use std::{ptr::NonNull, slice, sync::Arc};

use tidelane_abi::port::{
    PACKET_SKIP, PACKET_UNIT, PORT_DATA_OFFSET, PORT_FRAME_LEN_MAX, PacketHead, PortHead,
    gso_len_max,
};

use crate::{
    Corrupt, PortRegions, PushError, Region,
    cursor::{ConsumerCursor, ProducerCursor},
    prefetch_unsafe::{Access, CACHE_LINE, prefetch},
    sync::AtomicU32,
};

/// Length of the head of an entry in bytes.
const HEAD_LEN: u32 = size_of::<PacketHead>() as u32;

/// Returns the number of units of an entry with a frame of `len` bytes.
const fn units(len: u32) -> u32 {
    (HEAD_LEN + len).div_ceil(PACKET_UNIT)
}

/// Largest number of units of a frame that a prefetch fetches. The prefetcher of the CPU fetches
/// the rest in time.
const PREFETCH_UNITS_MAX: u32 = 32;

/// Pointers to the heads of a port's two memories, and to the packets of one of them. The value
/// keeps the memories mapped.
#[derive(Debug)]
struct RingPointers {
    /// Head of the memory that this process writes.
    own: NonNull<PortHead>,
    /// Head of the memory that the peer writes.
    peer: NonNull<PortHead>,
    /// The packets of the memory that the ring's producer writes.
    data: NonNull<u8>,
    regions: PortRegions,
}

// SAFETY: the pointers refer to mappings that the value keeps, and belong to no thread.
unsafe impl Send for RingPointers {}

impl RingPointers {
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
        let head = |region: &Region| {
            let head = region.pointer(regions.head_at);
            head.expect("a memory has a head")
        };
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

    /// Prefetches `count` units from the unit at `at` on. The units may extend beyond the ring.
    #[inline]
    fn prefetch(&self, at: usize, count: usize, access: Access) {
        prefetch(self.unit(at), count * PACKET_UNIT as usize, access);
    }
}

/// Room for a frame: its position in units, and its length in bytes.
#[derive(Clone, Copy, Debug)]
struct Room {
    at: usize,
    len: u32,
}

/// The producing end of a packet ring. Each ring must have only one producer.
#[derive(Debug)]
pub struct PacketProducer {
    cursor: ProducerCursor,
    /// Length of the ring in units.
    units: u32,
    /// Room that the caller was given for the next frame and has not committed.
    room: Option<Room>,
    pointers: RingPointers,
}

impl PacketProducer {
    /// Creates the producer of a new ring in the memory that this process writes.
    pub fn new(regions: &PortRegions) -> Self {
        let units = regions.ring_len / PACKET_UNIT;
        Self {
            cursor: ProducerCursor::new(units),
            units,
            room: None,
            pointers: RingPointers::new(regions, true),
        }
    }

    /// Returns room for a frame of [`PORT_FRAME_LEN_MAX`] bytes. Until [`commit`](Self::commit),
    /// each call returns the same room.
    #[inline]
    pub fn frame(&mut self) -> Result<&mut [u8], PushError> {
        self.frame_of(PORT_FRAME_LEN_MAX)
    }

    /// Returns room for a frame of `len` bytes. A GSO frame may be longer than
    /// [`PORT_FRAME_LEN_MAX`]. A call with another length replaces the room that was not committed.
    ///
    /// # Errors
    ///
    /// `Full` if the ring has no room now, or if `len` is greater than [`gso_len_max`]. `Corrupt`
    /// if the consumer's index is invalid.
    #[inline]
    pub fn frame_of(&mut self, len: u32) -> Result<&mut [u8], PushError> {
        let room = match self.room {
            Some(room) if room.len == len => room,
            _ => self.find_room(len)?,
        };
        self.room = Some(room);
        // SAFETY: `find_room` returned a position with room for an entry of this length within the
        // ring. Only this end writes the memory. The consumer does not read the entry before this
        // end publishes the entry.
        Ok(unsafe {
            let start = self.pointers.unit(room.at).add(HEAD_LEN as usize);
            slice::from_raw_parts_mut(start, len as usize)
        })
    }

    /// Returns room for a frame of `len` bytes. If the frame does not fit before the end of the
    /// ring, skips the rest of the ring.
    #[inline]
    fn find_room(&mut self, len: u32) -> Result<Room, PushError> {
        if len > PORT_FRAME_LEN_MAX && len > gso_len_max(self.units * PACKET_UNIT) {
            return Err(PushError::Full);
        }
        let needed = units(len);
        let at = self.claim(needed)?;
        let left = self.units - at as u32;
        if left >= needed {
            return Ok(Room { at, len });
        }
        self.claim(left + needed)?;
        self.write_head(at, PACKET_SKIP, 0);
        self.cursor.commit_many(left);
        Ok(Room { at: 0, len })
    }

    /// Queues a frame: the first `len` bytes of the room that [`frame`](Self::frame) returned last.
    /// The consumer sees the frame after [`publish`](Self::publish).
    ///
    /// # Panics
    ///
    /// Panics if the room is shorter than `len` bytes, or if there is no uncommitted room.
    #[inline]
    pub fn commit(&mut self, len: u32) {
        self.commit_entry(len, 0);
    }

    /// Queues the whole room that [`frame_of`](Self::frame_of) returned last as a GSO frame.
    /// `segment_size` is the number of payload bytes of each segment except the last segment, and
    /// must not be zero.
    ///
    /// # Panics
    ///
    /// Panics if there is no uncommitted room.
    pub fn commit_gso(&mut self, segment_size: u16) {
        let len = self.room.map_or(0, |room| room.len);
        self.commit_entry(len, segment_size);
    }

    #[inline]
    fn commit_entry(&mut self, len: u32, segment_size: u16) {
        let room = self.room.take().expect("the caller has a frame");
        assert!(len <= room.len, "the frame is too long");
        self.write_head(room.at, len, segment_size);
        self.cursor.commit_many(units(len));
    }

    /// Prefetches the start of the memory for a future frame of `len` bytes. The producer will
    /// first write `before` other frames of about this length. Does nothing if the ring may have no
    /// room for all these frames.
    #[inline]
    pub fn prefetch(&self, before: usize, len: u32) {
        let needed = units(len);
        let before = before as u32 * needed;
        if self.cursor.free() >= before + needed {
            let at = self.cursor.position() + before as usize;
            // `frame` skips the rest of the ring if the longest frame does not fit there.
            let fits = at + units(PORT_FRAME_LEN_MAX) as usize <= self.units as usize;
            let count = needed.min(PREFETCH_UNITS_MAX) as usize;
            self.pointers
                .prefetch(if fits { at } else { 0 }, count, Access::Write);
        }
    }

    /// Makes queued frames visible. Returns true if there were frames to publish.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.cursor.publish(&self.pointers.own().produced.word)
    }

    #[inline]
    fn claim(&mut self, units: u32) -> Result<usize, PushError> {
        self.cursor
            .claim_many(units, &self.pointers.peer().consumed.word)
    }

    #[inline]
    fn write_head(&mut self, at: usize, len: u32, segment_size: u16) {
        let ([a, b, c, d], [e, f]) = (len.to_ne_bytes(), segment_size.to_ne_bytes());
        let head = u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]);
        // SAFETY: the position is within the ring, and a unit has room and alignment for a head,
        // which is written as one word.
        unsafe { self.pointers.unit(at).cast::<u64>().write_volatile(head) };
    }

    /// Returns the word by which the peer announces its sleep: see
    /// [`should_ring_sleeper`](crate::sleep::should_ring_sleeper).
    pub fn peer_sleep_word(&self) -> &AtomicU32 {
        &self.pointers.peer().sleep.word
    }

    /// Returns the word by which this process announces its sleep: see
    /// [`announce_sleep`](crate::sleep::announce_sleep).
    pub fn own_sleep_word(&self) -> &AtomicU32 {
        &self.pointers.own().sleep.word
    }
}

/// A frame in a ring: its position in units, its validated length in bytes, and the segment size of
/// a GSO frame (zero for another frame).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPlace {
    at: u32,
    len: u32,
    segment_size: u16,
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

    /// Returns the number of payload bytes of each segment of a GSO frame, except the last segment.
    /// Returns zero if the frame is not a GSO frame.
    #[inline]
    pub fn segment_size(&self) -> u16 {
        self.segment_size
    }
}

/// The consuming end of a packet ring. Each ring must have only one consumer.
#[derive(Debug)]
pub struct PacketConsumer {
    cursor: ConsumerCursor,
    /// Length of the ring in units.
    units: u32,
    pointers: RingPointers,
}

impl PacketConsumer {
    /// Creates the consumer of a new ring in the memory that the peer writes.
    pub fn new(regions: &PortRegions) -> Self {
        let units = regions.ring_len / PACKET_UNIT;
        Self {
            cursor: ConsumerCursor::new(units),
            units,
            pointers: RingPointers::new(regions, false),
        }
    }

    /// Returns the next frame, or `None` if the ring has no frame. The frame stays in the ring
    /// until [`release`](Self::release).
    #[inline(always)]
    pub fn take(&mut self) -> Result<Option<PacketPlace>, Corrupt> {
        let Some((mut at, mut known)) = self.known()? else {
            return Ok(None);
        };
        let mut head = self.read_head(at);
        if head.len == PACKET_SKIP {
            self.skip(at, known)?;
            (at, known) = match self.known()? {
                Some(next) => next,
                None => return Ok(None),
            };
            // The skipped entry extends to the end of the ring. The next entry is at the start.
            head = self.read_head(at);
        }
        let PacketHead {
            len, segment_size, ..
        } = head;
        let len_max = match segment_size {
            0 => PORT_FRAME_LEN_MAX,
            _ => gso_len_max(self.units * PACKET_UNIT),
        };
        if len > len_max {
            return Err(Corrupt);
        }
        let units = units(len);
        if units > known || at + units > self.units {
            return Err(Corrupt);
        }
        self.cursor.commit_many(units);
        Ok(Some(PacketPlace {
            at,
            len,
            segment_size,
        }))
    }

    /// Prefetches the next entries (at most `len` bytes), and the index that
    /// [`release`](Self::release) writes.
    #[inline]
    pub fn prefetch(&self, len: usize) {
        let produced = self.cursor.produced(&self.pointers.peer().produced.word);
        let units = len.div_ceil(PACKET_UNIT as usize).min(produced as usize);
        let at = self.cursor.position();
        self.pointers.prefetch(at, units, Access::Read);
        let index = &raw const self.pointers.own().consumed;
        prefetch(index.cast(), CACHE_LINE, Access::Write);
    }

    /// Returns the position of the next entry, and the number of units that are known to be
    /// produced and not yet consumed. Returns `None` if the ring is empty.
    #[inline]
    fn known(&mut self) -> Result<Option<(u32, u32)>, Corrupt> {
        let known = self.cursor.known(&self.pointers.peer().produced.word)?;
        Ok((known > 0).then(|| (self.cursor.position() as u32, known)))
    }

    /// Skips the entry at `at`, which a producer writes if a frame does not fit before the end of
    /// the ring.
    fn skip(&mut self, at: u32, known: u32) -> Result<(), Corrupt> {
        let left = self.units - at;
        if left > known {
            return Err(Corrupt);
        }
        self.cursor.commit_many(left);
        Ok(())
    }

    #[inline]
    fn read_head(&self, at: u32) -> PacketHead {
        // SAFETY: the position is within the ring, and a unit has room and alignment for a head.
        // The volatile read of one word happens exactly once, so the caller validates the values
        // that it uses.
        let head = unsafe {
            let unit = self.pointers.unit(at as usize).cast::<u64>();
            unit.read_volatile()
        };
        let [a, b, c, d, e, f, g, h] = head.to_ne_bytes();
        PacketHead {
            len: u32::from_ne_bytes([a, b, c, d]),
            segment_size: u16::from_ne_bytes([e, f]),
            reserved: u16::from_ne_bytes([g, h]),
        }
    }

    /// Appends a copy of a frame to `bytes`.
    #[inline]
    pub fn append_to(&self, place: PacketPlace, bytes: &mut Vec<u8>) {
        let (old, len) = (bytes.len(), place.len());
        bytes.reserve(len);
        // SAFETY: `take` checked that the frame is within the ring. The vector has room for `len`
        // more bytes, which the copy initializes.
        unsafe {
            let from = self.pointers.unit(place.at as usize).add(HEAD_LEN as usize);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr().add(old), len);
            bytes.set_len(old + len);
        }
    }

    /// Releases the room of all frames that [`take`](Self::take) has returned. The producer can
    /// then reuse the room.
    #[inline]
    pub fn release(&mut self) {
        self.cursor.release(&self.pointers.own().consumed.word);
    }

    /// Returns true if the ring is empty, at the cost of one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.cursor.is_empty(&self.pointers.peer().produced.word)
    }

    /// Returns a view of the ring's frames, through which the caller reads them without a copy.
    ///
    /// # Safety
    ///
    /// The producer must be trusted: it does not change a frame before the consumer has released
    /// the frame. The caller must not use the bytes of a frame after its release.
    pub unsafe fn view(&self) -> PacketView {
        PacketView {
            data: self.pointers.data,
            len: self.units as usize * PACKET_UNIT as usize,
            _region: self.pointers.regions.peer.clone(),
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
        // before the consumer has released the frame.
        Some(unsafe { slice::from_raw_parts(self.data.as_ptr().add(start), place.len()) })
    }
}

#[cfg(test)]
mod tests;
