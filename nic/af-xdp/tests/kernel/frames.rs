//! IPv4 and UDP frames for the tests of AF_XDP ports.

use tidelane_packet_io::finish_checksum;

/// Addresses of the two ends of the veth pair. The AF_XDP port is at the end `HOST`.
pub const HOST: [u8; 4] = [10, 77, 0, 1];
pub const PEER: [u8; 4] = [10, 77, 0, 2];
pub const UDP: u8 = 17;
pub const ETHERNET_LEN: usize = 14;
pub const IP_LEN: usize = 20;
pub const UDP_LEN: usize = 8;
pub const PAYLOAD_AT: usize = ETHERNET_LEN + IP_LEN + UDP_LEN;

/// Returns an IPv4 header with its checksum.
pub fn ipv4(proto: u8, source: [u8; 4], dest: [u8; 4], payload_len: usize) -> Vec<u8> {
    let len = (IP_LEN + payload_len) as u16;
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0];
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header.extend(source);
    header.extend(dest);
    assert!(finish_checksum(&mut header, 0, 10));
    header
}

/// Returns a UDP frame whose checksum field holds the pseudo-header sum. The source is first in
/// `macs`, `addrs` and `ports`.
pub fn udp(
    macs: ([u8; 6], [u8; 6]),
    addrs: ([u8; 4], [u8; 4]),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let len = (UDP_LEN + payload.len()) as u16;
    let mut frame = macs.1.to_vec();
    frame.extend(macs.0);
    frame.extend([8, 0]);
    frame.extend(ipv4(UDP, addrs.0, addrs.1, usize::from(len)));
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend(len.to_be_bytes());
    let word = |bytes: &[u8]| u32::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let words = [&addrs.0[..2], &addrs.0[2..], &addrs.1[..2], &addrs.1[2..]];
    let sum = words.iter().map(|bytes| word(bytes)).sum::<u32>() + u32::from(UDP) + u32::from(len);
    let folded = (sum & 0xffff) + (sum >> 16);
    frame.extend((folded as u16).to_be_bytes());
    frame.extend(payload);
    frame
}
