//! Tests of the addresses and TTLs of packets that a host, the stack of one core of the service,
//! accepts (RFC 1122 §3.2.1, RFC 9293 §3.9.2.3). Each test sends SYNs to a port without a listener.
//! A SYN draws a RST if the host accepts the packet.

use tidelane_time::Instant;

use crate::{
    frames::{self, OURS, PEER, TTL},
    rig::Core,
};

/// Returns a frame with a SYN from TCP port 4242 to port 80.
fn syn(from: [u8; 4], to: [u8; 4], ttl: u8) -> Vec<u8> {
    frames::syn(from, to, ttl, 4242)
}

/// Sends `frame` to a new host with the address [`OURS`]. Returns the number of answers, and the
/// names of the host's drop counters that are not zero.
fn answers(frame: &[u8]) -> (usize, Vec<String>) {
    let mut core = Core::new();
    core.receives(frame);
    let sent = core.answers(Instant(1_000_000_000)).len();
    let drops = core.host.counters().into_iter();
    let drops = drops.filter(|(name, count)| name.starts_with("drop_") && *count > 0);
    (sent, drops.map(|(name, _)| name).collect())
}

#[test]
fn rfc1122_section_3_2_1_3_a_packet_for_another_host_is_dropped() {
    assert_eq!(
        answers(&syn(PEER, OURS, TTL)),
        (1, vec!["drop_no_listener".to_owned()])
    );
    let (sent, drops) = answers(&syn(PEER, [10, 0, 0, 3], TTL));
    assert_eq!((sent, drops), (0, vec!["drop_not_ours".to_owned()]));
}

#[test]
fn must_57_a_segment_to_a_broadcast_or_multicast_address_is_dropped_without_an_answer() {
    for to in [
        [255, 255, 255, 255],
        [10, 0, 0, 255],
        [224, 0, 0, 1],
        [239, 1, 2, 3],
    ] {
        let (sent, drops) = answers(&syn(PEER, to, TTL));
        assert_eq!(
            (sent, drops),
            (0, vec!["drop_not_ours".to_owned()]),
            "{to:?}"
        );
    }
}

#[test]
fn must_63_a_segment_from_an_invalid_source_address_is_dropped() {
    for from in [[255, 255, 255, 255], [224, 0, 0, 1], [0, 0, 0, 0]] {
        let (sent, drops) = answers(&syn(from, OURS, TTL));
        assert_eq!(
            (sent, drops),
            (0, vec!["drop_bad_address".to_owned()]),
            "{from:?}"
        );
    }
}

#[test]
fn rfc1122_section_3_2_1_7_a_small_ttl_is_no_reason_to_drop() {
    for ttl in [1, 2, 255] {
        assert_eq!(answers(&syn(PEER, OURS, ttl)).0, 1, "{ttl}");
    }
}
