//! The two memories of a port, and the rights of program and service (process `tidelaned`) to each
//! of them.
//!
//! A *port* carries the packets of a program with a TCP/IP stack of its own. To *punch* a memory is
//! to release its pages (MADV_REMOVE), which blocks page faults in the range until the punch ends.
//!
//! ```text
//!            service's memory           program's memory
//! program    reads                      writes
//! service    writes                     reads
//! punching   nobody (FUTURE_WRITE)      nobody, once the program has sealed it (FUTURE_WRITE)
//! ```
//!
//! See [`tidelane_abi::port`] for the contents.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::fs::{SealFlags, fcntl_add_seals};
use tidelane_abi::port::{PORT_DATA_OFFSET, PORT_RING_LEN_MAX, PORT_RING_LEN_MIN, head_offset};

use crate::{Region, memories};

/// Descriptors of the two memories of a port, for the program.
#[derive(Debug)]
pub struct PortMemories {
    service: OwnedFd,
    program: OwnedFd,
}

/// The mappings of the two memories of a port in one of the processes.
#[derive(Clone, Debug)]
pub struct PortRegions {
    /// The memory that this process writes.
    pub own: Arc<Region>,
    /// The memory that the peer writes.
    pub peer: Arc<Region>,
    /// Length of each packet ring in bytes.
    pub ring_len: u32,
    /// Offset in bytes of the head in each memory: see [`head_offset`].
    pub head_at: u64,
}

impl PortMemories {
    /// Creates the memories of port `number` for packet rings of `ring_len` bytes, and maps them
    /// for the service. The pages stay resident after their first use, because a polling thread of
    /// the service reads and writes them.
    pub fn create(number: u32, ring_len: u32) -> io::Result<(PortRegions, Self)> {
        let len = memory_len(ring_len)?;
        let (own, service) = Region::create_one_way("tidelane-port-rx", len)?;
        let program = memories::memory("tidelane-port-tx", len)?;
        let peer = Region::map(program.as_fd(), len, false)?;
        for region in [&own, &peer] {
            region.keep_resident(0..len);
        }
        let regions = PortRegions {
            own: Arc::new(own),
            peer: Arc::new(peer),
            ring_len,
            head_at: head_offset(number),
        };
        Ok((regions, Self { service, program }))
    }

    /// Returns the descriptors in the order in which a message carries them: the service's memory,
    /// then the program's memory.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.service.as_fd(), self.program.as_fd()]
    }

    /// Returns true if the memory that the program writes is sealed. A program maps the memory
    /// before the program seals it. The seal prevents every process from punching the memory, which
    /// would block the service. The service uses the port only if this memory is sealed.
    pub fn are_sealed(&self) -> bool {
        memories::is_write_sealed(&self.program)
    }
}

impl PortRegions {
    /// Maps the memories of port `number` for the program, and seals the memory that the program
    /// writes. `memories` has the order of [`PortMemories::descriptors`].
    pub fn map(memories: [BorrowedFd<'_>; 2], number: u32, ring_len: u32) -> io::Result<Self> {
        let [service, program] = memories;
        let len = memory_len(ring_len)?;
        let own = Region::map(program, len, true)?;
        let peer = Region::map(service, len, false)?;
        fcntl_add_seals(program, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Self {
            own: Arc::new(own),
            peer: Arc::new(peer),
            ring_len,
            head_at: head_offset(number),
        })
    }

    /// Creates the memories of port `number` within this process, for the simulator and for tests.
    /// Returns the mappings of the service and of the program.
    pub fn heap(number: u32, ring_len: u32) -> io::Result<(Self, Self)> {
        let len = memory_len(ring_len)?;
        let head_at = head_offset(number);
        let (a, b) = (Arc::new(Region::heap(len)?), Arc::new(Region::heap(len)?));
        let service = Self {
            own: a.clone(),
            peer: b.clone(),
            ring_len,
            head_at,
        };
        let program = Self {
            own: b,
            peer: a,
            ring_len,
            head_at,
        };
        Ok((service, program))
    }
}

/// Returns the length of each memory in bytes. Fails if a packet ring cannot have `ring_len` bytes.
fn memory_len(ring_len: u32) -> io::Result<u64> {
    let possible = (PORT_RING_LEN_MIN..=PORT_RING_LEN_MAX).contains(&ring_len);
    if !possible || !ring_len.is_power_of_two() {
        let why = "the length of a packet ring is a power of two from 16 KiB to 4 MiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(PORT_DATA_OFFSET + u64::from(ring_len))
}
