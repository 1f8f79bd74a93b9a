//! A core that shows no life gets no new connections, and in the end no frames.

use rustix::time::{ClockId, clock_gettime};

use super::*;

const MS: u64 = 1_000_000;

/// The clock of the program.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 * MS + now.tv_nsec as u64
}

/// The demux with its claims, the heartbeats, and a frame for the service.
fn bench() -> Option<(Bench, Arc<Heartbeats>, Vec<u8>)> {
    let mut bench = Bench::new()?;
    let words = bench.object.memory("HEARTBEATS", Heartbeats::LEN).unwrap();
    let frame = ethernet(&transport(TCP, 4000, 80, 0));
    Some((bench, Arc::new(Heartbeats::new(words)), frame))
}

/// Frames that were meant for the service. No queue has a socket here.
const SENT: DemuxCounters = DemuxCounters {
    no_socket: 1,
    ..ipv6::NOTHING
};
const LEFT: DemuxCounters = DemuxCounters {
    no_life: 1,
    ..ipv6::NOTHING
};

#[test]
fn a_queue_is_not_watched_until_its_core_shows_life() {
    let Some((mut bench, all, frame)) = bench() else {
        return;
    };
    assert_eq!(bench.seen(&frame), SENT);
    assert!(!all.of_queue(0).is_awaited());
}

#[test]
fn a_core_that_is_silent_keeps_its_connections_until_it_counts_as_dead() {
    let Some((mut bench, all, frame)) = bench() else {
        return;
    };
    let core = all.of_queue(0);
    // The kernel of this test has no socket for the frame.
    for (age_ms, expected) in [(0, SENT), (900, SENT), (29_000, SENT), (31_000, LEFT)] {
        core.beat(now_ns() - age_ms * MS);
        assert_eq!(bench.seen(&frame), expected, "{age_ms} ms ago");
    }
    // A beat of a clock that is a little ahead.
    core.beat(now_ns() + MS);
    assert_eq!(bench.seen(&frame), SENT);
    // The core goes on.
    core.beat(now_ns());
    assert_eq!(bench.seen(&frame), SENT);
    // The others' queues are their own.
    all.of_queue(1).beat(now_ns() - 60_000 * MS);
    assert_eq!(bench.seen(&frame), SENT);
}

#[test]
fn a_frame_starts_the_time_of_a_sleeping_core() {
    let Some((mut bench, all, frame)) = bench() else {
        return;
    };
    let core = all.of_queue(0);
    core.sleep();
    assert!(!core.is_awaited());
    assert_eq!(bench.seen(&frame), SENT);
    assert!(core.is_awaited());
    assert_eq!(bench.seen(&frame), SENT);
    core.sleep();
    // Frames that are not for the service wake nobody.
    bench.seen(&ethernet(&transport(TCP, 4000, 81, 0)));
    assert!(!core.is_awaited());
}

#[test]
fn a_service_that_gave_up_gets_nothing() {
    let Some((mut bench, all, frame)) = bench() else {
        return;
    };
    all.of_queue(0).beat(now_ns());
    all.give_up();
    assert_eq!(bench.seen(&frame), LEFT);
}
