//! Tests of the operator's rules, which decide whether a connection may open on a host (the stack
//! of one core of the service). The tests cover SYNs of peers, connects of programs, and a change
//! of the rules while connections are open.

use tidelane_abi::{close_cause, control_event};
use tidelane_host::{Action, Credentials, Direction, Prefix, Rule, RuleSet};
use tidelane_time::Duration;
use tidelane_wire::TcpFlags;

use crate::{
    acceptor::Acceptor,
    limits::{Guest, ready_to_connect},
    stage::{Stage, listen, listen_as, segment, stranger},
};

/// Makes a set of one rule. `default` is the action for connections that the rule does not match.
/// For this set, `rule_hits` returns two counts: the decisions of the rule, and of the default.
fn only(rule: Rule, default: Action) -> RuleSet {
    RuleSet::new(vec![rule], default)
}

fn from_peer(peer: &str, action: Action) -> Rule {
    Rule {
        action,
        peers: vec![peer.parse::<Prefix>().expect("a prefix")],
        ..Rule::default()
    }
}

/// Sends a SYN from stranger `number` (a peer that the test plays). Returns the flags of each
/// answer.
fn answers(stage: &mut Stage, number: u32) -> Vec<TcpFlags> {
    let answers = stage.exchange(stranger(number), segment(TcpFlags::SYN, 7, 0));
    answers.iter().map(|answer| answer.flags).collect()
}

const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
const RST_ACK: TcpFlags = TcpFlags(TcpFlags::RST.0 | TcpFlags::ACK.0);

#[test]
fn a_denied_syn_creates_no_flow() {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    // Strangers 1 and 2 are 10.0.0.3 and 10.0.0.4.
    for (action, expected) in [(Action::Refuse, vec![RST_ACK]), (Action::Drop, vec![])] {
        let rules = only(from_peer("10.0.0.3", action), Action::Accept);
        stage.core.host.set_rules(stage.now, rules);
        assert_eq!(answers(&mut stage, 1), expected, "{action:?}");
        let (_, flows, _) = stage.core.host.usage();
        assert_eq!(flows, 0, "{action:?} leaves a flow");
        assert_eq!(stage.core.host.rule_hits(), [1, 0]);
    }
    assert_eq!(answers(&mut stage, 2), [SYN_ACK]);
    assert_eq!(stage.core.host.rule_hits(), [1, 1]);
    assert_eq!(stage.core.counter("drop_rule_denied"), 2);
}

#[test]
fn rules_match_the_user_of_the_listener() {
    for (uid, expected) in [(33, RST_ACK), (34, SYN_ACK)] {
        let mut stage = Stage::new();
        let rule = Rule {
            action: Action::Refuse,
            direction: Some(Direction::In),
            users: vec![33],
            ..Rule::default()
        };
        stage
            .core
            .host
            .set_rules(stage.now, only(rule, Action::Accept));
        let credentials = Credentials {
            uid,
            groups: Vec::new(),
        };
        listen_as(&mut stage.core.host, 1 << 20, credentials);
        assert_eq!(answers(&mut stage, 1), [expected], "uid {uid}");
    }
}

#[test]
fn a_cookie_that_rules_no_longer_accept_opens_nothing() {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    for number in 0..200 {
        stage.exchange(stranger(number), segment(TcpFlags::SYN, 7, 0));
    }
    // There are too many half-open connections for one more, so the host answers with a SYN cookie.
    let client = stranger(1_000);
    let answers = stage.exchange(client, segment(TcpFlags::SYN, 7, 0));
    let theirs = answers[0].seq.to_u32().wrapping_add(1);
    assert!(stage.core.counter("syncookies_sent") > 0);
    let rules = RuleSet::new(Vec::new(), Action::Drop);
    stage.core.host.set_rules(stage.now, rules);
    stage.exchange(client, segment(TcpFlags::ACK, 8, theirs));
    assert_eq!(stage.core.counter("syncookies_recv"), 0);
    assert_eq!(stage.core.counter("passive_opens"), 0);
}

#[test]
fn connections_that_new_rules_refuse_are_reset_and_others_stay() {
    let mut stage = Stage::new();
    let program = listen(&mut stage.core.host, 1 << 20);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    for port in [1000, 2000] {
        stage.connect(port, b"");
    }
    assert_eq!(acceptor.ports(), [1000, 2000]);
    let rule = Rule {
        action: Action::Refuse,
        peer_ports: vec![1000..=1000],
        ..Rule::default()
    };
    let reset = stage
        .core
        .host
        .set_rules(stage.now, only(rule, Action::Accept));
    assert_eq!(reset, 1);
    stage.now += Duration::from_micros(5);
    stage.core.host.step(stage.now);
    let sent = stage.answers(stranger(1));
    let resets: Vec<u16> = sent
        .iter()
        .filter(|sent| sent.flags.contains(TcpFlags::RST))
        .map(|sent| sent.dst_port)
        .collect();
    assert_eq!(resets, [1000]);
    // The check of the open connections against new rules does not change the hit counters.
    assert_eq!(stage.core.host.rule_hits(), [0, 0]);
    assert_eq!(stage.core.host.set_rules(stage.now, RuleSet::default()), 0);
}

#[test]
fn a_denied_connect_fails_or_sends_no_syn() {
    for (action, expected, syns) in [
        (Action::Accept, control_event::CONNECT_STARTED, 1),
        (Action::Refuse, control_event::CONNECT_FAILED, 0),
        (Action::Drop, control_event::CONNECT_STARTED, 0),
    ] {
        let mut stage = Stage::new();
        let mut guest = Guest::new(&mut stage, 33);
        ready_to_connect(&mut stage, &mut guest, 2);
        let rule = Rule {
            action,
            direction: Some(Direction::Out),
            peer_ports: vec![80..=80],
            ..Rule::default()
        };
        stage
            .core
            .host
            .set_rules(stage.now, only(rule, Action::Accept));
        stage.answers(stranger(1));
        let event = guest.connect(&mut stage, 1);
        assert_eq!(event.kind, expected, "{action:?}");
        if action == Action::Refuse {
            assert_eq!(event.cause, close_cause::REFUSED);
        }
        assert_eq!(stage.answers(stranger(1)).len(), syns, "{action:?}");
        assert_eq!(stage.core.host.rule_hits(), [1, 0], "{action:?}");
    }
}
