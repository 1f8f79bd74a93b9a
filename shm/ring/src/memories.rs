//! The memories of a program region, and the rights of program and service to each memory.
//!
//! A region is the memory that one program shares with the service (process `tidelaned`). A region
//! consists of three memfds: `control` (rings, and slots with the states of connections),
//! `received` (receive buffers) and `sent` (send buffers).
//!
//! A hole punch (`MADV_REMOVE`) releases pages, and blocks page faults in the whole range until the
//! punch ends. A process that can punch a memory can therefore delay every process that uses the
//! memory. `docs/design/memory.md` explains the resulting rules.
//!
//! ```text
//!            control                  received                 sent
//! program    writes                   reads                    writes
//! service    writes                   writes, punches          reads; writes to move a connection
//! punching   nobody (FUTURE_WRITE)    the service              nobody (FUTURE_WRITE)
//! ```
//!
//! The service writes `sent` only to move a connection, after another process has taken the
//! connection over.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create, openat,
};

use crate::{Part, Region};

/// Number of memories of a region.
pub const MEMORIES: usize = 3;
/// Index of the memory for receive buffers. Memory 0 is the control memory, and memory 2 holds the
/// send buffers.
const RECEIVED: usize = 1;
/// Seals that fix the length of a memory.
const FIXED_LENGTH_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Descriptors of a program's memories, with the rights that the program gets.
#[derive(Debug)]
pub struct Memories([OwnedFd; MEMORIES]);

impl Memories {
    /// Creates memories of these lengths in bytes, and maps them next to each other in the service.
    pub(crate) fn create(name: &str, lens: [u64; MEMORIES]) -> io::Result<(Region, Memories)> {
        let control = memory(name, lens[0])?;
        let received = memory(&format!("{name}-rx"), lens[RECEIVED])?;
        let sent = memory(&format!("{name}-tx"), lens[2])?;
        let all = [&control, &received, &sent];
        let parts: [Part<'_>; MEMORIES] = std::array::from_fn(|n| Part {
            memory: all[n].as_fd(),
            len: lens[n],
            writable: true,
        });
        let region = Region::join(&parts)?;
        let received = read_only(received)?;
        Ok((region, Memories([control, received, sent])))
    }

    /// Returns the descriptors in the order in which a message carries them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; MEMORIES] {
        self.0.each_ref().map(AsFd::as_fd)
    }

    /// Returns true if the memories that the program writes have the seal FUTURE_WRITE, so that no
    /// process can punch them. The program maps all memories before it adds the seal.
    ///
    /// The check does not block. Only the program's call that adds the seal can be delayed by a
    /// hole punch in progress.
    pub fn are_sealed(&self) -> bool {
        let mut written = self.0.iter().enumerate().filter(|(n, _)| *n != RECEIVED);
        written.all(|(_, memory)| is_write_sealed(memory))
    }
}

/// Maps the memories that a service sent, next to each other. Refuses a memory without the seals
/// SHRINK and GROW: after a shrink by the creator, an access would raise SIGBUS.
pub(crate) fn map(memories: [BorrowedFd<'_>; MEMORIES]) -> io::Result<(Region, [u64; MEMORIES])> {
    let mut lens = [0; MEMORIES];
    for (len, memory) in lens.iter_mut().zip(memories) {
        *len = u64::try_from(fstat(memory)?.st_size).unwrap_or(0);
        if !fcntl_get_seals(memory)?.contains(FIXED_LENGTH_SEALS) {
            let why = "the shared memory is not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    let parts: [Part<'_>; MEMORIES] = std::array::from_fn(|n| Part {
        memory: memories[n],
        len: lens[n],
        writable: n != RECEIVED,
    });
    Ok((Region::join(&parts)?, lens))
}

/// Seals the memories that the program writes, after the program has mapped them. From then on, no
/// process can punch these memories. The service uses these memories only after they are sealed.
pub(crate) fn seal(memories: [BorrowedFd<'_>; MEMORIES]) -> io::Result<()> {
    for (n, memory) in memories.into_iter().enumerate() {
        if n != RECEIVED {
            fcntl_add_seals(memory, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        }
    }
    Ok(())
}

/// Returns true if a memory has the seal that prevents later writable mappings and hole punches.
pub(crate) fn is_write_sealed(memory: impl AsFd) -> bool {
    fcntl_get_seals(memory).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE))
}

/// Creates a sparse memfd of fixed length. Its pages are allocated on first use.
pub(crate) fn memory(name: &str, len: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len)?;
    fcntl_add_seals(&fd, FIXED_LENGTH_SEALS)?;
    Ok(fd)
}

/// Returns a read-only descriptor of `memory`, through which a program can neither write nor punch.
/// Only root can reopen the memfd for writing. Existing mappings keep their rights.
///
/// Without `/proc`, the function returns `memory` itself and adds the seal FUTURE_WRITE, which
/// forbids later writable mappings. The seal also forbids hole punches, so the pages of the memfd
/// stay until the memfd is freed.
fn read_only(memory: OwnedFd) -> io::Result<OwnedFd> {
    fchmod(&memory, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let read_only = openat(CWD, path, flags, Mode::empty());
    let more = match &read_only {
        Ok(_) => SealFlags::SEAL,
        Err(_) => SealFlags::SEAL | SealFlags::FUTURE_WRITE,
    };
    fcntl_add_seals(&memory, more)?;
    Ok(read_only.unwrap_or(memory))
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::Errno,
    };

    use super::*;
    use crate::{Layout, ProgramRegion};

    const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

    /// Returns the service's mapping of a region, the program's mapping, the memories and the
    /// layout.
    fn both() -> (ProgramRegion, ProgramRegion, Memories, Layout) {
        let layout = Layout::new(16, 1 << 20, 1 << 20).expect("a possible layout");
        let (ours, memories) = ProgramRegion::create("test", &layout).expect("there is memory");
        assert!(!memories.are_sealed(), "sealed before the program mapped");
        let theirs = ProgramRegion::map(memories.descriptors(), layout.region_len());
        (
            ours,
            theirs.expect("the process can map its memories"),
            memories,
            layout,
        )
    }

    #[test]
    fn offsets_run_through_all_memories() {
        let (ours, theirs, memories, layout) = both();
        assert!(memories.are_sealed());
        let mut got = [0; 5];
        for place in [4090, layout.rx_area().start, layout.tx_area().end - 5] {
            assert!(ours.copy_in(place, b"hello"));
            assert!(theirs.copy_out(place, &mut got));
            assert_eq!(&got, b"hello", "at {place}");
        }
    }

    #[test]
    fn a_program_cannot_write_its_receive_memory() {
        let (_ours, theirs, memories, layout) = both();
        let (rx, tx) = (layout.rx_area(), layout.tx_area());
        assert!(theirs.copy_in(rx.start - 4, &[1; 4]) && theirs.copy_in(tx.start, &[1; 4]));
        assert!(!theirs.copy_in(rx.start, &[1; 4]));
        assert!(!theirs.copy_in(rx.start - 1, &[1; 4]));
        assert!(!theirs.copy_in(tx.start - 1, &[1; 4]));
        let [_, received, _] = memories.descriptors();
        let part = Part {
            memory: received,
            len: layout.parts()[RECEIVED],
            writable: true,
        };
        assert!(Region::join(&[part]).is_err());
    }

    /// A program can punch a memory neither through its descriptor nor through its mapping.
    #[test]
    fn a_program_cannot_punch_holes() {
        let (_ours, theirs, memories, layout) = both();
        for memory in memories.descriptors() {
            let punched = fallocate(memory, HOLE, 0, 1 << 20);
            assert!(
                matches!(punched, Err(Errno::PERM | Errno::BADF)),
                "{punched:?}"
            );
            assert!(ftruncate(memory, 4096).is_err());
        }
        for area in [0..1 << 20, layout.rx_area(), layout.tx_area()] {
            assert!(
                theirs
                    .punch_hole(area.start, area.end - area.start)
                    .is_err()
            );
        }
    }

    #[test]
    fn the_service_gives_receive_pages_back() {
        let (ours, theirs, memories, layout) = both();
        let rx = layout.rx_area();
        assert!(ours.copy_in(rx.start, &[7; 1 << 14]));
        let [_, received, _] = memories.descriptors();
        let blocks = || fstat(received).expect("it is open").st_blocks;
        assert_eq!(blocks(), 32);
        ours.punch_hole(rx.start, 1 << 14).expect("it may");
        assert_eq!(blocks(), 0);
        let mut got = [1];
        assert!(theirs.copy_out(rx.start, &mut got) && got == [0]);
    }

    #[test]
    fn memories_that_could_shrink_are_not_mapped() {
        let (_ours, _theirs, memories, layout) = both();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let unsealed = memfd_create("test", flags).expect("a memfd");
        ftruncate(&unsealed, layout.parts()[2]).expect("it can grow");
        let [control, received, sent] = memories.descriptors();
        assert!(map([control, received, unsealed.as_fd()]).is_err());
        // Memories in another order do not fit the layout.
        let swapped = ProgramRegion::map([sent, received, control], layout.region_len());
        assert!(swapped.is_err());
        let shorter = ProgramRegion::map(memories.descriptors(), layout.region_len() - 4096);
        assert!(shorter.is_err());
    }
}
