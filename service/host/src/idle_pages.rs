//! Returns pages of free receive memory to the system. No core (polling thread of the service)
//! waits for the return.
//!
//! The system call that frees pages (`madvise` with MADV_REMOVE) may wait for other users of the
//! memfd. The driver (the daemon) therefore makes the call on another thread. Meanwhile the memory
//! is allocated to the driver, so that no connection gets the memory.

use std::sync::Arc;

use tidelane_packet_io::PacketIo;
use tidelane_ring::{ProgramRegion, StreamBuffer};

use crate::{Host, ProgramId, program::Programs};

/// Limit of blocks that one call of [`Host::take_idle_pages`] returns.
const BLOCKS_MAX: usize = 64;

/// A block of a program's free receive memory. While the driver frees the pages of the block, the
/// block is allocated to the driver.
#[derive(Debug)]
pub struct IdlePages {
    program: ProgramId,
    region: Arc<ProgramRegion>,
    block: StreamBuffer,
}

impl IdlePages {
    /// Returns the pages to the system. If the system call fails, the pages stay in memory. The
    /// host still treats the block as a block without pages, until a connection uses the block.
    pub fn give_back(&self) {
        let _ = self
            .region
            .punch_hole(self.block.offset, self.block.len().into());
    }
}

impl Programs {
    /// Takes at most `BLOCKS_MAX` blocks of free receive memory from the programs that were idle
    /// at the last call of [`check_idle`](Self::check_idle). The blocks may have pages in memory.
    fn take_idle_pages(&mut self) -> Vec<IdlePages> {
        let mut taken = Vec::new();
        for (program, entry) in self.iter_mut() {
            let region = &entry.region;
            let blocks = entry.rx.take_dirty_if_idle(BLOCKS_MAX - taken.len());
            taken.extend(blocks.into_iter().map(|block| IdlePages {
                program,
                region: region.clone(),
                block,
            }));
        }
        taken
    }

    /// Makes a block from [`take_idle_pages`](Self::take_idle_pages) available again.
    fn return_idle_pages(&mut self, pages: IdlePages) {
        // Another program may have the program's number by now.
        let entry = self.get_mut(pages.program);
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.region, &pages.region)) {
            entry.rx.return_clean(pages.block);
        }
    }

    /// Returns true if a program is newly idle. A program is idle if it allocated no receive memory
    /// since the last call, and its free receive memory may have pages to return. A program that
    /// stays idle is newly idle again after [`take_idle_pages`](Self::take_idle_pages) has run.
    pub(crate) fn check_idle(&mut self) -> bool {
        let mut found = false;
        for (_, program) in self.iter_mut() {
            found |= program.rx.check_idle();
        }
        found
    }
}

impl<P: PacketIo> Host<P> {
    /// Answers [`crate::HostRequest::IdleMemory`]: takes blocks of free memory. The driver has to
    /// [free](IdlePages::give_back) the pages of the blocks, and then to call
    /// [`return_idle_pages`](Self::return_idle_pages).
    pub fn take_idle_pages(&mut self) -> Vec<IdlePages> {
        self.stack.io.programs.take_idle_pages()
    }

    /// Makes the blocks from [`take_idle_pages`](Self::take_idle_pages) available to connections
    /// again.
    pub fn return_idle_pages(&mut self, pages: Vec<IdlePages>) {
        for block in pages {
            self.stack.io.programs.return_idle_pages(block);
        }
        self.stack.io.listeners.note_room();
    }
}
