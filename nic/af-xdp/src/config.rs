//! What a port is asked to be.

use crate::XdpError;

/// Bytes that the kernel keeps free before the data of every received frame.
pub(crate) const RX_HEADROOM: u32 = 256;
/// Bytes before the data of every transmitted frame: a cache line, whose end holds the metadata.
pub(crate) const TX_HEADROOM: u32 = 64;
/// Ethernet header with one VLAN tag.
pub(crate) const LINK_HEADER_LEN_MAX: u32 = 18;
/// Largest number of frames in either half of the UMEM.
const FRAMES_MAX: u32 = 1 << 20;

/// Busy polling: the socket's own thread runs the driver's receive loop from its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long one call may spin, in microseconds (`SO_BUSY_POLL`).
    pub timeout_us: u32,
    /// Packets that one call may process (`SO_BUSY_POLL_BUDGET`).
    pub budget: u32,
}

/// The shape and the wishes of an [`XdpPort`](crate::XdpPort).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Frames for receiving, a power of two; also the length of the FILL and RX rings.
    pub rx_frames: u32,
    /// Frames for transmitting, a power of two; also the length of the TX and COMPLETION rings.
    pub tx_frames: u32,
    /// Bytes of a frame: 2048 or 4096. Received data has 256 bytes less, transmitted 64 less.
    pub frame_size: u32,
    /// Try zero-copy first; a driver that lacks it (veth does) gets copy mode.
    pub prefer_zero_copy: bool,
    /// Put the UMEM on huge pages if there are free ones.
    pub huge_pages: bool,
    /// Let the peer or the device finish transmit checksums (in copy mode, by transmit metadata).
    /// Off where the frames pass another XDP program before a kernel: it forgets that the
    /// checksum is unfinished.
    pub tx_checksum: bool,
    /// The other end is on this machine (veth): what it sends may have unfinished checksums.
    pub rx_checksum_may_be_partial: bool,
    /// Take super-frames, which the peer or the device cuts (on a veth towards a kernel nobody
    /// does). Needs CAP_NET_RAW; without it there are none.
    pub super_frames: bool,
    /// Busy polling, if wanted.
    pub busy_poll: Option<BusyPoll>,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            rx_frames: 2048,
            tx_frames: 2048,
            frame_size: 2048,
            prefer_zero_copy: true,
            huge_pages: true,
            tx_checksum: true,
            rx_checksum_may_be_partial: false,
            super_frames: true,
            busy_poll: None,
        }
    }
}

impl XdpConfig {
    /// The configuration for one end of a veth pair.
    pub fn for_veth() -> Self {
        Self {
            prefer_zero_copy: false,
            rx_checksum_may_be_partial: true,
            ..Self::default()
        }
    }

    pub(crate) fn umem_len(&self) -> usize {
        (self.rx_frames as usize + self.tx_frames as usize) * self.frame_size as usize
    }

    /// The largest MTU whose frames fit into this port's receive frames.
    pub fn mtu_max(&self) -> u32 {
        self.frame_size - RX_HEADROOM - LINK_HEADER_LEN_MAX
    }

    pub(crate) fn validate(&self) -> Result<(), XdpError> {
        let frames_fit = |frames: u32| frames.is_power_of_two() && frames <= FRAMES_MAX;
        if !frames_fit(self.rx_frames) || !frames_fit(self.tx_frames) {
            return Err(XdpError::InvalidConfig(
                "rx_frames and tx_frames: a power of two each",
            ));
        }
        if self.frame_size != 2048 && self.frame_size != 4096 {
            return Err(XdpError::InvalidConfig("frame_size: 2048 or 4096"));
        }
        Ok(())
    }
}
