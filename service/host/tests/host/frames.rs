//! Frames that the tests send to a host, the stack of one core of the service.

use tidelane_wire::{
    ETHERNET_HEADER_LEN, IpAddress, SegmentHeader, SeqNumber, TcpFlags, TcpOptions, checksum,
    emit_tcp, protocol,
};

/// Address of the host.
pub const OURS: [u8; 4] = [10, 0, 0, 1];
/// Address of a peer.
pub const PEER: [u8; 4] = [10, 0, 0, 2];
/// TTL of an ordinary packet.
pub const TTL: u8 = 64;

/// Returns a frame with a SYN from `src_port` to port 80.
pub fn syn(from: [u8; 4], to: [u8; 4], ttl: u8, src_port: u16) -> Vec<u8> {
    let header = SegmentHeader {
        src_port,
        dst_port: 80,
        seq: SeqNumber(7),
        ack: SeqNumber(0),
        flags: TcpFlags::SYN,
        wnd: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
    };
    let mut tcp = vec![0; 60];
    let len = emit_tcp(&mut tcp, &header);
    tcp.truncate(len);
    let [src, dst] = [from, to].map(IpAddress::from_v4);
    let pseudo = checksum::pseudo_header(src, dst, protocol::TCP, len as u32);
    let sum = pseudo.plus(checksum::sum(&tcp)).checksum();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![
        0x45,
        0,
        0,
        20 + len as u8,
        0,
        0,
        0x40,
        0,
        ttl,
        protocol::TCP,
        0,
        0,
    ];
    ip.extend(from);
    ip.extend(to);
    let sum = checksum::sum(&ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0; ETHERNET_HEADER_LEN];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12] = 8;
    frame.extend(ip);
    frame.extend(tcp);
    frame
}
