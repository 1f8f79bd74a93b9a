//! The two packet rings of a mux port, and an observer of both rings. Through a mux port, a program
//! with a TCP/IP stack of its own shares the NIC.
//!
//! The observer reads the rings with its own consumers, which free no room in the rings. The
//! observer reads after each step of the service and after each run of a program. The observer
//! therefore misses no frame of a well-behaved program. The observer may miss frames of a hostile
//! program that overwrites its own memory.

use std::sync::Arc;

use tidelane_packet_ring::ServiceEnd;
use tidelane_ring::{Corrupt, Doorbell, PacketConsumer, PortRegions, Region};

/// Offset in bytes of the index `produced` in the head of a memory of a mux port
/// (`tidelane_abi::port::PortHead`): the number of units that the memory's writer has produced.
pub const PRODUCED: u64 = 0;
/// Offset in bytes of the index `consumed` in the head. A mux port has two memories, and each end
/// writes one memory and reads the other. The writer of this memory stores here how many units it
/// has consumed from the memory that it reads.
pub const CONSUMED: u64 = 64;
/// Length of a unit of a packet ring in bytes.
const UNIT: u32 = 16;
/// Largest number of units that the mux needs for one frame: a frame of 2,048 bytes with its head,
/// after an entry that skips the end of the ring.
const NEEDED_MAX: u32 = 2 * 129;

/// The two packet rings of a mux port.
#[derive(Debug)]
pub struct Rings {
    /// The memories of both rings, as the program maps them. The program writes the memory `own`,
    /// and the mux writes the memory `peer`.
    pub program: PortRegions,
    /// The observer's consumer of the ring from the program.
    from_program: PacketConsumer,
    /// The observer's consumer of the ring to the program.
    to_program: PacketConsumer,
    /// Index in units up to which the observer has read the frames for the program.
    observed: u32,
    /// True if the program has written an invalid value. The observer then reads no more frames of
    /// the program.
    is_corrupt: bool,
    /// Buffer for the copy of one frame.
    bytes: Vec<u8>,
}

impl Rings {
    /// Creates the rings of mux port `number`. Each ring has `ring_len` bytes. Returns the rings
    /// and the mux's end of the mux port.
    pub fn new(
        number: u32,
        ring_len: u32,
        doorbell: Option<Arc<Doorbell>>,
    ) -> std::io::Result<(Self, ServiceEnd)> {
        let (service, program) = PortRegions::heap(number, ring_len)?;
        // The observer's consumers write their indices to this memory instead of the program's or
        // the mux's memory, so they free no room in the rings.
        let aside = Arc::new(Region::heap(program.own.len())?);
        let observe = |memory: &Arc<Region>| {
            PacketConsumer::new(&PortRegions {
                own: aside.clone(),
                peer: memory.clone(),
                ring_len,
                head_at: program.head_at,
            })
        };
        let rings = Self {
            from_program: observe(&program.own),
            to_program: observe(&program.peer),
            program,
            observed: 0,
            is_corrupt: false,
            bytes: Vec::new(),
        };
        Ok((rings, ServiceEnd::new(&service, doorbell)))
    }

    /// Calls `on_frame` for each frame that the program has published since the last call. The
    /// second argument is the segment size in bytes, and zero for a frame without GSO.
    pub fn published(&mut self, mut on_frame: impl FnMut(&[u8], u16)) {
        while !self.is_corrupt {
            self.from_program.release();
            match self.from_program.take() {
                Ok(Some(place)) => {
                    self.bytes.clear();
                    self.from_program.append_to(place, &mut self.bytes);
                    on_frame(&self.bytes, place.segment_size());
                }
                Ok(None) => break,
                Err(Corrupt) => self.is_corrupt = true,
            }
        }
        // The program may have skipped the end of the ring without a further frame. `take` has then
        // returned `None`, but has passed the entry that skips the end.
        self.from_program.release();
    }

    /// Calls `on_frame` for each frame that the mux has published since the last call. Returns true
    /// if there was a frame. Stops at the first error of `on_frame`, and returns this error as the
    /// inner result. Returns `Corrupt` if the mux has written an invalid value.
    pub fn delivered<E>(
        &mut self,
        mut on_frame: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<bool, E>, Corrupt> {
        let mut any = false;
        while let Some(place) = self.to_program.take()? {
            any = true;
            self.to_program.release();
            self.bytes.clear();
            self.to_program.append_to(place, &mut self.bytes);
            if let Err(error) = on_frame(&self.bytes) {
                return Ok(Err(error));
            }
        }
        self.to_program.release();
        self.observed = self.index(&self.program.peer, PRODUCED);
        Ok(Ok(any))
    }

    /// Returns true if the mux may have overwritten frames that the observer has not read.
    pub fn are_overwritten(&mut self) -> bool {
        let behind = self
            .index(&self.program.peer, PRODUCED)
            .wrapping_sub(self.observed);
        behind + NEEDED_MAX > self.program.ring_len / UNIT
    }

    /// Returns true if the mux's last step may have found no room for a frame in the ring to the
    /// program.
    pub fn may_overrun(&self) -> bool {
        let produced = self.index(&self.program.peer, PRODUCED);
        let unread = produced.wrapping_sub(self.index(&self.program.own, CONSUMED));
        unread + NEEDED_MAX > self.program.ring_len / UNIT
    }

    /// Returns true if the mux has taken all published frames of the program.
    pub fn are_drained(&self) -> bool {
        self.index(&self.program.own, PRODUCED) == self.index(&self.program.peer, CONSUMED)
    }

    /// Returns true if only this `Rings` refers to the memories.
    pub fn are_free(&self) -> bool {
        // `program` has one reference to each memory, and the observer has another reference.
        let holders = [&self.program.own, &self.program.peer].map(Arc::strong_count);
        holders == [2, 2]
    }

    /// Returns the index at offset `at` in the head of `memory`.
    fn index(&self, memory: &Region, at: u64) -> u32 {
        let mut bytes = [0; 4];
        let read = memory.copy_out(self.program.head_at + at, &mut bytes);
        assert!(read, "a memory has a head");
        u32::from_ne_bytes(bytes)
    }
}
