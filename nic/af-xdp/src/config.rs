//! Configuration of an AF_XDP port, and the layout of its UMEM (the memory of the port's frames).

use std::ops::Range;

use crate::XdpError;

/// Headroom in bytes that the kernel keeps before the data of every received frame.
pub(crate) const RX_HEADROOM: u32 = 256;
/// Headroom in bytes before the data of every packet in the port's own transmit frames. The
/// headroom is one cache line, and has the transmit metadata (`struct xsk_tx_metadata`) at the end.
pub(crate) const TX_HEADROOM: u32 = 64;
/// Length in bytes of an Ethernet header with one VLAN tag.
pub(crate) const LINK_HEADER_LEN_MAX: u32 = 18;
/// Upper limit of `rx_frames`, of `tx_packets` and of `shared_frames` in [`XdpConfig`].
const FRAMES_MAX: u32 = 1 << 20;
/// Frame sizes in bytes that every kernel accepts: powers of two, at most a page.
const FRAME_SIZES: [u32; 2] = [2048, 4096];
/// Largest MTU in bytes of an interface that a port can serve. The limit allows jumbo frames.
pub const MTU_MAX: u32 = 9216;

/// Parameters of busy polling. With busy polling, a thread that makes a system call on the socket
/// runs the driver's receive loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// Time that one call may spin, in microseconds (`SO_BUSY_POLL`).
    pub timeout_us: u32,
    /// Packets that one call may process (`SO_BUSY_POLL_BUDGET`).
    pub budget: u32,
}

/// Sizes and optional features of an [`XdpPort`](crate::XdpPort).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Number of frames for receiving, a power of two of at most 2^20. The FILL and RX rings have
    /// an entry for each of these frames.
    pub rx_frames: u32,
    /// Number of packets that may be in transmission, a power of two of at most 2^20. Each packet
    /// takes one frame, or several frames if the MTU does not fit into one frame. The TX and
    /// COMPLETION rings have an entry for each of these frames.
    pub tx_packets: u32,
    /// Size of a frame in bytes: 2048 or 4096. A port in zero-copy mode always uses 4096. The
    /// headroom takes 256 bytes of a receive frame, and 64 bytes of the first transmit frame of a
    /// packet. A packet that does not fit into one frame takes several frames (Linux 6.6).
    pub frame_size: u32,
    /// True if the port requests zero-copy first. With a driver without zero-copy (veth), the port
    /// uses copy mode.
    pub prefer_zero_copy: bool,
    /// True if the port requests huge pages for the UMEM. Without enough free huge pages, the port
    /// uses normal pages.
    pub huge_pages: bool,
    /// True if the port may send packets with a partial checksum (CHECKSUM_PARTIAL: the checksum
    /// field holds only the sum of the pseudo-header). The device or the peer's kernel completes
    /// the checksum. Only copy mode supports partial checksums. The value must be false if the
    /// packets pass another XDP program on their way to a kernel: a redirect by that program loses
    /// the state CHECKSUM_PARTIAL, and the kernel then drops the packets.
    pub tx_checksum: bool,
    /// True if the port may request the checksum offload by transmit metadata. Some kernels ignore
    /// the metadata with some drivers.
    pub tx_metadata: bool,
    /// True if received packets may have a partial checksum (CHECKSUM_PARTIAL), for example packets
    /// from a sender on this machine over a veth.
    pub rx_checksum_may_be_partial: bool,
    /// True if the port may send GSO frames. A GSO frame has the payload of many TCP segments, and
    /// the kernel or the device segments the frame. Over a veth, the kernel at the other end
    /// receives GSO frames unsegmented. The port sends GSO frames only in copy mode, only with
    /// `tx_checksum`, and only if the packet socket for GSO frames could be opened.
    pub gso: bool,
    /// True if packets above the MTU may arrive: a veth without a native XDP program passes on GSO
    /// packets that the sender at the other end has not segmented. The value true needs Linux 6.6.
    pub long_packets: bool,
    /// Number of frames, at most 2^20, that belong to the user of the port (the TCP/IP stack that
    /// opened the port) when the port is opened. The port and the user exchange frames
    /// ([`shared_frames`](tidelane_packet_io::PacketIo::shared_frames)). With zero, the port does
    /// not share its memory.
    pub shared_frames: u32,
    /// Parameters of busy polling. `None` leaves busy polling off.
    pub busy_poll: Option<BusyPoll>,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            rx_frames: 2048,
            tx_packets: 2048,
            frame_size: 2048,
            prefer_zero_copy: true,
            huge_pages: true,
            tx_checksum: true,
            tx_metadata: true,
            rx_checksum_may_be_partial: false,
            gso: true,
            long_packets: false,
            shared_frames: 0,
            busy_poll: None,
        }
    }
}

impl XdpConfig {
    /// Returns the configuration for one end of a veth pair.
    pub fn for_veth() -> Self {
        Self {
            prefer_zero_copy: false,
            rx_checksum_may_be_partial: true,
            ..Self::default()
        }
    }

    /// Returns this configuration with the smallest frame size whose receive frames hold a packet
    /// of this MTU. If no frame size holds the packet, returns the configuration with the largest
    /// frame size.
    #[must_use]
    pub fn sized_for(self, mtu: u32) -> Self {
        let holds = |size: &u32| mtu <= mtu_of(*size);
        let frame_size = FRAME_SIZES.into_iter().find(holds);
        Self {
            frame_size: frame_size.unwrap_or(FRAME_SIZES[1]),
            ..self
        }
    }

    /// Returns the largest MTU whose packets fit into one receive frame.
    pub fn single_frame_mtu(&self) -> u32 {
        mtu_of(self.frame_size)
    }

    pub(crate) fn validate(&self) -> Result<(), XdpError> {
        let frames_fit = |frames: u32| frames.is_power_of_two() && frames <= FRAMES_MAX;
        if !frames_fit(self.rx_frames) || !frames_fit(self.tx_packets) {
            return Err(XdpError::InvalidConfig(
                "rx_frames and tx_packets: a power of two of at most 2^20 each",
            ));
        }
        if self.shared_frames > FRAMES_MAX {
            return Err(XdpError::InvalidConfig("shared_frames: too many"));
        }
        if !FRAME_SIZES.contains(&self.frame_size) {
            return Err(XdpError::InvalidConfig("frame_size: 2048 or 4096"));
        }
        Ok(())
    }
}

/// Returns the largest MTU whose packets fit into one receive frame of this size.
fn mtu_of(frame_size: u32) -> u32 {
    frame_size - RX_HEADROOM - LINK_HEADER_LEN_MAX
}

/// The division of a UMEM into frames, which follows from the configuration and the interface's
/// MTU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UmemLayout {
    /// Size of a frame in bytes.
    pub(crate) frame_size: u32,
    /// Number of receive frames.
    pub(crate) rx_frames: u32,
    /// Number of packets that may be in transmission.
    pub(crate) tx_packets: u32,
    /// Number of adjacent frames that are reserved for one transmitted packet.
    pub(crate) tx_packet_frames: u32,
    /// Number of frames that belong to the user of the port at the start
    /// ([`XdpConfig::shared_frames`]).
    pub(crate) shared_frames: u32,
    /// True if a packet may take several frames (`XDP_USE_SG`).
    pub(crate) multi_buffer: bool,
}

impl UmemLayout {
    pub(crate) fn new(config: &XdpConfig, mtu: u32) -> Self {
        let multi_buffer = config.long_packets || mtu > config.single_frame_mtu();
        let tx_packet_len = mtu + LINK_HEADER_LEN_MAX + TX_HEADROOM;
        Self {
            frame_size: config.frame_size,
            rx_frames: config.rx_frames,
            tx_packets: config.tx_packets,
            tx_packet_frames: tx_packet_len.div_ceil(config.frame_size),
            shared_frames: config.shared_frames,
            multi_buffer,
        }
    }

    /// Returns the size of the UMEM in bytes.
    pub(crate) fn umem_len(&self) -> usize {
        self.frames() as usize * self.frame_size as usize
    }

    /// Returns the number of all frames.
    pub(crate) fn frames(&self) -> u32 {
        self.rx_frames + self.tx_frames() + self.shared_frames
    }

    /// Returns the numbers of the frames that belong to the user at the start.
    pub(crate) fn user_frames(&self) -> Range<u32> {
        self.frames() - self.shared_frames..self.frames()
    }

    /// Returns the length of the TX and COMPLETION rings in entries. The rings hold the frames of
    /// all packets.
    pub(crate) fn tx_ring_len(&self) -> u32 {
        self.tx_frames().next_power_of_two()
    }

    /// Returns the length in bytes of the longest packet that can be transmitted. Without
    /// multi-buffer (packets of several frames), the result is at most the length of the longest
    /// packet that can be received, because a peer may answer with packets that are as long as the
    /// packets of this port.
    pub(crate) fn tx_packet_len_max(&self) -> u32 {
        let room = self.tx_packet_frames * self.frame_size - TX_HEADROOM;
        if self.multi_buffer {
            room
        } else {
            room.min(mtu_of(self.frame_size) + LINK_HEADER_LEN_MAX)
        }
    }

    fn tx_frames(&self) -> u32 {
        self.tx_packets * self.tx_packet_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_take_one_frame_each_where_they_fit() {
        let layout = |mtu| UmemLayout::new(&XdpConfig::default().sized_for(mtu), mtu);
        for (mtu, frame_size, frames) in [
            (1500, 2048, 1),
            (1774, 2048, 1),
            (1775, 4096, 1),
            (3822, 4096, 1),
            (3823, 4096, 1),
            (4014, 4096, 1),
            (4015, 4096, 2),
            (MTU_MAX, 4096, 3),
        ] {
            let layout = layout(mtu);
            assert_eq!(layout.frame_size, frame_size, "{mtu}");
            assert_eq!(layout.tx_packet_frames, frames, "{mtu}");
            assert_eq!(layout.multi_buffer, mtu > 3822, "{mtu}");
            assert!(layout.tx_packet_len_max() >= mtu + LINK_HEADER_LEN_MAX);
        }
        assert_eq!(layout(9000).tx_ring_len(), 8192);
    }
}
