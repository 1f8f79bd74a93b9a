//! Parameters of a simulated NIC, whose frames and wire are in memory. The user of the NIC is a
//! TCP/IP stack.

use std::{cell::Cell, rc::Rc};

use tidelane_time::{Duration, Instant};

/// The clock of the NIC and of its stack. The owner of the clock sets the virtual time.
pub type Clock = Rc<Cell<Instant>>;

/// Parameters of a NIC. At the start, the receive frames and the transmit frames belong to the NIC,
/// and the user frames belong to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Length of the largest Ethernet frame in bytes.
    pub frame_len_max: u32,
    /// Number of receive frames. Also the capacity of the receive queue, which holds the frames
    /// that have arrived until the stack receives them.
    pub rx_frames: u32,
    /// Number of the NIC's own transmit frames. The NIC accepts a frame that the stack lends for
    /// transmission only while fewer frames than this number wait for a flush or are in flight.
    pub tx_frames: u32,
    /// Number of frames that belong to the stack at the start. Ignored if `is_shared` is false.
    pub user_frames: u32,
    /// True if the stack may send and keep frames without a copy, because the NIC shares the memory
    /// of its frames with the stack (`tidelane_packet_io::SharedFrames`).
    pub is_shared: bool,
    /// Time from the flush of a frame to the completion of its transmission.
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

/// Headroom in bytes before the data of a received frame (Linux: `XDP_PACKET_HEADROOM`).
pub const RX_HEADROOM: u32 = 256;
/// Headroom in bytes before the data of a frame that the stack lends to the NIC for transmission.
/// The NIC overwrites this headroom, as an AF_XDP port does with its transmit metadata.
pub const TX_HEADROOM: u32 = 16;
/// Alignment of frames in bytes.
const FRAME_ALIGN: u32 = 256;

impl NicConfig {
    /// Returns the length in bytes of one frame's memory, including its headroom.
    pub const fn frame_len(&self) -> u32 {
        (RX_HEADROOM + self.frame_len_max).next_multiple_of(FRAME_ALIGN)
    }

    /// Returns the number of frames that belong to the NIC at the start: the receive frames and the
    /// transmit frames.
    pub const fn own_frames(&self) -> u32 {
        self.rx_frames + self.tx_frames
    }

    /// Returns the number of all frames: the NIC's own frames and, if `is_shared` is true, the
    /// frames of the stack.
    pub const fn frames(&self) -> u32 {
        match self.is_shared {
            true => self.own_frames() + self.user_frames,
            false => self.own_frames(),
        }
    }
}
