//! Tests of listeners that share an address and port (SO_REUSEPORT), as in Linux's
//! `reuseport_select_sock`. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{
    EngineConfig, Event, FlowKey, ListenError, ListenerId, SocketOptions, TcpOptions,
};

use crate::rig::{ACK, RST, Rig, SYN, ack, syn};

/// The SO_REUSEPORT group of the shared listeners. `tidelaned` uses the user id of a socket as the
/// group.
const OWNER: Option<u32> = Some(1000);
/// Number of ports of the peer. The peer opens one connection from each port.
const PEERS: u16 = 3000;

/// Returns a rig whose peer sends its SYNs to a port that `count` listeners share. Also returns the
/// ids of these listeners.
fn shared(count: usize) -> (Rig, Vec<ListenerId>) {
    let mut rig = Rig::listening(EngineConfig::default(), SocketOptions::default());
    rig.key.local.port = 8080;
    let listeners = (0..count).map(|_| join(&mut rig, OWNER).expect("a listener"));
    let listeners = listeners.collect();
    (rig, listeners)
}

fn join(rig: &mut Rig, group: Option<u32>) -> Result<ListenerId, ListenError> {
    let local = rig.key.local;
    rig.engine
        .listen_in_group(local, 1 << 16, SocketOptions::default(), group)
}

/// Opens a connection from each of the peer's ports. Returns the listener of each connection.
fn open_all(rig: &mut Rig) -> Vec<ListenerId> {
    let open = |port| {
        rig.key = FlowKey {
            peer: tidelane_engine::Endpoint {
                port,
                ..rig.key.peer
            },
            ..rig.key
        };
        rig.iss = tidelane_engine::SeqNumber(0);
        rig.events();
        let reply = rig.push(syn(TcpOptions::NONE));
        assert_eq!(reply[0].flags, SYN | ACK);
        rig.push(ack(1, 1));
        let accepted = rig.events().into_iter().find_map(|event| match event {
            Event::Accepted(listener) => Some(listener),
            _ => None,
        });
        accepted.expect("the connection is established")
    };
    (10_000..10_000 + PEERS).map(open).collect()
}

fn count(all: &[ListenerId], listener: ListenerId) -> usize {
    all.iter().filter(|other| **other == listener).count()
}

#[test]
fn each_listener_of_a_group_gets_its_share() {
    let (mut rig, listeners) = shared(3);
    let went = open_all(&mut rig);
    for listener in &listeners {
        let share = count(&went, *listener);
        // The expected share is 1,000, with a standard deviation of 26.
        assert!((850..=1150).contains(&share), "{share} of {PEERS}");
    }
}

#[test]
fn a_listener_that_ends_leaves_its_share_to_the_others() {
    let (mut rig, listeners) = shared(3);
    let now = rig.now;
    rig.engine.unlisten(now, listeners[1], &mut rig.driver);
    let went = open_all(&mut rig);
    assert_eq!(count(&went, listeners[1]), 0);
    for listener in [listeners[0], listeners[2]] {
        let share = count(&went, listener);
        assert!((1350..=1650).contains(&share), "{share} of {PEERS}");
    }
    for listener in [listeners[0], listeners[2]] {
        rig.engine.unlisten(now, listener, &mut rig.driver);
    }
    rig.key.peer.port = 9;
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, RST | ACK);
}

#[test]
fn nobody_else_joins_a_group() {
    let (mut rig, _) = shared(2);
    for group in [None, Some(1001)] {
        assert_eq!(join(&mut rig, group), Err(ListenError::InUse));
    }
    // The rig's first listener, at port 80, has no group.
    rig.key.local.port = 80;
    assert_eq!(join(&mut rig, OWNER), Err(ListenError::InUse));
}

#[test]
fn a_full_listener_drops_its_share_and_no_other() {
    let (mut rig, listeners) = shared(2);
    // With a backlog of zero, a listener is full after one connection.
    rig.engine.set_backlog(listeners[0], 0);
    let mut dropped = 0;
    for port in 10_000..10_000 + PEERS {
        rig.key.peer.port = port;
        rig.iss = tidelane_engine::SeqNumber(0);
        match rig.push(syn(TcpOptions::NONE)).first() {
            Some(reply) => assert_eq!(reply.flags, SYN | ACK),
            None => dropped += 1,
        }
        rig.push(ack(1, 1));
    }
    assert!((1350..=1650).contains(&dropped), "{dropped} of {PEERS}");
    assert_eq!(rig.engine.counters().listen_overflows, dropped);
}
