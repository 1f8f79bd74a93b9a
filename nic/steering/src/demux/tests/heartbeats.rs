//! Tests of the heartbeats that the demux checks. The demux is the XDP program that redirects
//! frames to the cores (the polling threads of the service). The heartbeat of a core is the time of
//! a recent step of its loop. If the last heartbeat is older than 800 ms, the kernel keeps the TCP
//! packets for which the kernel has a socket. If the last heartbeat is older than 30 seconds, the
//! kernel also keeps the packets for which the kernel has no socket.

use rustix::time::{ClockId, clock_gettime};

use super::*;

const MS: u64 = 1_000_000;

/// Returns the time of the clock that the eBPF program reads.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 * MS + now.tv_nsec as u64
}

/// Returns the demux with claims, the heartbeats of its queues, and a frame for the service.
fn testbed() -> Option<(Testbed, Arc<Heartbeats>, Vec<u8>)> {
    let mut testbed = Testbed::new()?;
    let words = testbed
        .object
        .mapped_array("HEARTBEATS", Heartbeats::LEN)
        .unwrap();
    let frame = ethernet(&transport(TCP, 4000, 80, 0));
    Some((testbed, Arc::new(Heartbeats::new(words)), frame))
}

/// Counters of a frame for the service. No queue has an AF_XDP socket in these tests, so the
/// program returns XDP_PASS and counts `no_socket`.
const REDIRECTED: DemuxCounters = DemuxCounters {
    no_socket: 1,
    ..ipv6::NOTHING
};
/// Counters of a frame that the kernel gets because the core's last heartbeat is too old.
const NO_HEARTBEAT: DemuxCounters = DemuxCounters {
    no_heartbeat: 1,
    ..ipv6::NOTHING
};

#[test]
fn a_queue_is_not_watched_before_its_first_heartbeat() {
    let Some((mut testbed, all, frame)) = testbed() else {
        return;
    };
    assert_eq!(testbed.seen(&frame), REDIRECTED);
    assert!(!all.of_queue(0).is_awaited());
}

#[test]
fn a_silent_core_keeps_its_connections_until_it_is_dead() {
    let Some((mut testbed, all, frame)) = testbed() else {
        return;
    };
    let core = all.of_queue(0);
    // The kernel has no socket for the frame, so the service gets the frame until the heartbeat is
    // older than 30 seconds.
    for (age_ms, expected) in [
        (0, REDIRECTED),
        (900, REDIRECTED),
        (29_000, REDIRECTED),
        (31_000, NO_HEARTBEAT),
    ] {
        core.beat(now_ns() - age_ms * MS);
        assert_eq!(testbed.seen(&frame), expected, "{age_ms} ms ago");
    }
    // A heartbeat may be slightly in the future, because the clocks of the CPUs may differ.
    core.beat(now_ns() + MS);
    assert_eq!(testbed.seen(&frame), REDIRECTED);
    // The core writes heartbeats again.
    core.beat(now_ns());
    assert_eq!(testbed.seen(&frame), REDIRECTED);
    // The heartbeats of other queues do not matter.
    all.of_queue(1).beat(now_ns() - 60_000 * MS);
    assert_eq!(testbed.seen(&frame), REDIRECTED);
}

#[test]
fn a_frame_starts_the_time_of_a_sleeping_core() {
    let Some((mut testbed, all, frame)) = testbed() else {
        return;
    };
    let core = all.of_queue(0);
    core.sleep();
    assert!(!core.is_awaited());
    assert_eq!(testbed.seen(&frame), REDIRECTED);
    assert!(core.is_awaited());
    assert_eq!(testbed.seen(&frame), REDIRECTED);
    core.sleep();
    // A frame for the kernel does not change the heartbeat of a sleeping core.
    testbed.seen(&ethernet(&transport(TCP, 4000, 81, 0)));
    assert!(!core.is_awaited());
}

#[test]
fn a_service_that_gave_up_gets_nothing() {
    let Some((mut testbed, all, frame)) = testbed() else {
        return;
    };
    all.of_queue(0).beat(now_ns());
    all.give_up();
    assert_eq!(testbed.seen(&frame), NO_HEARTBEAT);
}
