//! Tests of explicit congestion notification (RFC 3168). A rig is one TCP engine, with the test as
//! its peer.

use tidelane_engine::{Ecn, EcnPolicy, EngineConfig, SocketOptions, TcpFlags, TcpOptions};

use crate::rig::{ACK, In, Rig, SYN, ack, data, spans, syn};

const ECE: TcpFlags = TcpFlags::ECE;
const CWR: TcpFlags = TcpFlags::CWR;
/// Flags that a SYN adds to request ECN.
const BOTH: TcpFlags = TcpFlags(TcpFlags::ECE.0 | TcpFlags::CWR.0);

fn opening() -> In {
    let options = TcpOptions {
        mss: Some(1000),
        sack_permitted: true,
        ..TcpOptions::NONE
    };
    syn(options).with(SYN | BOTH)
}

/// Returns a connection whose ends agree on ECN.
pub fn established() -> Rig {
    let config = EngineConfig::default();
    let rig = Rig::established_by(config, SocketOptions::default(), opening());
    assert!(rig.info().ecn);
    rig
}

fn policy(ecn: EcnPolicy) -> EngineConfig {
    EngineConfig {
        ecn,
        ..EngineConfig::default()
    }
}

#[test]
fn section_6_1_1_only_a_syn_that_requests_ecn_gets_ecn() {
    let answer = |ecn, opening: In| {
        let mut rig = Rig::listening(policy(ecn), SocketOptions::default());
        rig.push(opening)[0].flags
    };
    assert_eq!(answer(EcnPolicy::Accept, opening()), SYN | ACK | ECE);
    assert_eq!(answer(EcnPolicy::Request, opening()), SYN | ACK | ECE);
    assert_eq!(answer(EcnPolicy::Off, opening()), SYN | ACK);
    for flags in [SYN, SYN | ECE, SYN | CWR] {
        assert_eq!(answer(EcnPolicy::Accept, opening().with(flags)), SYN | ACK);
    }
    // RFC 3168 does not allow an ECT SYN. The engine agrees to ECN after an ECT SYN only if the
    // engine's congestion control is DCTCP, which is not the case here.
    let marked = opening().ecn(Ecn::Ect0);
    assert_eq!(answer(EcnPolicy::Accept, marked), SYN | ACK);
}

#[test]
fn section_6_1_1_an_active_open_requests_ecn_where_configured() {
    let options = SocketOptions::default();
    assert_eq!(
        Rig::opening(policy(EcnPolicy::Accept), options).1.flags,
        SYN
    );
    for (answer, agreed) in [(ECE, true), (BOTH, false), (TcpFlags::NONE, false)] {
        let (mut rig, first) = Rig::opening(policy(EcnPolicy::Request), options);
        assert_eq!((first.flags, first.ecn), (SYN | BOTH, Ecn::NotEct));
        rig.push(ack(0, 1).with(SYN | ACK | answer));
        assert_eq!(rig.info().ecn, agreed, "{answer:?}");
    }
}

#[test]
fn section_6_1_1_1_a_retransmitted_syn_does_not_request_ecn() {
    let (mut rig, _) = Rig::opening(policy(EcnPolicy::Request), SocketOptions::default());
    let again = rig.wait_ms(1500);
    assert_eq!((again.len(), again[0].flags), (1, SYN));
}

#[test]
fn section_6_1_4_and_6_1_5_only_new_data_is_ect() {
    let mut rig = established();
    let text = rig.write(1000);
    assert_eq!(text[0].ecn, Ecn::Ect0);
    let again = rig.wait_ms(400);
    assert_eq!((again[0].seq, again[0].ecn), (1, Ecn::NotEct));
    rig.push(ack(1, 1001));
    rig.push(data(1, 1001, 1000));
    let pure = rig.push(data(1001, 1001, 1000));
    assert_eq!((pure[0].len, pure[0].ecn), (0, Ecn::NotEct));
}

#[test]
fn section_6_1_3_ce_is_echoed_until_cwr() {
    let mut rig = established();
    let sent = rig.push(data(1, 1, 1000).ecn(Ecn::Ce));
    assert_eq!((sent.len(), sent[0].flags), (1, ACK | ECE));
    // Pure ACKs and data segments carry ECE.
    let sent = rig.push(data(1001, 1, 1000).ecn(Ecn::Ect0));
    assert_eq!(sent[0].flags, ACK | ECE);
    assert!(rig.write(10)[0].flags.contains(ECE));
    let sent = rig.push(data(2001, 11, 1000).ecn(Ecn::Ect0).with(ACK | CWR));
    assert_eq!(sent[0].flags, ACK);
    assert!(!rig.write(10)[0].flags.contains(ECE));
    // CWR ends the echo, and CE in the same segment starts a new echo.
    let sent = rig.push(data(3001, 21, 1000).ecn(Ecn::Ce).with(ACK | CWR));
    assert_eq!(sent[0].flags, ACK | ECE);
}

#[test]
fn section_6_1_2_ece_reduces_cwnd_once_per_window_and_cwr_follows() {
    let mut rig = established();
    assert_eq!(rig.write(30_000).len(), 10);
    let echo = |number| ack(1, number).with(ACK | ECE);
    let mut sent = rig.push(echo(1001));
    sent.extend(rig.push(echo(2001)));
    assert_eq!(rig.engine.counters().ecn_reductions, 1);
    // ssthresh is 0.7 * cwnd, with a cwnd of ten segments (RFC 9438 §4.6).
    assert_eq!(rig.info().ssthresh, 7000);
    for number in 3..=10 {
        sent.extend(rig.push(echo(number * 1000 + 1)));
    }
    assert!(
        sent.iter().all(|out| out.seq > 10_000),
        "{:?}",
        spans(&sent)
    );
    let cwr: Vec<bool> = sent.iter().map(|out| out.flags.contains(CWR)).collect();
    assert!(cwr[0] && cwr[1..].iter().all(|cwr| !cwr), "{cwr:?}");
    assert!((6..=8).contains(&sent.len()), "{}", sent.len());
    // In the next window, ECE reduces cwnd again.
    let sent = rig.push(echo(11_001));
    assert_eq!(rig.engine.counters().ecn_reductions, 2);
    assert!(sent.is_empty() || sent[0].flags.contains(CWR));
}

/// After ECE, ssthresh is computed from cwnd and not from FlightSize (RFC 9438 §4.6). In this test,
/// FlightSize is below cwnd.
#[test]
fn section_6_1_2_ece_reduces_cwnd_and_not_flight_size() {
    let mut rig = established();
    assert_eq!(rig.write(8000).len(), 8);
    rig.push(ack(1, 5001).with(ACK | ECE));
    assert_eq!(rig.info().ssthresh, 7000);
}

/// Without SACK, a partial ACK in fast recovery shows a loss (RFC 6582 §3.2). ECE alone reports no
/// loss. After ECE, an ACK that covers only a part of the outstanding data therefore shows no loss.
#[test]
fn section_6_1_2_without_sack_an_ack_after_ece_retransmits_nothing() {
    let options = TcpOptions {
        mss: Some(1000),
        ..TcpOptions::NONE
    };
    let opening = syn(options).with(SYN | BOTH);
    let config = EngineConfig::default();
    let mut rig = Rig::established_by(config, SocketOptions::default(), opening);
    assert!(rig.info().ecn);
    assert_eq!(rig.write(8_000).len(), 8);
    let mut sent = rig.push(ack(1, 1001).with(ACK | ECE));
    for number in [2001, 3001, 4001, 5001] {
        sent.extend(rig.push(ack(1, number)));
    }
    assert_eq!(spans(&sent), []);
    assert_eq!(rig.engine.counters().retrans_segs, 0);
}

#[test]
fn section_6_1_2_a_loss_in_a_reduced_window_does_not_reduce_cwnd_again() {
    let mut rig = established();
    rig.write(30_000);
    rig.push(ack(1, 1001).with(ACK | ECE));
    let ssthresh = rig.info().ssthresh;
    for end in 3..=7 {
        let segment = ack(1, 1001).sack(&rig, &[(2001, end * 1000 + 1)]);
        rig.push(segment);
    }
    assert_eq!(rig.engine.counters().fast_retrans, 1);
    assert_eq!(rig.info().ssthresh, ssthresh);
}

#[test]
fn section_6_1_2_after_a_loss_cwr_is_sent_too() {
    let mut rig = established();
    rig.write(30_000);
    let mut sent = Vec::new();
    for end in 2..=12 {
        let segment = ack(1, 1).sack(&rig, &[(1001, end * 1000 + 1)]);
        sent.extend(rig.wait_ms(10));
        sent.extend(rig.push(segment));
    }
    let again = sent.iter().position(|out| out.seq == 1).unwrap();
    let cwr: Vec<usize> = (0..sent.len())
        .filter(|at| sent[*at].flags.contains(CWR))
        .collect();
    let new = (again + 1..sent.len()).find(|at| sent[*at].seq > 10_000);
    assert_eq!(cwr, [new.unwrap()], "{:?}", spans(&sent));
}

#[test]
fn ce_without_negotiated_ecn_is_ignored() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.push(data(1, 1, 1000).ecn(Ecn::Ce));
    let sent = rig.push(data(1001, 1, 1000).ecn(Ecn::Ce));
    assert_eq!((sent[0].flags, sent[0].ack), (ACK, 2001));
    rig.write(5000);
    rig.push(ack(2001, 1001).with(ACK | ECE));
    assert_eq!(rig.info().ssthresh, u32::MAX);
}

#[test]
fn section_6_1_5_ce_outside_of_the_window_is_ignored() {
    let mut rig = established();
    rig.push(data(1, 1, 1000));
    for seq in [1, 900_000_000] {
        let sent = rig.push(data(seq, 1, 1000).ecn(Ecn::Ce));
        assert_eq!((sent.len(), sent[0].flags), (1, ACK));
    }
    assert!(!rig.write(10)[0].flags.contains(ECE));
}

#[test]
fn section_6_1_6_a_window_probe_is_not_ecn_capable() {
    let mut rig = established();
    rig.push(data(1, 1, 1).wnd(0));
    rig.wait_ms(100);
    rig.write(1000);
    let probes = rig.wait_ms(5_000);
    assert!(probes.len() > 2);
    assert!(probes.iter().all(|probe| probe.ecn == Ecn::NotEct));
}
