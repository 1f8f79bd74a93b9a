//! The frames that a port shares with its user, the TCP/IP stack that opened the port.

use tidelane_packet_io::{FrameData, FrameMemory, LinkFull, SharedFrames, TxChecksum};

use crate::{XdpBurst, XdpPort};

// SAFETY: the owner of the memory keeps the UMEM, which is mapped as zeros. The port gives the
// kernel only frames of the receive half, frames of the transmit half, and lent frames. The kernel
// reads a lent frame until its completion. `request_checksum` writes to a lent frame only before
// the frame is queued.
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
        // SAFETY: the caller keeps the same contract.
        unsafe { self.tx.lend(data, checksum) }
    }

    fn tx_returned(&mut self) -> Option<u32> {
        self.tx.returned()
    }
}

#[cfg(test)]
mod tests;
