//! Returns pages of free receive memory to the system, while no core has to wait.
//!
//! The system call that frees pages may wait for other users of the file. The driver (the daemon)
//! therefore makes the call on another thread. Meanwhile the memory is lent to the driver, and no
//! connection gets the memory.

use std::sync::Arc;

use tidelane_packet_io::PacketIo;
use tidelane_ring::{ProgramRegion, StreamBuffer};

use crate::{Host, HostRequest, ProgramId};

/// Limit of blocks that one call of [`Host::lend_idle_pages`] lends.
const BLOCKS_MAX: usize = 64;

/// A block of a program's free receive memory, lent to the driver to free its pages.
#[derive(Debug)]
pub struct IdlePages {
    program: ProgramId,
    region: Arc<ProgramRegion>,
    block: StreamBuffer,
}

impl IdlePages {
    /// Returns the pages to the system. Pages that cannot be freed stay, and are used again later.
    pub fn give_back(&self) {
        let _ = self
            .region
            .punch_hole(self.block.offset, self.block.len().into());
    }
}

impl<P: PacketIo> Host<P> {
    /// Answers [`HostRequest::IdleMemory`]: lends blocks of free memory. The driver has to
    /// [free](IdlePages::give_back) their pages, and then to call
    /// [`restore_lent_pages`](Self::restore_lent_pages).
    pub fn lend_idle_pages(&mut self) -> Vec<IdlePages> {
        let mut lent = Vec::new();
        for (program, entry) in self.io.programs.iter_mut() {
            let region = &entry.region;
            let blocks = entry.rx.lend_idle(BLOCKS_MAX - lent.len());
            lent.extend(blocks.into_iter().map(|block| IdlePages {
                program,
                region: region.clone(),
                block,
            }));
        }
        lent
    }

    /// Makes lent memory available to connections again.
    pub fn restore_lent_pages(&mut self, pages: Vec<IdlePages>) {
        for IdlePages {
            program,
            region,
            block,
        } in pages
        {
            // The program's number may belong to another program by now.
            let entry = self.io.programs.get_mut(program);
            if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.region, &region)) {
                entry.rx.restore(block);
            }
        }
        self.note_room();
    }

    /// Requests the freeing of pages for programs that got no receive memory since the last call.
    pub(crate) fn look_for_idle_pages(&mut self) {
        let mut found = false;
        for (_, program) in self.io.programs.iter_mut() {
            found |= program.rx.look_idle();
        }
        if found {
            self.io.request(HostRequest::IdleMemory);
        }
    }
}
