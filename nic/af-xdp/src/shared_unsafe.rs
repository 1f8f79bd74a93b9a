//! The frames that a port shares with its user (the TCP/IP stack that opened the port).

use tidelane_packet_io::{FrameData, FrameMemory, LinkFull, SharedFrames, TxChecksum};

use crate::{XdpBurst, XdpPort};

// SAFETY: `FrameMemory::owner` keeps the UMEM (the memory of all frames), which is mapped as zeros.
// The port gives the kernel only frames that belong to the port, and lent frames. The kernel reads
// a lent frame until its completion. `request_checksum` writes to a lent frame only before the
// frame is queued.
unsafe impl SharedFrames<XdpBurst> for XdpPort {
    fn take_memory(&mut self) -> Option<FrameMemory> {
        self.shared_memory.take()?.into_frames()
    }

    unsafe fn rx_exchange(
        &mut self,
        burst: &mut XdpBurst,
        at: usize,
        free: u32,
    ) -> Option<FrameData> {
        self.rx.exchange(burst, at, free)
    }

    unsafe fn tx_lend(&mut self, data: FrameData, checksum: TxChecksum) -> Result<(), LinkFull> {
        // SAFETY: `TxQueue::lend` has the contract of this method, which the caller keeps.
        unsafe { self.tx.lend(data, checksum) }
    }

    fn tx_returned(&mut self) -> Option<u32> {
        self.tx.returned()
    }
}

#[cfg(test)]
mod tests;
