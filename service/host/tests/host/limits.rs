//! Tests of the limits of a host, the stack of one core of the service: one user takes all that the
//! limits allow, and other users are still served.

use std::sync::Arc;

use tidelane_abi::{
    CONTROL_RING_LEN, ControlEvent, ControlRequest, close_cause, control_event, control_request,
    not_accelerated,
};
use tidelane_engine::EngineConfig;
use tidelane_host::{
    Holder, Listen, ListenError, ProgramId,
    accounts::{Resource, User, UserId, Weight},
};
use tidelane_ring::{
    ControlEventConsumer, ControlRequestProducer, Layout, ProgramRegion, new_control_request,
};
use tidelane_time::Duration;
use tidelane_wire::{Endpoint, IpAddress, MacAddress, SegmentHeader, TcpFlags};

use crate::{
    frames::OURS,
    rig::{Core, Count},
    stage::{Stage, segment, stranger},
};

const LOCAL: IpAddress = IpAddress::from_v4(OURS);
/// Id of the user who takes all that the limits allow.
const NOBODY: u32 = 65_534;
/// Id of another user.
const SOMEBODY: u32 = 1000;

/// A user with one program, which has one context: rings that the program shares with the host.
pub struct Guest {
    user: Arc<User>,
    id: ProgramId,
    requests: ControlRequestProducer,
    events: ControlEventConsumer,
}

fn user(uid: u32) -> Arc<User> {
    Arc::new(User::new(UserId(uid), Weight::User))
}

impl Guest {
    /// Registers a program of user `uid`.
    pub fn new(stage: &mut Stage, uid: u32) -> Self {
        let layout = Layout::new(4096, 64 << 20, 1 << 20).expect("a possible layout");
        let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
        let (user, host) = (user(uid), &mut stage.core.host);
        let id = host.add_program_of(&user, (format!("of {uid}"), uid), region.clone());
        assert!(host.add_context(id, 0, Box::new(Count(Arc::default()))));
        Self {
            user,
            id,
            requests: ControlRequestProducer::new(region.clone(), 0).expect("a context"),
            events: ControlEventConsumer::new(region, 0).expect("a context"),
        }
    }

    fn listen(&self, stage: &mut Stage, port: u16) -> Result<(), ListenError> {
        let listen = Listen {
            number: port.into(),
            key: port.into(),
            local: Endpoint::new(LOCAL, port),
            v6_only: false,
            group: None,
            backlog: 4096,
            within_host: false,
        };
        stage.core.host.listen(self.id, &listen).map(drop)
    }

    /// Sends a request. Returns false if the ring has no room.
    pub fn ask(&mut self, request: ControlRequest) -> bool {
        let pushed = self.requests.push(request).is_ok();
        self.requests.publish();
        pushed
    }

    /// Returns the host's events since the last call: answers, and accepted connections.
    pub fn events(&mut self) -> Vec<ControlEvent> {
        let events = std::iter::from_fn(|| self.events.pop().expect("a sound ring")).collect();
        self.events.release();
        events
    }

    fn join(&mut self, stage: &mut Stage, port: u16) {
        assert!(self.ask(ControlRequest {
            listener: port.into(),
            ..request(control_request::LISTENER_JOIN)
        }));
        stage.run();
    }

    /// Connects to port 80 of a stranger (a peer that the test plays), and returns the only event.
    pub fn connect(&mut self, stage: &mut Stage, number: u32) -> ControlEvent {
        assert!(self.ask(connect(stranger(number), 80)));
        stage.run();
        let events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events[0]
    }
}

fn request(kind: u32) -> ControlRequest {
    ControlRequest {
        cookie: 1,
        ..new_control_request(kind)
    }
}

/// Returns a request to connect to `port` of `peer`.
pub fn connect(peer: IpAddress, port: u16) -> ControlRequest {
    ControlRequest {
        peer_addr: peer.0,
        peer_port: port,
        ..request(control_request::CONNECT)
    }
}

/// Makes a host with the programs of two users.
fn two_users(config: EngineConfig) -> (Stage, Guest, Guest) {
    let mut stage = Stage::with_core(Core::with_config(config));
    let bad = Guest::new(&mut stage, NOBODY);
    let good = Guest::new(&mut stage, SOMEBODY);
    (stage, bad, good)
}

fn syn_to(port: u16) -> SegmentHeader {
    SegmentHeader {
        dst_port: port,
        ..segment(TcpFlags::SYN, 7, 0)
    }
}

/// Runs a handshake of a stranger with `port`. Returns true if the host accepts the SYN.
fn shake(stage: &mut Stage, number: u32, port: u16) -> bool {
    let from = stranger(number);
    let answers = stage.exchange(from, syn_to(port));
    let Some(answer) = answers.first() else {
        return false;
    };
    if !answer.flags.contains(TcpFlags::SYN) {
        return false;
    }
    let ack = SegmentHeader {
        dst_port: port,
        ..segment(TcpFlags::ACK, 8, answer.seq.to_u32().wrapping_add(1))
    };
    stage.exchange(from, ack);
    true
}

/// Adds local ports for connects, and resolves the link addresses of the first `strangers`
/// strangers.
pub fn ready_to_connect(stage: &mut Stage, guest: &mut Guest, strangers: u32) {
    let ports: Vec<u16> = (40_000..42_000).collect();
    stage.core.host.add_ports(stage.now, LOCAL, &ports);
    for number in 0..strangers {
        assert!(guest.ask(connect(stranger(number), 0)));
        stage.run();
        let mac = Some(MacAddress([2, 0, 0, 0, 0, 2]));
        let host = &mut stage.core.host;
        host.set_neighbour(stage.now, stranger(number), mac);
        stage.run();
    }
    guest.events();
}

#[test]
fn a_user_s_listener_takes_as_many_connections_as_the_user_may_have() {
    let (mut stage, bad, good) = two_users(EngineConfig::default());
    bad.user.set_limit(Resource::Connections, 3);
    bad.listen(&mut stage, 80).expect("a listener");
    good.listen(&mut stage, 81).expect("a listener");
    let shaken: Vec<bool> = (0..5).map(|from| shake(&mut stage, from, 80)).collect();
    assert_eq!(shaken, [true, true, true, false, false]);
    assert_eq!(stage.core.counter("drop_user_limit"), 2);
    assert!(shake(&mut stage, 9, 81));
    assert_eq!(bad.user.used(Resource::Connections), 3);
    assert_eq!(bad.user.used(Resource::HalfOpen), 0);
    // The connections end with the listener. Ended connections do not count towards the limit.
    stage.core.host.remove_program(stage.now, bad.id);
    stage.run();
    assert_eq!(bad.user.used(Resource::Connections), 0);
    assert_eq!(good.user.used(Resource::Connections), 1);
}

#[test]
fn a_suspended_listener_keeps_its_holders_and_members() {
    let (mut stage, first, mut second) = two_users(EngineConfig::default());
    for guest in [&first, &second] {
        guest.listen(&mut stage, 80).expect("a listener");
        guest.listen(&mut stage, 81).expect("a listener");
    }
    // The suspension of a listener resets the connections that wait for a member (a context that
    // accepts connections).
    assert!(shake(&mut stage, 1, 80));
    stage.core.host.suspend_listener(stage.now, 80);
    stage.core.host.suspend_listener(stage.now, 99);
    stage.run();
    assert_eq!(first.user.used(Resource::Connections), 0);
    assert!(!shake(&mut stage, 2, 80));
    assert!(shake(&mut stage, 3, 81));
    // A context joins the suspended listener. Another program listens again, and then releases the
    // listener.
    second.join(&mut stage, 80);
    first.listen(&mut stage, 80).expect("a listener");
    stage.core.host.unlisten(stage.now, first.id, 80);
    assert!(shake(&mut stage, 4, 80));
    stage.run();
    let accepted = second.events();
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert_eq!(accepted[0].kind, control_event::ACCEPTED);
    // A suspended listener ends with its last holder. The charges (holds) for the listener's
    // members end, too.
    stage.core.host.suspend_listener(stage.now, 80);
    stage.core.host.remove_program(stage.now, second.id);
    assert!(stage.core.host.listener_keys().iter().all(|key| *key != 80));
    assert_eq!(second.user.used(Resource::Holds), 0);
}

/// A connection that returns to its listener stays charged to the listener's user. Otherwise, a
/// user could evade the limit with programs that end before accept.
#[test]
fn a_returned_connection_still_counts_towards_the_limit() {
    let (mut stage, mut first, mut second) = two_users(EngineConfig::default());
    first.listen(&mut stage, 80).expect("a listener");
    second.listen(&mut stage, 80).expect("a listener");
    first.join(&mut stage, 80);
    assert!(shake(&mut stage, 1, 80));
    stage.run();
    assert_eq!(first.events().len(), 1);
    stage.core.host.remove_program(stage.now, first.id);
    stage.run();
    assert_eq!(first.user.used(Resource::Connections), 1);
    second.join(&mut stage, 80);
    assert_eq!(second.events().len(), 1);
    assert_eq!(first.user.used(Resource::Connections), 1);
    stage.core.host.remove_program(stage.now, second.id);
    stage.run();
    assert_eq!(first.user.used(Resource::Connections), 0);
}

/// The engine reuses the id of an ended listener for the next listener.
#[test]
fn a_connection_of_an_ended_listener_goes_to_no_other_listener() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    bad.listen(&mut stage, 80).expect("a listener");
    bad.join(&mut stage, 80);
    assert!(shake(&mut stage, 1, 80));
    stage.run();
    assert_eq!(bad.events().len(), 1);
    stage.core.host.unlisten(stage.now, bad.id, 80);
    good.listen(&mut stage, 81).expect("a listener");
    good.join(&mut stage, 81);
    stage.core.host.remove_program(stage.now, bad.id);
    stage.run();
    assert!(good.events().is_empty());
    assert_eq!(good.user.used(Resource::Connections), 0);
    assert_eq!(bad.user.used(Resource::Connections), 0);
}

#[test]
fn one_user_cannot_fill_a_core_with_connections() {
    let config = EngineConfig {
        flows_max: 64,
        ..EngineConfig::default()
    };
    let (mut stage, bad, good) = two_users(config);
    bad.listen(&mut stage, 80).expect("a listener");
    good.listen(&mut stage, 81).expect("a listener");
    // The first user gets 7/16 of the 64 connections, and the second user gets 7/32.
    let taken = (0..64).filter(|from| shake(&mut stage, *from, 80)).count();
    assert_eq!(taken, 28);
    let taken = (0..64).filter(|from| shake(&mut stage, *from, 81)).count();
    assert_eq!(taken, 14);
}

#[test]
fn beyond_a_user_s_half_open_connections_there_are_cookies() {
    let (mut stage, bad, good) = two_users(EngineConfig::default());
    bad.user.set_limit(Resource::HalfOpen, 20);
    for port in [80, 82, 84] {
        bad.listen(&mut stage, port).expect("a listener");
    }
    good.listen(&mut stage, 81).expect("a listener");
    for number in 0..30 {
        let port = [80, 82, 84][number as usize % 3];
        assert_eq!(stage.exchange(stranger(number), syn_to(port)).len(), 1);
    }
    assert_eq!(stage.core.counter("syncookies_sent"), 10);
    assert_eq!(bad.user.used(Resource::HalfOpen), 20);
    // A valid SYN cookie opens a connection. The connection does not count as half-open.
    assert!(shake(&mut stage, 100, 80));
    assert_eq!(bad.user.used(Resource::HalfOpen), 20);
    assert_eq!(bad.user.used(Resource::Connections), 21);
    // The limit of one user does not restrict the half-open connections of another user.
    for number in 200..300 {
        assert_eq!(stage.exchange(stranger(number), syn_to(81)).len(), 1);
    }
    assert_eq!(good.user.used(Resource::HalfOpen), 100);
    // Half-open connections that have timed out do not count towards the limits.
    for _ in 0..90 {
        stage.now += Duration::from_secs(1);
        stage.core.answers(stage.now);
    }
    assert_eq!(bad.user.used(Resource::HalfOpen), 0);
    assert_eq!(bad.user.used(Resource::Connections), 1);
}

#[test]
fn a_user_opens_as_many_connections_as_they_may_have() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    ready_to_connect(&mut stage, &mut good, 4);
    bad.user.set_limit(Resource::Connections, 2);
    for number in 0..2 {
        let event = bad.connect(&mut stage, number);
        assert_eq!(event.kind, control_event::CONNECT_STARTED);
    }
    let event = bad.connect(&mut stage, 2);
    assert_eq!(event.kind, control_event::CONNECT_FAILED);
    assert_eq!(event.cause, close_cause::LIMIT);
    let event = good.connect(&mut stage, 2);
    assert_eq!(event.kind, control_event::CONNECT_STARTED);
    // At the limit, the host leaves a connect to a peer within this host to the kernel.
    good.listen(&mut stage, 81).expect("a listener");
    assert!(bad.ask(connect(LOCAL, 81)));
    stage.run();
    let event = bad.events()[0];
    assert_eq!(event.kind, control_event::CONNECT_KERNEL);
    let connections = not_accelerated::limit(Resource::Connections.code());
    assert_eq!(event.cause, connections);
    // After the removal of the program and its flows, no connection counts towards the limit.
    stage.core.host.remove_program(stage.now, bad.id);
    stage.run();
    assert_eq!(bad.user.used(Resource::Connections), 0);
}

/// Each user may use only about half of the local ports for connections to the same peer.
#[test]
fn one_user_does_not_take_all_ports_to_a_peer() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    ready_to_connect(&mut stage, &mut good, 2);
    // The empty list tells the host that the kernel has no more ports than the 2,000 ports that
    // `ready_to_connect` added.
    stage.core.host.add_ports(stage.now, LOCAL, &[]);
    let started = |stage: &mut Stage, guest: &mut Guest, number| {
        (0..2100)
            .map(|_| guest.connect(stage, number))
            .filter(|event| event.kind == control_event::CONNECT_STARTED)
            .count()
    };
    let taken = started(&mut stage, &mut bad, 0);
    assert!((900..1100).contains(&taken), "{taken}");
    // Another user gets half of the rest. For connections to another peer, the first user again has
    // half of the ports.
    let left = started(&mut stage, &mut good, 0);
    assert!((400..600).contains(&left), "{left}");
    let elsewhere = started(&mut stage, &mut bad, 1);
    assert!((900..1100).contains(&elsewhere), "{elsewhere}");
}

#[test]
fn waiting_opens_of_a_user_are_bounded() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    bad.user.set_limit(Resource::ParkedOpens, 5);
    for number in 0..8 {
        assert!(bad.ask(connect(stranger(number), 80)));
    }
    stage.run();
    let refused = bad.events();
    assert_eq!(refused.len(), 3);
    assert!(
        refused
            .iter()
            .all(|event| event.cause == close_cause::LIMIT)
    );
    assert!(good.ask(connect(stranger(0), 80)));
    stage.run();
    assert_eq!(good.user.used(Resource::ParkedOpens), 1);
    assert_eq!(good.events().len(), 0);
    // The waiting opens (CONNECT requests) fail after three seconds, because the host has no local
    // ports.
    stage.now += Duration::from_secs(4);
    stage.run();
    assert_eq!(bad.events().len(), 5);
    assert_eq!(bad.user.used(Resource::ParkedOpens), 0);
    assert_eq!(good.events()[0].cause, close_cause::HOST_UNREACHABLE);
}

/// The host stops taking requests from a program that does not read the answers.
#[test]
fn unread_answers_stop_further_requests() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    let mut asked = 0;
    for _ in 0..100 {
        while bad.ask(connect(LOCAL, 9)) {
            asked += 1;
        }
        stage.run();
    }
    // Requests wait in the request ring, answers wait in the event ring, and the host has a backlog
    // of answers.
    let bound = 3 * CONTROL_RING_LEN as usize;
    assert!(asked <= bound, "{asked}");
    assert!(!stage.core.host.has_work(), "a full ring counts as work");
    // A full event ring of one program does not delay another program.
    assert!(good.ask(connect(LOCAL, 9)));
    stage.run();
    assert_eq!(good.events().len(), 1);
    // The host answers each request when the event ring has room.
    let mut answered = 0;
    for _ in 0..bound {
        answered += bad.events().len();
        stage.now += Duration::from_millis(1);
        stage.run();
    }
    assert_eq!(answered, asked);
}

/// A hold is the reference of a process to a connection that several processes have after `fork`.
#[test]
fn holds_of_children_are_bounded() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    ready_to_connect(&mut stage, &mut good, 4);
    for number in 0..4 {
        bad.connect(&mut stage, number);
    }
    good.connect(&mut stage, 0);
    bad.user.set_limit(Resource::Holds, 10);
    let from = Holder::Program(bad.id);
    let host = &mut stage.core.host;
    assert!(host.inherit(stage.now, from, 1).is_ok());
    assert_eq!(bad.user.used(Resource::Holds), 8);
    let refused = host.inherit(stage.now, from, 2).expect_err("a limit");
    assert_eq!(refused.to_string(), "limit: holds of user 65534 (10)");
    assert_eq!(bad.user.used(Resource::Holds), 8);
    assert!(host.inherit(stage.now, Holder::Program(good.id), 3).is_ok());
    // The end of the child frees its holds. A connection with a single holder does not count as a
    // hold.
    host.leave_all(stage.now, Holder::Child(1), false);
    assert_eq!(bad.user.used(Resource::Holds), 0);
    bad.user.set_limit(Resource::Holds, 3);
    assert!(host.inherit(stage.now, from, 4).is_err());
    assert_eq!(bad.user.used(Resource::Holds), 0);
}

/// Each context that joins a listener counts as a hold of its user.
#[test]
fn members_of_listeners_are_bounded() {
    let (mut stage, mut bad, mut good) = two_users(EngineConfig::default());
    bad.user.set_limit(Resource::Holds, 2);
    for port in [80, 82, 84] {
        bad.listen(&mut stage, port).expect("a listener");
        bad.join(&mut stage, port);
        // A second join has no effect.
        bad.join(&mut stage, port);
    }
    good.listen(&mut stage, 81).expect("a listener");
    good.join(&mut stage, 81);
    // A program cannot join a listener that it does not hold.
    good.join(&mut stage, 80);
    let used = [&bad, &good].map(|guest| guest.user.used(Resource::Holds));
    assert_eq!(used, [2, 1]);
    stage.core.host.remove_program(stage.now, bad.id);
    assert_eq!(bad.user.used(Resource::Holds), 0);
}
