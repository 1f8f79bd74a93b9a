//! A simulated NIC in memory, with which `tidelane-load mux` measures the mux (`service/mux`)
//! alone. The mux shares one NIC between the network stacks of several programs. The simulated NIC
//! accepts every packet, and delivers the same packets again and again.

use std::sync::Arc;

use tidelane_packet_io::{Burst, Capabilities, PacketIo, TxChecksum};

/// Number of transmit frames.
const TX_FRAMES: usize = 2048;
/// Length of a frame's memory in bytes.
const FRAME_LEN: usize = 2048;
/// Least number of trains in memory that the NIC delivers in turn. A train is a number of
/// successive frames for the same mux port. A few frames would stay in the first-level cache,
/// unlike the frames of a real NIC.
const RX_TRAINS_MIN: usize = 1024;

/// A NIC without an interface. Sent frames are overwritten, and received frames repeat.
pub struct MemoryNic {
    /// Memory of the transmit frames.
    tx: Box<[u8]>,
    /// Index of the next transmit frame.
    next_tx: usize,
    /// The frames that the NIC delivers in turn.
    rx: Arc<[Vec<u8>]>,
    /// Index in `rx` of the next frame to deliver.
    next_rx: usize,
}

/// A burst of received frames: `count` of the repeated frames, from index `start` on. After the
/// last frame, the burst continues with the first.
pub struct MemoryBurst {
    rx: Arc<[Vec<u8>]>,
    start: usize,
    count: usize,
}

impl MemoryNic {
    /// Makes a NIC that delivers the frames `arriving` in turn. `arriving` consists of trains of
    /// `train` frames each. If `arriving` is empty, the NIC delivers no frame.
    pub fn new(arriving: Vec<Vec<u8>>, train: usize) -> Self {
        let times = match arriving.len() {
            0 => 0,
            len => (RX_TRAINS_MIN * train).div_ceil(len),
        };
        let rx: Vec<Vec<u8>> = (0..times).flat_map(|_| arriving.clone()).collect();
        Self {
            tx: vec![0; TX_FRAMES * FRAME_LEN].into_boxed_slice(),
            next_tx: 0,
            rx: rx.into(),
            next_rx: 0,
        }
    }
}

impl Burst for MemoryBurst {
    #[inline]
    fn len(&self) -> usize {
        self.count
    }

    #[inline]
    fn frame(&self, at: usize) -> Option<&[u8]> {
        if at >= self.count {
            return None;
        }
        let at = (self.start + at) % self.rx.len();
        Some(&self.rx[at])
    }
}

impl PacketIo for MemoryNic {
    type Burst = MemoryBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: FRAME_LEN as u32,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> MemoryBurst {
        MemoryBurst {
            rx: self.rx.clone(),
            start: 0,
            count: 0,
        }
    }

    #[inline]
    fn rx_burst(&mut self, burst: &mut MemoryBurst, max: usize) -> usize {
        if self.rx.is_empty() {
            return 0;
        }
        burst.start = self.next_rx;
        burst.count = max;
        self.next_rx = (self.next_rx + max) % self.rx.len();
        max
    }

    fn rx_release(&mut self, burst: &mut MemoryBurst) {
        burst.count = 0;
    }

    #[inline]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        let start = self.next_tx * FRAME_LEN;
        self.tx.get_mut(start..start + FRAME_LEN)
    }

    #[inline]
    fn tx_commit(&mut self, _len: usize, _checksum: TxChecksum) {
        self.next_tx = (self.next_tx + 1) % TX_FRAMES;
    }

    fn tx_flush(&mut self) {}
}
