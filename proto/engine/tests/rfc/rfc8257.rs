//! Tests of DCTCP on the wire (RFC 8257). The tests of `proto/cc` cover the congestion window. A
//! rig is one TCP engine, with the test as its peer.

use tidelane_engine::{Algorithm, Ecn, EngineConfig, SocketOptions, TcpFlags, TcpOptions};

use crate::rig::{ACK, Rig, SYN, ack, data, syn};

const ECE: TcpFlags = TcpFlags::ECE;
const BOTH: TcpFlags = TcpFlags(TcpFlags::ECE.0 | TcpFlags::CWR.0);

fn options() -> SocketOptions {
    SocketOptions {
        congestion: Some(Algorithm::Dctcp),
        ..SocketOptions::default()
    }
}

fn established() -> Rig {
    let mss = TcpOptions {
        mss: Some(1000),
        ..TcpOptions::NONE
    };
    let opening = syn(mss).with(SYN | BOTH).ecn(Ecn::Ect0);
    let rig = Rig::established_by(EngineConfig::default(), options(), opening);
    assert_eq!((rig.info().congestion, rig.info().ecn), ("dctcp", true));
    rig
}

#[test]
fn dctcp_requests_ecn_under_any_policy_by_an_ect_syn() {
    let (_, first) = Rig::opening(EngineConfig::default(), options());
    assert_eq!((first.flags, first.ecn), (SYN | BOTH, Ecn::Ect0));
}

#[test]
fn section_3_2_a_change_of_ce_state_is_acknowledged_at_once_and_separately() {
    let mut rig = established();
    // The flow (the connection) starts in quick-ack mode, in which ACKs are not delayed. Twenty
    // segments end this mode.
    let mut seq = 1;
    for _ in 0..20 {
        rig.push(data(seq, 1, 1000).ecn(Ecn::Ect0));
        seq += 1000;
    }
    rig.wait_ms(50);
    let delayed = rig.push(data(seq, 1, 1000).ecn(Ecn::Ect0));
    assert_eq!(delayed, []);
    let sent = rig.push(data(seq + 1000, 1, 1000).ecn(Ecn::Ce));
    let acks: Vec<_> = sent.iter().map(|out| (out.ack, out.flags)).collect();
    assert_eq!(acks, [(seq + 1000, ACK), (seq + 2000, ACK | ECE)]);
    // While the CE state does not change, ACKs are delayed as usual.
    assert_eq!(rig.push(data(seq + 2000, 1, 1000).ecn(Ecn::Ce)), []);
    let sent = rig.push(data(seq + 3000, 1, 1000).ecn(Ecn::Ect0));
    let acks: Vec<_> = sent.iter().map(|out| (out.ack, out.flags)).collect();
    assert_eq!(acks, [(seq + 3000, ACK | ECE), (seq + 4000, ACK)]);
}

/// An ACK with ECE halves cwnd. The ACK does not grow cwnd first, or ssthresh would be larger.
#[test]
fn section_3_3_ece_does_not_grow_cwnd_first() {
    let mut rig = established();
    assert_eq!(rig.write(1_000_000).len(), 10);
    rig.push(ack(1, 5001).with(ACK | ECE));
    assert_eq!(rig.info().ssthresh, 5000);
}

#[test]
fn section_3_3_the_first_ece_halves_cwnd_and_later_ones_follow_alpha() {
    let mut rig = established();
    rig.write(1_000_000);
    let mut una = 1;
    let mut reductions = Vec::new();
    for round in 0..100 {
        let flight = rig.info().flight_size;
        let end = una + flight;
        while una < end {
            una += 1000;
            let first = end - una == flight - 1000;
            let flags = if first && round % 5 == 4 {
                ACK | ECE
            } else {
                ACK
            };
            let before = rig.info().cwnd;
            let reduced = rig.engine.counters().ecn_reductions;
            rig.push(ack(1, una).with(flags));
            if rig.engine.counters().ecn_reductions > reduced {
                reductions.push(f64::from(rig.info().ssthresh) / f64::from(before));
            }
        }
        rig.wait_ms(10);
    }
    // A reduction multiplies cwnd by 1 - alpha / 2. Alpha, the estimated part of the data with CE
    // marks, is one at first. Later, alpha is small, because only one segment in every fifth window
    // is acknowledged with ECE.
    assert!((0.5..0.7).contains(&reductions[0]), "{reductions:?}");
    let last = *reductions.last().unwrap();
    assert!(last > 0.8, "{reductions:?}");
}
