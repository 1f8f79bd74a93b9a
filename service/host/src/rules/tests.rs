//! Tests of the conditions of rules, the order of rules, the counts of decisions, and the matching
//! and parsing of address prefixes.

use super::*;

fn end(text: &str, port: u16) -> Endpoint {
    let ip: IpAddr = text.parse().expect("an address");
    Endpoint::new(IpAddress::from(ip), port)
}

fn owner() -> Credentials {
    Credentials {
        uid: 33,
        groups: vec![33, 44],
    }
}

/// Returns a connection from 10.77.0.2 to port 80 of this host.
fn incoming(owner: &Credentials) -> Opening<'_> {
    Opening {
        direction: Direction::In,
        local: end("10.77.0.1", 80),
        peer: end("10.77.0.2", 5000),
        owner,
    }
}

fn refusing(rule: Rule) -> Rule {
    Rule {
        action: Action::Refuse,
        ..rule
    }
}

#[test]
fn without_rules_everything_opens_and_nothing_is_counted() {
    let mut set = RuleSet::default();
    assert!(set.accepts_all());
    assert_eq!(set.verdict(&incoming(&owner())), Action::Accept);
    assert_eq!(set.hits(), [0]);
}

#[test]
fn every_condition_counts_and_all_must_hold() {
    let fitting = Rule {
        direction: Some(Direction::In),
        local_ports: vec![1..=1, 79..=80],
        peer_ports: vec![5000..=5000],
        peers: vec!["10.77.0.0/24".parse().expect("a prefix")],
        users: vec![1, 33],
        groups: vec![44],
        ..Rule::default()
    };
    let refuses = |rule: Rule| {
        let mut set = RuleSet::new(vec![refusing(rule)], Action::Accept);
        set.verdict(&incoming(&owner())) == Action::Refuse
    };
    assert!(refuses(fitting.clone()) && refuses(Rule::default()));
    let spoilt: [fn(&mut Rule); 6] = [
        |rule| rule.direction = Some(Direction::Out),
        |rule| rule.local_ports = vec![81..=u16::MAX],
        |rule| rule.peer_ports = vec![80..=80],
        |rule| rule.peers = vec!["fd00::/8".parse().expect("a prefix")],
        |rule| rule.users = vec![0],
        |rule| rule.groups = vec![0],
    ];
    for (number, spoil) in spoilt.into_iter().enumerate() {
        let mut rule = fitting.clone();
        spoil(&mut rule);
        assert!(!refuses(rule), "condition {number} does not matter");
    }
}

#[test]
fn the_first_rule_that_fits_decides_and_is_counted() {
    let of_port = |port: u16, action| Rule {
        action,
        local_ports: vec![port..=port],
        ..Rule::default()
    };
    let rules = vec![
        of_port(22, Action::Drop),
        of_port(80, Action::Accept),
        of_port(80, Action::Refuse),
    ];
    let mut set = RuleSet::new(rules, Action::Refuse);
    let owner = owner();
    let opening = incoming(&owner);
    assert_eq!(set.verdict(&opening), Action::Accept);
    assert_eq!(set.uncounted_action(&opening), Action::Accept);
    let ssh = Opening {
        local: end("10.77.0.1", 22),
        ..opening
    };
    assert_eq!(set.verdict(&ssh), Action::Drop);
    let other = Opening {
        local: end("10.77.0.1", 443),
        ..opening
    };
    assert_eq!(set.verdict(&other), Action::Refuse);
    assert_eq!(set.hits(), [1, 1, 0, 1]);
}

#[test]
fn prefixes_match_addresses_of_their_version_only() {
    let contains = |prefix: &str, addr: &str| {
        let prefix: Prefix = prefix.parse().expect("a prefix");
        prefix.contains(end(addr, 1).addr)
    };
    assert!(contains("10.0.0.0/8", "10.255.1.2"));
    assert!(!contains("10.0.0.0/8", "11.0.0.0"));
    assert!(contains("10.1.2.3", "10.1.2.3") && !contains("10.1.2.3", "10.1.2.4"));
    assert!(contains("0.0.0.0/0", "192.0.2.1") && !contains("0.0.0.0/0", "fd00::1"));
    assert!(contains("::/0", "fd00::1") && !contains("::/0", "192.0.2.1"));
    assert!(contains("fd00::/8", "fdff::1") && !contains("fd00::/8", "fe80::1"));
    for bad in [
        "",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "fd00::/129",
        "fd00::1/64",
        "10.0/8",
        "x",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
    ] {
        assert_eq!(bad.parse::<Prefix>(), Err(BadPrefix), "{bad}");
    }
}
