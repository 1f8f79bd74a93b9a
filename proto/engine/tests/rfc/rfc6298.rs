//! Tests of the retransmission timeout (RFC 6298), for the requirements that no script of
//! `tests/conformance` covers. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{Duration, EngineConfig, SocketOptions, TcpOptions};

use crate::rig::{Rig, ack, times};

/// SRTT and RTTVAR by the formulas of the RFC, in milliseconds.
#[derive(Clone, Copy)]
struct Model {
    srtt: f64,
    rttvar: f64,
}

impl Model {
    fn first(rtt: f64) -> Self {
        Self {
            srtt: rtt,
            rttvar: rtt / 2.0,
        }
    }

    fn sample(&mut self, rtt: f64) {
        self.rttvar = 0.75 * self.rttvar + 0.25 * (self.srtt - rtt).abs();
        self.srtt = 0.875 * self.srtt + 0.125 * rtt;
    }
}

#[test]
fn section_2_2_and_2_3_samples_make_the_timeout() {
    let config = EngineConfig {
        rto_min: Duration::from_millis(1),
        ..EngineConfig::default()
    };
    let mut rig = Rig::established_with(config, SocketOptions::default(), TcpOptions::NONE);
    // The RTT of the handshake is 10 ms.
    let mut model = Model::first(10.0);
    let (mut una, mut timed_out) = (1, 0);
    for rtt in [10, 100, 100, 20, 500, 3, 3, 3, 250] {
        let info = rig.info();
        let srtt = info.srtt.as_micros() as f64 / 1e3;
        let rttvar = info.rttvar.as_micros() as f64 / 1e3;
        let rto = info.rto.as_millis() as f64;
        assert!((srtt - model.srtt).abs() < 0.1, "{srtt} {}", model.srtt);
        assert!(
            (rttvar - model.rttvar).abs() < 0.1,
            "{rttvar} {}",
            model.rttvar
        );
        // The ACK after a timeout gives no RTT sample, and does not reset the backoff (§5).
        let expected = (model.srtt + 4.0 * model.rttvar) * f64::from(1 << info.backoff);
        assert!((rto - expected).abs() <= 4.0, "{rto} {expected}");
        rig.write(1000);
        // A segment that times out gives no RTT sample (§3).
        let in_time = rig.wait_ms(rtt as u64).is_empty();
        assert!(in_time || f64::from(rtt) >= rto - 2.0, "{rtt} {rto}");
        assert!(!in_time || f64::from(rtt) <= rto + 2.0, "{rtt} {rto}");
        if in_time {
            model.sample(f64::from(rtt));
        } else {
            timed_out += 1;
        }
        una += 1000;
        rig.push(ack(1, una));
        assert_eq!(rig.info().backoff == 0, in_time);
    }
    assert!(timed_out > 0);
}

/// With timestamps, the ACK of a retransmission gives an RTT sample, because TSecr shows which
/// transmission arrived (RFC 7323 §4.1).
#[test]
fn section_5_with_timestamps_the_ack_of_a_retransmission_is_a_sample() {
    for (peer, doubled) in [(TcpOptions::timestamps(1, 0), 0), (TcpOptions::NONE, 1)] {
        let (config, options) = (EngineConfig::default(), SocketOptions::default());
        let mut rig = Rig::established_with(config, options, peer);
        rig.write(1000);
        let mut again = Vec::new();
        while again.is_empty() {
            again = rig.wait_ms(10);
        }
        assert_eq!(rig.info().backoff, 1);
        let mut done = ack(1, again[0].seq + again[0].len);
        if let Some(timestamps) = again[0].options.timestamps {
            done = done.ts(2, timestamps.tsval);
        }
        rig.wait_ms(20);
        rig.push(done);
        assert_eq!(rig.info().backoff, doubled);
    }
}

#[test]
fn section_2_5_and_5_5_the_rto_doubles_up_to_two_minutes() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.write(1000);
    let start = rig.ms();
    let at = times(&rig.wait_ms(700_000), start);
    let waits: Vec<u64> = at.windows(2).map(|two| two[1] - two[0]).collect();
    for two in waits.windows(2) {
        let doubled = (2 * two[0]).min(120_000);
        assert!(two[1].abs_diff(doubled) <= 10, "{waits:?}");
    }
    assert!(
        waits.len() > 10 && *waits.last().unwrap() >= 60_000,
        "{waits:?}"
    );
}
