//! Tests of keepalive (RFC 9293 §3.8.4). A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{CloseCause, Duration, Event, SocketOptions};

use crate::rig::{ACK, RST, Rig, ack, data, times};

fn options() -> SocketOptions {
    SocketOptions {
        keepalive: true,
        keepalive_idle: Duration::from_secs(60),
        keepalive_interval: Duration::from_secs(10),
        keepalive_probes: 3,
        ..SocketOptions::default()
    }
}

#[test]
fn must_25_keepalive_is_off_by_default() {
    let mut rig = Rig::established(SocketOptions::default());
    assert_eq!(rig.wait_ms(8 * 3_600_000), []);
}

#[test]
fn must_28_unless_configured_the_first_probe_is_after_two_hours() {
    let mut rig = Rig::established(SocketOptions {
        keepalive: true,
        ..SocketOptions::default()
    });
    let start = rig.ms();
    assert_eq!(rig.wait_ms(7_199_900), []);
    let first = rig.wait_ms(200);
    assert_eq!(times(&first, start), [7_200_000]);
}

#[test]
fn must_26_probes_only_after_idle_time_and_must_29_one_unanswered_probe_is_not_the_end() {
    let mut rig = Rig::established(options());
    let start = rig.ms();
    let probes = rig.wait_ms(75_000);
    assert_eq!(times(&probes, start), [60_000, 70_000]);
    // A probe has no payload and SEG.SEQ = SND.NXT-1 (RFC 9293 SHLD-12).
    assert!(
        probes
            .iter()
            .all(|p| (p.seq, p.len, p.flags) == (0, 0, ACK))
    );
    // The peer's ACK restarts the idle timer.
    assert_eq!(rig.push(ack(1, 1)), []);
    let start = rig.ms();
    assert_eq!(times(&rig.wait_ms(65_000), start), [60_000]);
}

#[test]
fn the_last_probe_unanswered_resets_the_connection() {
    let mut rig = Rig::established(options());
    rig.events();
    let start = rig.ms();
    let sent = rig.wait_ms(200_000);
    assert_eq!(times(&sent, start), [60_000, 70_000, 80_000, 90_000]);
    assert!(sent[3].flags.contains(RST));
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
    assert_eq!(rig.engine.counters().keepalive_probes, 3);
}

#[test]
fn data_on_the_fast_path_restarts_the_idle_timer() {
    let mut rig = Rig::established(options());
    let start = rig.ms();
    assert_eq!(times(&rig.wait_ms(65_000), start), [60_000]);
    // Data arrives after one unanswered probe.
    rig.push(data(1, 1, 100));
    let start = rig.ms();
    let sent = rig.wait_ms(100_000);
    let probes: Vec<_> = sent.iter().filter(|out| out.seq == 0).collect();
    // The fast path (the engine's code for in-order segments) records arrivals in units of 1.024 s,
    // so the probe may be two units late.
    let first = probes[0].at_ms - start;
    assert!((60_000..62_100).contains(&first), "{first}");
    // The data has reset the count of unanswered probes, so the engine sends three more probes
    // before the RST.
    assert_eq!(probes.len(), 3);
    assert!(sent.last().unwrap().flags.contains(RST));
}

#[test]
fn unacknowledged_data_is_left_to_the_retransmission_timer() {
    let mut rig = Rig::established(options());
    rig.write(100);
    rig.wait_ms(130_000);
    assert_eq!(rig.engine.counters().keepalive_probes, 0);
}

#[test]
fn a_forged_segment_does_not_restart_the_idle_timer() {
    let mut rig = Rig::established(options());
    let start = rig.ms();
    rig.wait_ms(59_000);
    rig.push(ack(900_000_000, 1));
    assert_eq!(times(&rig.wait_ms(5_000), start), [60_000]);
}

#[test]
fn user_timeout_counts_instead_of_probes() {
    let mut rig = Rig::established(SocketOptions {
        user_timeout: Duration::from_secs(65),
        ..options()
    });
    let start = rig.ms();
    let sent = rig.wait_ms(200_000);
    assert_eq!(times(&sent, start), [60_000, 70_000]);
    assert!(sent[1].flags.contains(RST));
}
