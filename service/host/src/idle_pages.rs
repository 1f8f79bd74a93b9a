//! Returns pages of free receive memory to the system, without making a core wait.
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

/// A block of a program's free receive memory. The block is allocated to the driver while the
/// driver frees its pages.
#[derive(Debug)]
pub struct IdlePages {
    program: ProgramId,
    region: Arc<ProgramRegion>,
    block: StreamBuffer,
}

impl IdlePages {
    /// Returns the pages to the system. If the system call fails, the pages stay in memory. The
    /// host then counts the block as free of pages until a connection uses the block.
    pub fn give_back(&self) {
        let _ = self
            .region
            .punch_hole(self.block.offset, self.block.len().into());
    }
}

impl Programs {
    /// Takes blocks of free memory of idle programs.
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

    /// Returns true if a program allocated no receive memory since the last call and may have pages
    /// to free. While a program stays idle, only the first call returns true for the program.
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
