//! Tests of the defense against blind in-window attacks (RFC 5961). A rig is one TCP engine, with
//! the test as its peer.

use tidelane_engine::{Event, SocketOptions, TcpFlags};

use crate::rig::{ACK, RST, Rig, SYN, ack, data};

#[test]
fn section_3_2_reset_only_with_the_exact_number() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.events();
    // A RST in the window, but not at RCV.NXT, gets a challenge ACK.
    let sent = rig.push(ack(100, 1).with(RST));
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].seq, sent[0].ack, sent[0].flags), (1, 1, ACK));
    // A RST outside of the window gets no answer.
    rig.wait_ms(1000);
    assert_eq!(rig.push(ack(900_000_000, 1).with(RST)), []);
    assert_eq!(rig.events(), []);
    // A RST with SEG.SEQ = RCV.NXT ends the connection without an answer.
    assert_eq!(rig.push(ack(1, 1).with(RST)), []);
    assert!(matches!(rig.events()[..], [Event::Closed(_)]));
}

#[test]
fn section_4_2_a_syn_with_any_sequence_number_is_challenged() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.events();
    for seq in [0, 1, 100, 900_000_000] {
        rig.wait_ms(1000);
        let sent = rig.push(ack(seq, 1).with(SYN));
        assert_eq!(sent.len(), 1, "SYN at {seq}");
        assert_eq!((sent[0].seq, sent[0].ack, sent[0].flags), (1, 1, ACK));
    }
    assert_eq!(rig.events(), []);
}

#[test]
fn section_5_2_an_unacceptable_ack_is_challenged_and_its_data_dropped() {
    let mut rig = Rig::established(SocketOptions::default());
    rig.write(1000);
    let placed = rig.driver.placed.len();
    // SEG.ACK is beyond SND.NXT.
    let sent = rig.push(data(1, 1002, 10));
    assert_eq!((sent.len(), sent[0].ack), (1, 1));
    // SEG.ACK is before SND.UNA - MAX.SND.WND, where MAX.SND.WND is 60000.
    rig.wait_ms(600);
    let old = 1u32.wrapping_sub(60_001);
    let sent = rig.push(data(1, old, 10));
    let pure: Vec<_> = sent.iter().filter(|out| out.len == 0).collect();
    assert_eq!((pure.len(), pure[0].ack), (1, 1));
    assert_eq!(rig.driver.placed.len(), placed);
    // SEG.ACK is after SND.UNA - MAX.SND.WND, so the payload is accepted.
    let old = 1u32.wrapping_sub(59_999);
    rig.push(data(1, old, 10));
    assert_eq!(rig.driver.placed.len(), placed + 1);
}

#[test]
fn section_7_challenges_are_limited_per_flow() {
    let mut rig = Rig::established(SocketOptions::default());
    let mut answers = 0;
    for n in 0..1000 {
        rig.wait_ms(1);
        let flags = if n % 2 == 0 { SYN } else { RST };
        answers += rig.push(ack(100 + n, 1).with(flags)).len();
    }
    // A flow sends at most one challenge ACK per 500 ms.
    assert!((1..=3).contains(&answers), "{answers}");
    assert_eq!(u64::from(rig.info().backoff), 0);
}

#[test]
fn section_7_a_limit_of_all_flows_can_be_configured() {
    use tidelane_engine::{EngineConfig, TcpOptions};
    let answers = |challenge_acks_per_second| {
        let config = EngineConfig {
            challenge_acks_per_second,
            ..EngineConfig::default()
        };
        let mut rig = Rig::established_with(config, SocketOptions::default(), TcpOptions::NONE);
        // Each flow gets a single RST, so that the limit per flow does not apply.
        (1..=100u16)
            .map(|port| {
                rig.key.peer.port = port;
                rig.iss = tidelane_engine::SeqNumber(0);
                rig.push(crate::rig::syn(TcpOptions::NONE));
                rig.push(ack(1, 1));
                rig.engine
                    .accept_queue_removed(tidelane_engine::ListenerId(0), 1);
                rig.push(ack(100, 1).with(RST)).len()
            })
            .sum::<usize>()
    };
    assert_eq!(answers(u32::MAX), 100);
    // The engine varies the limit at random between 0.5 and 1.5 times the configured limit, so that
    // an attacker cannot predict the limit.
    assert!((5..=15).contains(&answers(10)));
}

#[test]
fn section_7_answers_to_empty_segments_are_limited_and_data_is_answered() {
    let mut rig = Rig::established(SocketOptions::default());
    let answers = |rig: &mut Rig, len| -> usize {
        (0..100)
            .map(|_| {
                rig.wait_ms(1);
                rig.push(data(900_000_000, 1, len)).len()
            })
            .sum()
    };
    assert_eq!(answers(&mut rig, 0), 1);
    assert_eq!(answers(&mut rig, 10), 100);
}

#[test]
fn answers_to_a_retransmitted_syn_are_limited() {
    use tidelane_engine::{EngineConfig, TcpOptions};
    let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
    let opening = crate::rig::syn(TcpOptions::NONE);
    assert_eq!(rig.push(opening).len(), 1);
    let again: usize = (0..100).map(|_| rig.push(opening).len()).sum();
    assert_eq!(again, 1);
    rig.wait_ms(600);
    let sent = rig.push(opening);
    assert_eq!((sent.len(), sent[0].flags), (1, TcpFlags::SYN | ACK));
}
