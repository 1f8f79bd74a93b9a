//! Tests of the operator's rules for mux ports. The packets come from the wire, from other mux
//! ports, and from sockets on the service. `src/port_rules/tests.rs` tests the verdicts packet by
//! packet.
//!
//! The host is the stack of one core of the service. A mux port is shared memory over which a
//! program with a TCP/IP stack of its own exchanges packets with the host. A rule accepts, refuses
//! or drops a connection by the direction in which it opens, and by the user of the mux port.

use std::sync::{Arc, atomic::AtomicU32};

use tidelane_abi::control_event;
use tidelane_host::{Action, Associations, Credentials, Direction, PortOwner, Rule, RuleSet};
use tidelane_mux::{PortId, SendRefusal, Tuple};
use tidelane_packet_io::{BURST_MAX, Burst, GsoParameters, GsoPayload, PacketIo, TxChecksum};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TcpFlags,
    checksum, emit_tcp, parse_frame, parse_tcp, write_tcp_checksum,
};

use crate::{
    limits::{Guest, connect},
    rig::{Core, OUR_MAC},
    stage::{LOCAL, PORT, Stage, listen_as, segment, stranger},
};

/// TCP ports of the two programs with stacks of their own.
const ONE: u16 = 7000;
const OTHER: u16 = 7001;
const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
const RST_ACK: TcpFlags = TcpFlags(TcpFlags::RST.0 | TcpFlags::ACK.0);
const NOW: Instant = Instant::from_secs(1);

/// A program with a mux port.
struct Program {
    /// The program's ends of the mux port's packet rings, one for each core.
    ends: Vec<ProgramEnd>,
    /// Number of the mux port.
    id: PortId,
    /// TCP port that the program has claimed: the mux port gets the packets to this TCP port.
    claimed: u16,
}

impl Program {
    /// Opens a mux port for user `uid` on all `cores`, and claims TCP port `claimed`.
    fn open(cores: &mut [&mut Core], claimed: u16, uid: u32) -> Self {
        let id = PortId(claimed.into());
        let local = Endpoint::new(LOCAL, claimed);
        let associations = Arc::new(Associations::new([5; 16]));
        associations.prepare();
        let owner = PortOwner {
            credentials: Arc::new(credentials(uid)),
            associations,
        };
        let ends = cores.iter_mut().map(|core| {
            let (service, program) = PortRegions::heap(id.0, 256 * 1024).expect("there is memory");
            let end = ServiceEnd::new(&service, None);
            assert!(core.host.open_port(PortId(id.0 % 4096), end, owner.clone()));
            let ports = core.host.mux_ports_mut();
            let tuple = Tuple { protocol: 6, local };
            assert_eq!(ports.claim(tuple, PortId(id.0 % 4096)), Ok(()));
            ProgramEnd::new(&program, 1514, false)
        });
        Self {
            ends: ends.collect(),
            id: PortId(id.0 % 4096),
            claimed,
        }
    }

    fn header(&self, peer: u16, flags: TcpFlags, seq: u32, ack: u32) -> SegmentHeader {
        SegmentHeader {
            src_port: self.claimed,
            dst_port: peer,
            ..segment(flags, seq, ack)
        }
    }

    /// Sends a segment to an address through the rings of `core`.
    fn send(&mut self, core: usize, to: IpAddress, header: &SegmentHeader) {
        let frame = frame(OUR_MAC, (LOCAL, to), header);
        let end = &mut self.ends[core];
        end.tx_frame().expect("room")[..frame.len()].copy_from_slice(&frame);
        end.tx_commit(frame.len(), TxChecksum::Done);
        end.tx_flush();
    }

    /// Sends a GSO frame with 10,000 bytes of payload to an address.
    fn send_gso(&mut self, to: IpAddress, header: &SegmentHeader) {
        let frame = frame(OUR_MAC, (LOCAL, to), header);
        let headers_len = frame.len();
        let mut whole = frame;
        let ip_len = (headers_len - 14 + 10_000) as u16;
        whole[16..18].copy_from_slice(&ip_len.to_be_bytes());
        whole[24..26].fill(0);
        let sum = checksum::sum(&whole[14..34]).checksum();
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        let end = &mut self.ends[0];
        end.tx_gso_headers()[..headers_len].copy_from_slice(&whole);
        let parameters = GsoParameters {
            headers_len: headers_len as u16,
            segment_size: 1448,
            tcp_start: 34,
            is_v6: false,
        };
        let payload = GsoPayload::Private([&[7; 10_000], &[]]);
        end.tx_gso_send(payload, parameters).expect("room");
        end.tx_flush();
    }

    /// Returns the flags, SEG.SEQ and SEG.ACK of the segments that have arrived through the rings
    /// of `core`.
    fn received(&mut self, core: usize) -> Vec<(TcpFlags, u32, u32)> {
        let end = &mut self.ends[core];
        let mut burst = end.new_burst();
        end.rx_burst(&mut burst, BURST_MAX);
        let segments = burst.iter().map(|frame| {
            let packet = parse_frame(frame).expect("a packet");
            let segment = parse_tcp(packet.payload).expect("a segment");
            (segment.flags, segment.seq.to_u32(), segment.ack.to_u32())
        });
        let segments = segments.collect();
        end.rx_release(&mut burst);
        segments
    }

    /// Returns the number of packets of the program that the rules refused.
    fn refused(&self, core: &Core) -> u64 {
        let counters = core.host.mux_ports().port_counters(self.id);
        let counters = counters.expect("an open port");
        counters
            .refused
            .get(&SendRefusal::Rule)
            .copied()
            .unwrap_or(0)
    }
}

fn credentials(uid: u32) -> Credentials {
    Credentials {
        uid,
        groups: vec![uid],
    }
}

/// Returns a frame from the address `ends.0` to the address `ends.1`. `mac` is the source MAC
/// address.
fn frame(mac: MacAddress, ends: (IpAddress, IpAddress), header: &SegmentHeader) -> Vec<u8> {
    let template = HeaderTemplate::new(mac, OUR_MAC, ends.0, ends.1)
        .expect("both addresses have one IP version");
    let (start, len) = (template.headers_len(), header.len());
    let mut frame = vec![0; start + len];
    template.write(&mut frame, len as u16, Ecn::NotEct, 0);
    let tcp = &mut frame[start..];
    emit_tcp(tcp, header);
    write_tcp_checksum(tcp, template.pseudo_header(len as u16), checksum::Sum::ZERO);
    frame
}

/// Returns a rule for one direction and the programs of one user.
fn of_user(direction: Direction, uid: u32, action: Action) -> Rule {
    Rule {
        action,
        direction: Some(direction),
        users: vec![uid],
        ..Rule::default()
    }
}

/// Sets the rules. A connection that no rule matches is accepted.
fn set_rules(core: &mut Core, rules: &[Rule]) {
    let set = RuleSet::new(rules.to_vec(), Action::Accept);
    core.host.set_rules(NOW, set);
}

/// Returns a segment of a stranger (a peer that the test plays) to TCP port [`ONE`].
fn to_one(flags: TcpFlags, seq: u32, ack: u32) -> SegmentHeader {
    SegmentHeader {
        dst_port: ONE,
        ..segment(flags, seq, ack)
    }
}

/// Returns the flags of the answers to a segment of a stranger.
fn answers(stage: &mut Stage, header: SegmentHeader) -> Vec<TcpFlags> {
    let answers = stage.exchange(stranger(1), header);
    answers.iter().map(|answer| answer.flags).collect()
}

#[test]
fn a_peer_is_accepted_refused_or_dropped() {
    let mut stage = Stage::new();
    let mut port = Program::open(&mut [&mut stage.core], ONE, 33);
    for (action, expected, received) in [
        (Action::Accept, vec![], 1),
        (Action::Refuse, vec![RST_ACK], 0),
        (Action::Drop, vec![], 0),
    ] {
        set_rules(&mut stage.core, &[of_user(Direction::In, 33, action)]);
        let denied = stage.core.counter("drop_rule_denied");
        assert_eq!(answers(&mut stage, to_one(SYN, 7, 0)), expected, "{action}");
        assert_eq!(port.received(0).len(), received, "{action}");
        // The rule has decided once, and the default has not decided.
        assert_eq!(stage.core.host.rule_hits(), [1, 0], "{action}");
        let denied = stage.core.counter("drop_rule_denied") - denied;
        assert_eq!(denied, u64::from(action != Action::Accept), "{action}");
    }
    // A segment whose checksum is wrong gets no answer.
    set_rules(
        &mut stage.core,
        &[of_user(Direction::In, 33, Action::Refuse)],
    );
    let mut broken = frame(stage.router, (stranger(1), LOCAL), &to_one(SYN, 7, 0));
    *broken.last_mut().expect("a byte") ^= 1;
    stage.core.receives(&broken);
    stage.run();
    assert!(stage.answers(stranger(1)).is_empty() && port.received(0).is_empty());
    // An ACK is answered with a RST, as from a closed TCP port. A RST gets no answer.
    let answer = stage.exchange(stranger(1), to_one(ACK, 7, 99));
    assert_eq!(answer.len(), 1);
    assert_eq!(
        (answer[0].flags, answer[0].seq),
        (TcpFlags::RST, SeqNumber(99))
    );
    assert!(answers(&mut stage, to_one(TcpFlags::RST, 7, 0)).is_empty());
    // A rule for another user, or for the other direction, does not apply.
    for rule in [
        of_user(Direction::In, 34, Action::Refuse),
        of_user(Direction::Out, 33, Action::Refuse),
    ] {
        set_rules(&mut stage.core, &[rule]);
        assert!(answers(&mut stage, to_one(SYN, 7, 0)).is_empty());
        assert_eq!(port.received(0).len(), 1);
    }
}

#[test]
fn a_port_does_not_reach_a_refused_peer() {
    let mut stage = Stage::new();
    let mut port = Program::open(&mut [&mut stage.core], ONE, 33);
    for action in [Action::Refuse, Action::Drop] {
        let before = port.refused(&stage.core);
        set_rules(&mut stage.core, &[of_user(Direction::Out, 33, action)]);
        for flags in [SYN, ACK, SYN_ACK, RST_ACK, TcpFlags::RST, TcpFlags::FIN] {
            let header = port.header(25, flags, 1, 2);
            port.send(0, stranger(1), &header);
        }
        let header = port.header(25, ACK, 1, 2);
        port.send_gso(stranger(1), &header);
        stage.run();
        assert!(stage.core.sent().is_empty(), "{action}: a frame was sent");
        assert!(
            port.received(0).is_empty(),
            "{action}: the mux port got an answer"
        );
        // The host refused six single segments and the GSO frame.
        assert_eq!(port.refused(&stage.core) - before, 7);
        assert_eq!(stage.core.host.rule_hits(), [7, 0]);
    }
    assert_eq!(stage.core.counter("drop_rule_denied"), 14);
    set_rules(&mut stage.core, &[]);
    let header = port.header(25, ACK, 1, 2);
    port.send_gso(stranger(1), &header);
    stage.run();
    // The GSO frame has seven segments.
    assert_eq!(stage.core.sent().len(), 7, "without rules");
}

/// The rules forbid the program of a mux port to open connections. The program may nevertheless
/// answer its clients, over any core.
#[test]
fn a_server_answers_its_clients_over_any_core() {
    let rings = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let mut cores = Core::several(&rings);
    for core in &mut cores {
        set_rules(core, &[of_user(Direction::Out, 33, Action::Refuse)]);
    }
    let [first, second] = &mut cores[..] else {
        panic!("two cores");
    };
    let mut port = Program::open(&mut [first, second], ONE, 33);
    let router = MacAddress([2, 0, 0, 0, 0, 2]);
    let ends = (stranger(1), LOCAL);
    cores[0].receives(&frame(router, ends, &to_one(SYN, 7, 0)));
    cores[0].answers(NOW);
    assert_eq!(port.received(0), [(SYN, 7, 0)]);
    let answer = port.header(4242, SYN_ACK, 50, 8);
    port.send(1, stranger(1), &answer);
    assert_eq!(cores[1].answers(NOW).len(), 1, "the answer was not sent");
    cores[0].receives(&frame(router, ends, &to_one(ACK, 8, 51)));
    cores[0].answers(NOW);
    assert_eq!(port.received(0), [(ACK, 8, 51)]);
    for core in [1, 0] {
        let data = port.header(4242, ACK, 51, 8);
        port.send(core, stranger(1), &data);
        assert_eq!(cores[core].answers(NOW).len(), 1);
        let other = port.header(4243, ACK, 51, 8);
        port.send(core, stranger(1), &other);
        assert!(
            cores[core].answers(NOW).is_empty(),
            "a segment to another TCP port of the client was sent"
        );
    }
}

/// New rules also apply to the open connections of a mux port. If the new rules refuse a
/// connection, the peer's next segment gets a RST, and the mux port gets no more packets of the
/// connection.
#[test]
fn new_rules_apply_to_open_ports() {
    let mut stage = Stage::new();
    let mut port = Program::open(&mut [&mut stage.core], ONE, 33);
    set_rules(
        &mut stage.core,
        &[of_user(Direction::Out, 34, Action::Refuse)],
    );
    assert!(answers(&mut stage, to_one(SYN, 7, 0)).is_empty());
    let answer = port.header(4242, SYN_ACK, 50, 8);
    port.send(0, stranger(1), &answer);
    stage.run();
    assert_eq!(stage.core.sent().len(), 1);
    assert!(answers(&mut stage, to_one(ACK, 8, 51)).is_empty());
    assert_eq!(port.received(0).len(), 2);
    // A rule for the other direction does not matter to this connection.
    set_rules(
        &mut stage.core,
        &[of_user(Direction::Out, 33, Action::Drop)],
    );
    assert!(answers(&mut stage, to_one(ACK, 8, 51)).is_empty());
    assert_eq!(port.received(0).len(), 1);
    set_rules(
        &mut stage.core,
        &[of_user(Direction::In, 33, Action::Refuse)],
    );
    assert_eq!(answers(&mut stage, to_one(ACK, 8, 51)), [TcpFlags::RST]);
    let data = port.header(4242, ACK, 51, 8);
    port.send(0, stranger(1), &data);
    stage.run();
    assert!(stage.core.sent().is_empty() && port.received(0).is_empty());
    set_rules(&mut stage.core, &[]);
    port.send(0, stranger(1), &data);
    stage.run();
    assert_eq!(stage.core.sent().len(), 1);
}

/// The rules apply at both ends of a connection from a mux port to a listener on the service.
#[test]
fn a_port_and_a_listener_are_judged_at_both_ends() {
    for (rule, answer) in [
        (of_user(Direction::Out, 34, Action::Refuse), Some(SYN_ACK)),
        (of_user(Direction::Out, 33, Action::Refuse), None),
        (of_user(Direction::In, 44, Action::Refuse), Some(RST_ACK)),
        (of_user(Direction::In, 44, Action::Drop), None),
    ] {
        let mut stage = Stage::new();
        let _program = listen_as(&mut stage.core.host, 1 << 20, credentials(44));
        let mut port = Program::open(&mut [&mut stage.core], ONE, 33);
        set_rules(&mut stage.core, std::slice::from_ref(&rule));
        let syn = port.header(PORT, SYN, 7, 0);
        port.send(0, LOCAL, &syn);
        if rule.direction == Some(Direction::Out) && rule.users == [33] {
            // The rules also stop data that the mux port sends without a handshake.
            let data = port.header(PORT, ACK, 8, 1);
            port.send(0, LOCAL, &data);
        }
        stage.run();
        let flags: Vec<TcpFlags> = port.received(0).iter().map(|got| got.0).collect();
        assert_eq!(flags.first().copied(), answer, "{rule}: {flags:?}");
        assert!(stage.core.sent().is_empty());
    }
}

/// If a program on the service connects to a mux port, the rules for the user of the mux port apply
/// to the connection.
#[test]
fn a_program_on_the_service_is_refused_by_a_ports_rules() {
    for (action, syns) in [(Action::Accept, 1), (Action::Refuse, 0), (Action::Drop, 0)] {
        let mut stage = Stage::new();
        let mut guest = Guest::new(&mut stage, 1000);
        let ports: Vec<u16> = (40_000..40_100).collect();
        stage.core.host.add_ports(stage.now, LOCAL, &ports);
        let mut port = Program::open(&mut [&mut stage.core], ONE, 33);
        set_rules(&mut stage.core, &[of_user(Direction::In, 33, action)]);
        assert!(guest.ask(connect(LOCAL, ONE)));
        for _ in 0..3 {
            stage.run();
        }
        assert_eq!(port.received(0).len(), syns, "{action}");
        let events = guest.events();
        let failed = stage.core.counter("attempt_fails");
        assert_eq!(failed, u64::from(action == Action::Refuse), "{action}");
        assert_eq!(events[0].kind, control_event::CONNECT_STARTED, "{action}");
    }
}

/// The rules for the users of both mux ports apply to a packet from one mux port to the other.
#[test]
fn ports_are_judged_at_both_ends() {
    for (rule, arrives, answer) in [
        (of_user(Direction::In, 33, Action::Refuse), true, false),
        (of_user(Direction::Out, 33, Action::Refuse), false, false),
        (of_user(Direction::In, 34, Action::Drop), false, false),
        (of_user(Direction::In, 34, Action::Refuse), false, true),
    ] {
        let mut stage = Stage::new();
        let mut one = Program::open(&mut [&mut stage.core], ONE, 33);
        let mut other = Program::open(&mut [&mut stage.core], OTHER, 34);
        set_rules(&mut stage.core, std::slice::from_ref(&rule));
        let syn = one.header(OTHER, SYN, 7, 0);
        one.send(0, LOCAL, &syn);
        stage.run();
        let got = other.received(0);
        assert_eq!(got.len(), usize::from(arrives), "{rule}");
        let expected = answer.then_some((RST_ACK, 0, 8));
        assert_eq!(one.received(0), Vec::from_iter(expected), "{rule}");
        assert!(stage.core.sent().is_empty());
        if arrives {
            let answer = other.header(ONE, SYN_ACK, 50, 8);
            other.send(0, LOCAL, &answer);
            stage.run();
            assert_eq!(one.received(0), [(SYN_ACK, 50, 8)]);
        }
    }
}

/// During a handshake, the claim to the connection's 3-tuple (protocol, local address, local port)
/// moves to the mux port of another user, who may not open connections. From then on, the rules for
/// the other user apply to the connection.
#[test]
fn a_moved_claim_is_judged_by_its_new_owner() {
    let mut stage = Stage::new();
    let mut one = Program::open(&mut [&mut stage.core], ONE, 33);
    let mut other = Program::open(&mut [&mut stage.core], OTHER, 34);
    set_rules(
        &mut stage.core,
        &[of_user(Direction::Out, 34, Action::Drop)],
    );
    let syn = one.header(25, SYN, 7, 0);
    one.send(0, stranger(1), &syn);
    stage.run();
    assert_eq!(stage.core.sent().len(), 1);
    let tuple = Tuple {
        protocol: 6,
        local: Endpoint::new(LOCAL, ONE),
    };
    let ports = stage.core.host.mux_ports_mut();
    assert!(ports.move_claim(tuple, one.id, other.id));
    let syn = one.header(25, SYN, 9, 0);
    other.send(0, stranger(1), &syn);
    let data = one.header(25, ACK, 8, 51);
    other.send(0, stranger(1), &data);
    stage.run();
    assert!(stage.core.sent().is_empty());
    assert_eq!(other.refused(&stage.core), 2);
    let answer = SegmentHeader {
        src_port: 25,
        ..to_one(SYN_ACK, 50, 8)
    };
    assert!(answers(&mut stage, answer).is_empty());
    assert!(one.received(0).is_empty() && other.received(0).is_empty());
}

/// If a new mux port has the number of a closed mux port, the rules for the new port's user apply.
#[test]
fn the_next_port_has_its_own_owner() {
    let mut stage = Stage::new();
    let one = Program::open(&mut [&mut stage.core], ONE, 33);
    set_rules(
        &mut stage.core,
        &[of_user(Direction::Out, 34, Action::Drop)],
    );
    assert!(stage.core.host.close_port(one.id).is_some());
    assert!(stage.core.host.close_port(one.id).is_none());
    let mut next = Program::open(&mut [&mut stage.core], ONE, 34);
    let syn = next.header(25, SYN, 7, 0);
    next.send(0, stranger(1), &syn);
    stage.now += Duration::from_millis(1);
    stage.run();
    assert!(stage.core.sent().is_empty());
    assert_eq!(next.refused(&stage.core), 1);
}
