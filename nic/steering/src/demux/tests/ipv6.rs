//! Tests of the demux with IPv6 frames. The demux is the XDP program that redirects the packets of
//! claimed 3-tuples (local address, protocol, local port) to the service (the process `tidelaned`).

use super::*;

pub const HOST: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const PEER: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
pub const ICMPV6: u8 = 58;
pub const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATION: u8 = 60;

/// Counters of a packet with a claimed 3-tuple. No queue has an AF_XDP socket in these tests, so
/// the demux does not redirect the packet, and counts `no_socket`.
const CLAIMED: DemuxCounters = DemuxCounters {
    no_socket: 1,
    ..NOTHING
};
const UNCLAIMED: DemuxCounters = DemuxCounters {
    unclaimed: 1,
    ..NOTHING
};
const KERNELS_ICMP: DemuxCounters = DemuxCounters { icmp: 1, ..NOTHING };
const OTHER: DemuxCounters = DemuxCounters {
    other_ip: 1,
    ..NOTHING
};
pub const NOTHING: DemuxCounters = DemuxCounters {
    redirected: 0,
    redirected_icmp: 0,
    no_socket: 0,
    unclaimed: 0,
    fragments: 0,
    icmp: 0,
    other_ip: 0,
    not_ip: 0,
    other_host: 0,
    returned: 0,
    redirected_fragments: 0,
    kernel_socket: 0,
    no_heartbeat: 0,
};

/// Returns an IPv6 header with extension headers. Each pair of `extensions` has the protocol number
/// of an extension header and its length field (in units of 8 bytes, without the first 8 bytes).
pub fn ipv6(proto: u8, source: [u8; 16], dest: [u8; 16], extensions: &[(u8, u8)]) -> Vec<u8> {
    let numbers = extensions.iter().map(|(number, _)| *number);
    let mut next = numbers.chain([proto]);
    let mut packet = vec![0x60, 0, 0, 0, 0, 60, next.next().unwrap(), 64];
    packet.extend(source);
    packet.extend(dest);
    for ((_, units), next) in extensions.iter().zip(next) {
        let from = packet.len();
        packet.extend([next, *units]);
        packet.resize(from + 8 + 8 * usize::from(*units), 0);
    }
    packet
}

pub fn transport(proto: u8, dest: [u8; 16], dest_port: u16, extensions: &[(u8, u8)]) -> Vec<u8> {
    let mut packet = ipv6(proto, PEER, dest, extensions);
    packet.extend(4000u16.to_be_bytes());
    packet.extend(dest_port.to_be_bytes());
    packet.resize(packet.len() + 16, 0);
    packet
}

/// Returns an ICMPv6 message that quotes a packet from `port` of `HOST`.
fn icmp_error(kind: u8, port: u8, extensions: &[(u8, u8)]) -> Vec<u8> {
    let mut packet = ipv6(ICMPV6, PEER, HOST, &[]);
    packet.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend(ipv6(TCP, HOST, PEER, extensions));
    packet.extend([0, port, 0x9c, 0x40, 1, 2, 3, 4]);
    packet
}

#[test]
fn only_claimed_tuples_are_the_services() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let mut seen = |packet: &[u8]| testbed.seen(&ethernet(packet));
    assert_eq!(seen(&transport(TCP, HOST, 80, &[])), CLAIMED);
    assert_eq!(seen(&transport(UDP, HOST, 53, &[])), CLAIMED);
    assert_eq!(seen(&transport(UDP, HOST, 80, &[])), UNCLAIMED);
    assert_eq!(seen(&transport(TCP, HOST, 81, &[])), UNCLAIMED);
    assert_eq!(seen(&transport(TCP, PEER, 80, &[])), UNCLAIMED);
    assert_eq!(seen(&ipv6(132, PEER, HOST, &[])), OTHER);
    // A frame with the EtherType of IPv6 and version 5 in the IP header.
    let mut version = transport(TCP, HOST, 80, &[]);
    version[0] = 0x60;
    let mut frame = ethernet(&version);
    frame[14] = 0x50;
    assert_eq!(testbed.seen(&frame), OTHER);
}

#[test]
fn extension_headers_are_followed() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let mut seen = |packet: &[u8]| testbed.seen(&ethernet(packet));
    let chain = [(HOP_BY_HOP, 0), (DESTINATION, 5), (ROUTING, 2)];
    assert_eq!(seen(&transport(TCP, HOST, 80, &chain)), CLAIMED);
    // The demux skips at most three extension headers.
    let long = [(DESTINATION, 0); 5];
    assert_eq!(seen(&transport(TCP, HOST, 80, &long)), OTHER);
}

#[test]
fn icmp_errors_follow_the_packet_they_quote() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let mut seen = |packet: &[u8]| testbed.seen(&ethernet(packet));
    for kind in 1..=4 {
        assert_eq!(seen(&icmp_error(kind, 80, &[])), CLAIMED);
        assert_eq!(seen(&icmp_error(kind, 80, &[(DESTINATION, 1)])), CLAIMED);
        assert_eq!(seen(&icmp_error(kind, 81, &[])), KERNELS_ICMP);
    }
    // Type 0 is reserved, and type 5 is unassigned. Echo (128, 129) and neighbour discovery (135,
    // 136) are not errors.
    for kind in [0, 5, 128, 129, 135, 136] {
        assert_eq!(seen(&icmp_error(kind, 80, &[])), KERNELS_ICMP);
    }
}

#[test]
fn no_truncated_frame_is_misread() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let chain = [(HOP_BY_HOP, 0), (DESTINATION, 2)];
    let tcp = ethernet(&transport(TCP, HOST, 80, &chain));
    let error = ethernet(&icmp_error(3, 80, &chain));
    for (frame, ports_end) in [(tcp, 14 + 40 + 32 + 4), (error, 14 + 40 + 8 + 40 + 32 + 4)] {
        for len in 14..frame.len() {
            let claimed = testbed.seen(&frame[..len]).no_socket == 1;
            assert_eq!(claimed, len >= ports_end, "cut to {len} bytes");
        }
    }
}
