//! Transmission of GSO frames through a raw packet socket with `PACKET_VNET_HDR`. A GSO frame has
//! the payload of many TCP segments, and the kernel or the device segments the frame.
//!
//! AF_XDP carries frames up to the link's MTU. In copy mode, the kernel spends about as much time
//! on one AF_XDP frame as on one GSO frame of 40 segments from a packet socket. Over a veth, the
//! GSO frame is not even segmented. The AF_XDP port ([`XdpPort`](crate::XdpPort)) therefore
//! sends bulk data through the packet socket.
//!
//! The packets of the packet socket pass the queueing discipline (qdisc), unlike the frames of
//! AF_XDP. The port does not set PACKET_QDISC_BYPASS, because the kernel would drop packets that
//! software has to segment (Linux, `__dev_direct_xmit`). The socket receives nothing, because
//! it is bound to no protocol. The kernel copies the payload once, from the connection's send
//! buffer.

use std::io;

use tidelane_packet_io::{GsoParameters, GsoPayload, LinkFull, TCP_CHECKSUM_AT};

use crate::sys::PacketSocket;

/// Length of `struct virtio_net_hdr` in bytes. This header tells the kernel how to segment the
/// frame.
const SEGMENTATION_HEADER_LEN: usize = 10;
/// Length in bytes of an Ethernet header and the longest IPv4 packet.
const FRAME_LEN_MAX: usize = 14 + 65_535;
/// Length in bytes of an Ethernet header, an IPv6 header and a TCP header with all options.
const HEADERS_LEN_MAX: usize = 14 + 40 + 60;
/// Size in bytes of the packet socket's send buffer, which suffices for several GSO frames in
/// flight.
const SEND_BUFFER: usize = 4 << 20;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds only the sum of the pseudo-header, and
/// the kernel or the device completes the checksum.
const NEEDS_CHECKSUM: u8 = 1;
/// Values of the field `gso_type` (`VIRTIO_NET_HDR_GSO_*`).
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// The packet socket that sends GSO frames, with the buffer for their headers.
pub(crate) struct GsoSocket {
    socket: PacketSocket,
    /// The virtio header, followed by the headers of the frame.
    headers: [u8; SEGMENTATION_HEADER_LEN + HEADERS_LEN_MAX],
}

impl GsoSocket {
    pub(crate) fn open(ifindex: u32) -> io::Result<Self> {
        Ok(Self {
            socket: PacketSocket::open(ifindex, SEND_BUFFER)?,
            headers: [0; SEGMENTATION_HEADER_LEN + HEADERS_LEN_MAX],
        })
    }

    /// Returns the length of the longest GSO frame in bytes, with its headers.
    pub(crate) fn len_max(&self) -> u32 {
        FRAME_LEN_MAX as u32
    }

    /// Returns the space for the headers of the next frame. The caller writes the headers before
    /// `send`.
    pub(crate) fn headers(&mut self) -> &mut [u8] {
        &mut self.headers[SEGMENTATION_HEADER_LEN..]
    }

    /// Sends the headers, followed by `payload`. Returns [`LinkFull`] if the socket's send buffer
    /// is full.
    pub(crate) fn send(
        &mut self,
        payload: GsoPayload<'_>,
        gso: GsoParameters,
    ) -> Result<(), LinkFull> {
        let header = &mut self.headers[..SEGMENTATION_HEADER_LEN];
        header[0] = NEEDS_CHECKSUM;
        header[1] = if gso.is_v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        header[2..4].copy_from_slice(&gso.headers_len.to_ne_bytes());
        header[4..6].copy_from_slice(&gso.segment_size.to_ne_bytes());
        header[6..8].copy_from_slice(&gso.tcp_start.to_ne_bytes());
        header[8..10].copy_from_slice(&TCP_CHECKSUM_AT.to_ne_bytes());
        let headers = &self.headers[..SEGMENTATION_HEADER_LEN + usize::from(gso.headers_len)];
        match self.socket.send(headers, payload) {
            // Any other error means that the kernel drops the frame. TCP then retransmits the
            // payload.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(LinkFull),
            _ => Ok(()),
        }
    }
}
