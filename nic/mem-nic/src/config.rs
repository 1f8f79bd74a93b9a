//! Parameters of the NIC in memory.

use std::{cell::Cell, rc::Rc};

use tidelane_time::{Duration, Instant};

/// The virtual time, which the NIC and its stack share.
pub type Clock = Rc<Cell<Instant>>;

/// Parameters of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Largest frame in bytes.
    pub frame_len_max: u32,
    /// Number of frames for receiving. The NIC also queues at most this number of frames that wait
    /// for the stack.
    pub rx_frames: u32,
    /// Number of frames for transmitting. At most this number of transmissions is in flight.
    pub tx_frames: u32,
    /// Number of frames of the stack, if the NIC shares its memory with the stack.
    pub user_frames: u32,
    /// True if the NIC shares its memory with the stack.
    pub is_shared: bool,
    /// Time from a flush to the completion of its transmissions.
    pub completion: Duration,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            frame_len_max: 1514,
            rx_frames: 256,
            tx_frames: 256,
            user_frames: 1024,
            is_shared: true,
            completion: Duration::from_micros(10),
        }
    }
}

/// Room in bytes before the data of a received frame.
pub const RX_HEADROOM: u32 = 256;
/// Room in bytes before the data of a lent frame. The NIC writes this room, as a NIC with transmit
/// metadata does.
pub const TX_HEADROOM: u32 = 16;
/// Alignment of frames in bytes.
const FRAME_ALIGN: u32 = 256;

impl NicConfig {
    /// Returns the length of a frame's memory in bytes.
    pub const fn frame_len(&self) -> u32 {
        (RX_HEADROOM + self.frame_len_max).next_multiple_of(FRAME_ALIGN)
    }

    /// Returns the number of frames of the NIC alone.
    pub const fn own_frames(&self) -> u32 {
        self.rx_frames + self.tx_frames
    }

    /// Returns the number of all frames.
    pub const fn frames(&self) -> u32 {
        match self.is_shared {
            true => self.own_frames() + self.user_frames,
            false => self.own_frames(),
        }
    }
}
