//! The memory of the frames of an AF_XDP port (the UMEM). The user of the port (the TCP/IP stack
//! that opened the port) may take the memory.

use std::{ptr::NonNull, sync::Arc};

use tidelane_packet_io::FrameMemory;

use crate::{config::UmemLayout, tx_unsafe::TX_METADATA_LEN, umem_unsafe::Umem};

/// The memory of a port's frames, until the user takes the memory.
pub(crate) struct SharedMemory {
    umem: Arc<Umem>,
    layout: UmemLayout,
}

impl SharedMemory {
    pub(crate) fn new(umem: Arc<Umem>, layout: UmemLayout) -> Self {
        Self { umem, layout }
    }

    /// Returns the memory in the form that the user takes. Returns `None` if the UMEM starts at
    /// address 0.
    pub(crate) fn into_frames(self) -> Option<FrameMemory> {
        Some(FrameMemory {
            start: NonNull::new(self.umem.start())?,
            owner: Box::new(self.umem),
            count: self.layout.frames(),
            frame_len: self.layout.frame_size,
            free: self.layout.user_frames(),
            tx_headroom: TX_METADATA_LEN,
        })
    }
}
