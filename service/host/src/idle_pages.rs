//! Pages of free receive memory go back to the system, and no core waits for that.
//!
//! To take pages away is a call that may wait for others who look at the same file, so the driver
//! makes it elsewhere. Meanwhile the memory is lent to the driver, and given to no connection.

use std::sync::Arc;

use tidelane_packet_io::PacketIo;
use tidelane_ring::{ProgramRegion, StreamBuffer};

use crate::{Host, HostRequest, ProgramId};

/// Blocks that are lent at a time.
const BLOCKS_MAX: usize = 64;

/// Receive memory of one program that no connection uses.
#[derive(Debug)]
pub struct IdlePages {
    program: ProgramId,
    region: Arc<ProgramRegion>,
    block: StreamBuffer,
}

impl IdlePages {
    /// Gives the pages back to the system. What cannot be given back is used again later.
    pub fn give_back(&self) {
        let _ = self
            .region
            .punch_hole(self.block.offset, self.block.len().into());
    }
}

impl<P: PacketIo> Host<P> {
    /// Answer to [`HostRequest::IdleMemory`]: memory to be
    /// [given back](IdlePages::give_back), and to be returned by
    /// [`take_back_pages`](Self::take_back_pages).
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

    /// The pages are gone: connections may have the memory again.
    pub fn take_back_pages(&mut self, pages: Vec<IdlePages>) {
        for IdlePages {
            program,
            region,
            block,
        } in pages
        {
            // The number may be another program's by now.
            let entry = self.io.programs.get_mut(program);
            if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.region, &region)) {
                entry.rx.take_back(block);
            }
        }
        self.note_room();
    }

    /// Asks for the pages of programs that were given no receive memory since the last time.
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
