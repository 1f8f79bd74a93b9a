//! Frames of TCP segments for tests of the mux, and functions that send and receive frames through
//! a [`PacketIo`]. A mux port is a pair of packet rings through which a program with a TCP/IP stack
//! of its own shares the NIC.

use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TCP_HEADER_LEN,
    TcpFlags, TcpOptions, checksum, emit_tcp, write_tcp_checksum,
};

/// MAC address of the NIC and of all mux ports.
pub const LOCAL_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// MAC address of the peer, the remote host on the link.
pub const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// IP address of the NIC and of all mux ports.
pub const LOCAL: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
/// IP address of the peer.
pub const PEER: IpAddress = IpAddress::from_v4([10, 0, 0, 2]);

/// The fields of a frame that carries one TCP segment with one payload byte. The destination MAC
/// address is always [`PEER_MAC`].
#[derive(Clone, Copy)]
pub struct TestFrame {
    /// Source MAC address.
    pub mac: MacAddress,
    /// Source address and TCP port.
    pub src: Endpoint,
    /// Destination address and TCP port.
    pub dst: Endpoint,
    /// The payload byte.
    pub payload: u8,
}

impl TestFrame {
    /// Returns the fields of a frame from TCP port `port` of the local address to the peer.
    pub fn outgoing(port: u16) -> Self {
        Self {
            mac: LOCAL_MAC,
            src: Endpoint::new(LOCAL, port),
            dst: Endpoint::new(PEER, 9),
            payload: 1,
        }
    }

    /// Returns the fields of a frame from the peer to TCP port `port` of the local address.
    pub fn incoming(port: u16) -> Self {
        Self {
            mac: PEER_MAC,
            src: Endpoint::new(PEER, 9),
            dst: Endpoint::new(LOCAL, port),
            payload: 2,
        }
    }

    /// Returns the bytes of the frame, with a complete TCP checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let (src, dst) = (self.src, self.dst);
        let template = HeaderTemplate::new(self.mac, PEER_MAC, src.addr, dst.addr).unwrap();
        let mut frame = vec![0; template.headers_len() + TCP_HEADER_LEN + 1];
        let tcp_len = TCP_HEADER_LEN as u16 + 1;
        let start = template.write(&mut frame, tcp_len, Ecn::NotEct, 7);
        let (header, payload) = frame[start..].split_at_mut(TCP_HEADER_LEN);
        payload[0] = self.payload;
        let fields = SegmentHeader {
            src_port: src.port,
            dst_port: dst.port,
            seq: SeqNumber(1),
            ack: SeqNumber(2),
            flags: TcpFlags::ACK,
            wnd: 100,
            urgent: 0,
            options: TcpOptions::NONE,
        };
        emit_tcp(header, &fields);
        write_tcp_checksum(
            header,
            template.pseudo_header(tcp_len),
            checksum::sum(payload),
        );
        frame
    }
}

/// Sends `frame` if `port` has a free transmit frame. Returns true if `frame` was sent.
pub fn send(port: &mut impl PacketIo, frame: &[u8]) -> bool {
    let Some(room) = port.tx_frame() else {
        return false;
    };
    room[..frame.len()].copy_from_slice(frame);
    port.tx_commit(frame.len(), TxChecksum::Done);
    port.tx_flush();
    true
}

/// Returns all frames that `port` has received, oldest first.
pub fn receive(port: &mut impl PacketIo) -> Vec<Vec<u8>> {
    let mut burst = port.new_burst();
    let mut frames = Vec::new();
    while port.rx_burst(&mut burst, BURST_MAX) > 0 {
        frames.extend(burst.iter().map(<[u8]>::to_vec));
        port.rx_release(&mut burst);
    }
    frames
}
