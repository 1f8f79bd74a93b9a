//! Tests of the demux with fragmented datagrams. The demux is the XDP program that redirects the
//! packets of claimed 3-tuples (local address, protocol, local port) to the service (the process
//! `tidelaned`). Only the first fragment of a datagram (offset 0) has ports. These ports decide
//! whether the service or the kernel gets the first fragment and the later fragments (offset above
//! 0) of the datagram.

use super::*;

/// Counters of a fragment for the service. No queue has an AF_XDP socket in these tests, so the
/// demux does not redirect the fragment, and counts `no_socket`.
const CLAIMED: DemuxCounters = DemuxCounters {
    no_socket: 1,
    ..ipv6::NOTHING
};
/// Counters of a fragment for the kernel.
const KERNELS: DemuxCounters = DemuxCounters {
    fragments: 1,
    ..ipv6::NOTHING
};
/// The more-fragments flag of a fragment that is not the last of its datagram.
const MORE: u16 = 1;

/// Returns a frame with an IPv4 fragment of a datagram with the identification `id`. `offset` is
/// the fragment offset in units of eight bytes, `more` is the more-fragments flag, and `bytes` is
/// the payload.
fn fragment(proto: u8, from: [u8; 4], id: u16, offset: u16, more: u16, bytes: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(proto, from, HOST, 0);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&(more << 13 | offset).to_be_bytes());
    packet.extend(bytes);
    ethernet(&packet)
}

fn first(proto: u8, from: [u8; 4], id: u16, port: u8) -> Vec<u8> {
    fragment(proto, from, id, 0, MORE, &[0x9c, 0x40, 0, port, 1, 2, 3, 4])
}

fn later(proto: u8, from: [u8; 4], id: u16) -> Vec<u8> {
    // The payload looks like a TCP header with a claimed port.
    fragment(proto, from, id, 1, 0, &[0x9c, 0x40, 0, 80, 1, 2, 3, 4])
}

/// A later fragment goes to the kernel if it arrives before any first fragment of its source host
/// and its protocol.
#[test]
fn all_fragments_follow_the_first() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    for (proto, port) in [(TCP, 80), (UDP, 53)] {
        assert_eq!(testbed.seen(&later(proto, PEER, 7)), KERNELS);
        assert_eq!(testbed.seen(&first(proto, PEER, 7, port)), CLAIMED);
        for _ in 0..3 {
            assert_eq!(testbed.seen(&later(proto, PEER, 7)), CLAIMED);
        }
    }
    // The kernel gets a later fragment of another host, fragments of ICMP, and a first fragment
    // that does not contain both ports.
    assert_eq!(testbed.seen(&later(TCP, [10, 0, 0, 3], 7)), KERNELS);
    for _ in 0..2 {
        assert_eq!(testbed.seen(&first(ICMP, PEER, 7, 80)), KERNELS);
        assert_eq!(testbed.seen(&later(ICMP, PEER, 7)), KERNELS);
    }
    let short = fragment(TCP, [10, 0, 0, 4], 7, 0, MORE, &[0x9c, 0x40, 0]);
    assert_eq!(testbed.seen(&short[..14 + 23]), KERNELS);
}

#[test]
fn an_identification_that_comes_again_is_a_new_datagram() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    assert_eq!(testbed.seen(&first(TCP, PEER, 9, 80)), CLAIMED);
    assert_eq!(testbed.seen(&later(TCP, PEER, 9)), CLAIMED);
    assert_eq!(testbed.seen(&first(TCP, PEER, 9, 81)), KERNELS);
    assert_eq!(testbed.seen(&later(TCP, PEER, 9)), KERNELS);
}

#[test]
fn an_early_fragment_goes_where_the_last_first_fragment_of_its_host_went() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    // The demux has seen no first fragment of TCP from this host, so the kernel gets the later
    // fragment. A first fragment of UDP does not count for TCP.
    assert_eq!(testbed.seen(&later(TCP, PEER, 1)), KERNELS);
    assert_eq!(testbed.seen(&first(UDP, PEER, 1, 53)), CLAIMED);
    assert_eq!(testbed.seen(&later(TCP, PEER, 1)), KERNELS);
    assert_eq!(testbed.seen(&first(TCP, PEER, 1, 80)), CLAIMED);
    assert_eq!(testbed.seen(&later(TCP, PEER, 2)), CLAIMED);
    // The first fragment of the datagram 3 has an unclaimed port, so this host has sent first
    // fragments to the service and to the kernel. From here on, a later fragment that arrives
    // before the first fragment of its datagram goes to the kernel. The later fragments of the
    // datagram 1 still go to the service, as its first fragment did.
    assert_eq!(testbed.seen(&first(TCP, PEER, 3, 81)), KERNELS);
    assert_eq!(testbed.seen(&later(TCP, PEER, 4)), KERNELS);
    assert_eq!(testbed.seen(&later(TCP, PEER, 1)), CLAIMED);
}

/// Returns a frame with an IPv6 fragment whose fragment header follows the headers `extensions`.
/// `word` is the sum of the offset in bytes and the more-fragments flag (1).
fn fragment_v6(id: u32, word: u16, next: u8, extensions: &[(u8, u8)], bytes: &[u8]) -> Vec<u8> {
    let mut packet = ipv6::ipv6(ipv6::FRAGMENT, ipv6::PEER, ipv6::HOST, extensions);
    packet.extend([next, 0]);
    packet.extend(word.to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(bytes);
    ethernet(&packet)
}

#[test]
fn fragments_over_ipv6() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let mut seen = |id, word, next, extensions: &[_], port| {
        let ports = [0x9c, 0x40, 0, port, 1, 2, 3, 4];
        testbed.seen(&fragment_v6(id, word, next, extensions, &ports))
    };
    let options = [(ipv6::HOP_BY_HOP, 1)];
    for extensions in [&options[..], &[]] {
        let id = extensions.len() as u32;
        assert_eq!(seen(id, 1, TCP, extensions, 81), KERNELS);
        assert_eq!(seen(id, 8, TCP, extensions, 80), KERNELS);
        assert_eq!(seen(id, 1, TCP, extensions, 80), CLAIMED);
        assert_eq!(seen(id, 8, TCP, extensions, 9), CLAIMED);
        // The first fragment names the protocol. Later fragments may name another protocol
        // (RFC 8200 §4.5).
        assert_eq!(seen(id, 8 | 1, UDP, extensions, 9), CLAIMED);
        assert_eq!(seen(id, 1, ipv6::ICMPV6, extensions, 80), KERNELS);
        assert_eq!(seen(id, 8, ipv6::ICMPV6, extensions, 80), KERNELS);
    }
    // An atomic fragment (offset 0, no more fragments) is treated as a whole packet (RFC 6946).
    let unclaimed = DemuxCounters {
        unclaimed: 1,
        ..ipv6::NOTHING
    };
    assert_eq!(seen(77, 0, TCP, &[], 80), CLAIMED);
    assert_eq!(seen(77, 0, TCP, &[], 81), unclaimed);
}

#[test]
fn no_truncated_fragment_is_misread() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let ports = [0x9c, 0x40, 0, 80, 1, 2, 3, 4];
    let v6 = fragment_v6(5, 1, TCP, &[(ipv6::DESTINATION, 1)], &ports);
    for (frame, ports_end) in [
        (first(TCP, PEER, 5, 80), 14 + 20 + 4),
        (v6, 14 + 40 + 16 + 8 + 4),
    ] {
        for len in 14..frame.len() {
            let claimed = testbed.seen(&frame[..len]).no_socket == 1;
            assert_eq!(claimed, len >= ports_end, "cut to {len} bytes");
        }
    }
}
