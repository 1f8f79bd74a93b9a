//! Super-frames out: a raw packet socket that takes a segmentation header.
//!
//! AF_XDP carries frames of the link's MTU and, in copy mode, pays for each as a packet socket pays
//! for one that is cut into 40 (or, on a veth, never cut). So bulk data takes this way out. It
//! passes the queueing discipline, which AF_XDP does not: what bypasses it is dropped where
//! software must cut (Linux, `__dev_direct_xmit`). Receiving is not affected: the socket
//! is bound to no protocol. The payload goes from the stream buffer to the kernel in one copy.

use std::io;

use tidelane_packet_io::{LinkFull, SharedPayload, SuperFrame};

use crate::sys::PacketSocket;

/// Bytes of `struct virtio_net_hdr`.
const SEGMENTATION_HEADER_LEN: usize = 10;
/// An Ethernet header and the longest IPv4 packet.
const FRAME_LEN_MAX: usize = 14 + 65_535;
/// Room for an Ethernet header, an IPv6 header and a TCP header with all options.
const HEADERS_LEN_MAX: usize = 14 + 40 + 60;
/// Room for some super-frames under way, as the kernel charges them.
const SEND_BUFFER: usize = 4 << 20;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Offset of the checksum field in a TCP header.
const TCP_CHECKSUM_AT: u16 = 16;

pub(crate) struct SuperFrames {
    socket: PacketSocket,
    /// The segmentation header, then the frame's own.
    headers: [u8; SEGMENTATION_HEADER_LEN + HEADERS_LEN_MAX],
}

impl SuperFrames {
    pub(crate) fn open(ifindex: u32) -> io::Result<Self> {
        Ok(Self {
            socket: PacketSocket::open(ifindex, SEND_BUFFER)?,
            headers: [0; SEGMENTATION_HEADER_LEN + HEADERS_LEN_MAX],
        })
    }

    pub(crate) fn len_max(&self) -> u32 {
        FRAME_LEN_MAX as u32
    }

    pub(crate) fn headers(&mut self) -> &mut [u8] {
        &mut self.headers[SEGMENTATION_HEADER_LEN..]
    }

    /// Sends the headers, and `payload` behind them.
    pub(crate) fn send(
        &mut self,
        payload: SharedPayload<'_>,
        cut: SuperFrame,
    ) -> Result<(), LinkFull> {
        let header = &mut self.headers[..SEGMENTATION_HEADER_LEN];
        header[0] = NEEDS_CHECKSUM;
        header[1] = if cut.is_v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        header[2..4].copy_from_slice(&cut.headers_len.to_ne_bytes());
        header[4..6].copy_from_slice(&cut.segment_size.to_ne_bytes());
        header[6..8].copy_from_slice(&cut.tcp_start.to_ne_bytes());
        header[8..10].copy_from_slice(&TCP_CHECKSUM_AT.to_ne_bytes());
        let headers = &self.headers[..SEGMENTATION_HEADER_LEN + usize::from(cut.headers_len)];
        match self.socket.send(headers, payload) {
            // A frame that the device drops is lost on the wire, as any may be.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(LinkFull),
            _ => Ok(()),
        }
    }
}
