//! RACK-TLP (RFC 8985), as far as neither conformance scripts nor the scoreboard's own tests show
//! it.

use tidelane_engine::{Duration, EngineConfig, SocketOptions, TcpOptions};

use crate::rig::{Rig, ack, spans, times};

/// How long after the last of three SACKed segments the hole before them is sent again, in ms: the
/// first of ten, which are all acknowledged then.
fn patience(rig: &mut Rig, una: u32) -> u64 {
    rig.write(10_000);
    rig.wait_ms(40);
    let start = rig.ms();
    let mut sent = Vec::new();
    for end in 2..=4 {
        let segment = ack(1, una).sack(rig, &[(una + 1000, una + end * 1000)]);
        sent.extend(rig.push(segment));
    }
    sent.extend(rig.wait_ms(39));
    let again = sent.iter().find(|out| out.seq == una).expect("a repair");
    let waited = again.at_ms - start;
    rig.push(ack(1, una + 10_000));
    // The repair was not needed.
    let told = ack(1, una + 10_000).sack(rig, &[(una, una + 1000)]);
    rig.push(told);
    rig.wait_ms(10);
    waited
}

#[test]
fn section_6_2_step_4_a_repair_without_need_widens_the_reordering_window() {
    let mut rig = Rig::established_sack();
    // Samples of 40 ms beside the handshake's 10.
    for round in 0..30 {
        rig.write(1000);
        rig.wait_ms(40);
        rig.push(ack(1, round * 1000 + 1001));
    }
    let una = 30_001;
    // Three SACKed segments are enough while the path is not known to reorder.
    assert_eq!(patience(&mut rig, una), 0);
    // Late arrivals show that it does: then it is given a quarter of the least round trip, and one
    // more with each round in which a repair was not needed.
    rig.write(10_000);
    rig.wait_ms(40);
    let una = una + 10_000;
    let late = ack(1, una).sack(&rig, &[(una + 3000, una + 4000)]);
    rig.push(late);
    let late = ack(1, una).sack(&rig, &[(una + 1000, una + 2000), (una + 3000, una + 4000)]);
    rig.push(late);
    rig.push(ack(1, una + 10_000));
    rig.wait_ms(10);
    let waits: Vec<u64> = (1..=3)
        .map(|round| patience(&mut rig, una + round * 10_000))
        .collect();
    assert!(waits[0] > 0, "{waits:?}");
    assert!(waits[0] < waits[1] && waits[1] < waits[2], "{waits:?}");
    // Never more than SRTT.
    assert!(waits[2] <= 41, "{waits:?}");
}

#[test]
fn section_7_2_a_probe_is_never_later_than_the_timeout() {
    let config = EngineConfig {
        rto_min: Duration::from_millis(5),
        ..EngineConfig::default()
    };
    let sack = TcpOptions {
        sack_permitted: true,
        ..TcpOptions::NONE
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), sack);
    // Equal samples: the timeout comes down to little more than SRTT, and two of them are more.
    for round in 0..60 {
        rig.write(1000);
        rig.wait_ms(10);
        rig.push(ack(1, round * 1000 + 1001));
    }
    let rto = rig.info().rto.as_millis();
    assert!(rto < 2 * rig.info().srtt.as_millis(), "{rto}");
    rig.write(2000);
    let start = rig.ms();
    let sent = rig.wait_ms(100);
    let first = times(&sent, start)[0];
    assert!(first <= rto + 2, "{first} {rto} {:?}", spans(&sent));
}

#[test]
fn section_7_2_after_a_timeout_there_are_no_probes() {
    let mut rig = Rig::established_sack();
    rig.write(10_000);
    while rig.engine.counters().timeouts == 0 {
        rig.wait_ms(10);
    }
    let probes = rig.engine.counters().loss_probes;
    assert_eq!(probes, 1);
    // Progress, and again silence: the timer that runs is that of the timeout.
    rig.push(ack(1, 1001));
    rig.wait_ms(60_000);
    assert!(rig.engine.counters().timeouts > 3);
    assert_eq!(rig.engine.counters().loss_probes, probes);
}
