//! Tests of the verdicts on packets of mux ports (packet rings of programs with TCP/IP stacks of
//! their own): handshakes, packets without a handshake, datagrams, ICMP errors, and changes of
//! rules and owners.

use tidelane_time::Duration;
use tidelane_wire::{
    Ecn, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, checksum, emit_tcp,
    write_tcp_checksum,
};

use super::*;
use crate::rules::Rule;

const LOCAL: Endpoint = Endpoint::v4([10, 0, 0, 1], 80);
const PEER: Endpoint = Endpoint::v4([10, 0, 0, 2], 5000);
const PORT: PortId = PortId(3);
const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);
const RST_ACK: TcpFlags = TcpFlags(TcpFlags::RST.0 | TcpFlags::ACK.0);
/// Initial sequence numbers of the mux port and of the peer.
const OURS: u32 = 100;
const THEIRS: u32 = 900;

/// A segment or datagram between [`LOCAL`] and [`PEER`].
#[derive(Clone, Copy)]
struct Sent {
    way: Way,
    protocol: u8,
    header: SegmentHeader,
    /// Length of the payload in bytes.
    payload: usize,
}

fn tcp(way: Way, flags: TcpFlags, seq: u32, ack: u32) -> Sent {
    let header = SegmentHeader {
        flags,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        ..SegmentHeader::default()
    };
    Sent {
        way,
        protocol: protocol::TCP,
        header,
        payload: 0,
    }
}

fn udp(way: Way) -> Sent {
    Sent {
        protocol: protocol::UDP,
        ..tcp(way, TcpFlags::default(), 0, 0)
    }
}

impl Sent {
    fn with_payload(self, payload: usize) -> Self {
        Self { payload, ..self }
    }

    fn frame(&self) -> Vec<u8> {
        let (src, dst) = match self.way {
            Way::In => (PEER, LOCAL),
            Way::Out => (LOCAL, PEER),
        };
        let header = SegmentHeader {
            src_port: src.port,
            dst_port: dst.port,
            ..self.header
        };
        let is_udp = self.protocol == protocol::UDP;
        let len = if is_udp { 8 } else { header.len() } + self.payload;
        let mut frame = ip_frame(src.addr, dst.addr, len);
        let start = frame.len() - len;
        if is_udp {
            frame[23] = protocol::UDP;
            frame[start..start + 2].copy_from_slice(&src.port.to_be_bytes());
            frame[start + 2..start + 4].copy_from_slice(&dst.port.to_be_bytes());
            frame[start + 4..start + 6].copy_from_slice(&(len as u16).to_be_bytes());
            finish_ip_header(&mut frame);
        } else {
            emit_tcp(&mut frame[start..], &header);
            let pseudo = checksum::pseudo_header(src.addr, dst.addr, protocol::TCP, len as u32);
            write_tcp_checksum(&mut frame[start..], pseudo, checksum::Sum::ZERO);
        }
        frame
    }
}

/// Returns a frame with an IPv4 header and `len` zero bytes.
fn ip_frame(src: IpAddress, dst: IpAddress, len: usize) -> Vec<u8> {
    let macs = [MacAddress([2; 6]), MacAddress([4; 6])];
    let template = HeaderTemplate::new(macs[0], macs[1], src, dst)
        .expect("both addresses have one IP version");
    let mut frame = vec![0; template.headers_len() + len];
    template.write(&mut frame, len as u16, Ecn::NotEct, 0);
    frame
}

fn finish_ip_header(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum::sum(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Returns an ICMP error about a segment that the mux port has sent with sequence number `seq`.
fn icmp_about(seq: u32) -> Vec<u8> {
    icmp_quoting(&tcp(Way::Out, SYN, seq, 0))
}

/// Returns an ICMP error about a packet that the mux port has sent.
fn icmp_quoting(sent: &Sent) -> Vec<u8> {
    let quote = sent.frame();
    let mut icmp = vec![3, 1, 0, 0, 0, 0, 0, 0];
    icmp.extend_from_slice(&quote[14..42]);
    let sum = checksum::sum(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let router = IpAddress::from_v4([10, 0, 0, 254]);
    let mut frame = ip_frame(router, LOCAL.addr, icmp.len());
    let start = frame.len() - icmp.len();
    frame[23] = protocol::ICMP;
    frame[start..].copy_from_slice(&icmp);
    finish_ip_header(&mut frame);
    frame
}

/// Rules, and the mux port [`PORT`] with its owner.
struct Scene {
    rules: RuleSet,
    owners: PortOwners,
    counters: HostCounters,
    now: Instant,
    associations: Arc<Associations>,
}

impl Scene {
    fn new(inbound: Action, outbound: Action) -> Self {
        let associations = Arc::new(Associations::new([7; 16]));
        associations.prepare();
        let mut scene = Self {
            rules: RuleSet::default(),
            owners: PortOwners::default(),
            counters: HostCounters::default(),
            now: Instant::from_secs(1000),
            associations,
        };
        scene.own(33);
        scene.set(inbound, outbound);
        scene
    }

    /// Sets two rules: one for connections that peers open, and one for connections that the mux
    /// port opens.
    fn set(&mut self, inbound: Action, outbound: Action) {
        let rule = |direction, action| Rule {
            action,
            direction: Some(direction),
            ..Rule::default()
        };
        let rules = vec![rule(Direction::In, inbound), rule(Direction::Out, outbound)];
        self.set_rules(rules);
    }

    fn set_rules(&mut self, rules: Vec<Rule>) {
        self.rules = RuleSet::new(rules, Action::Accept);
        self.owners.rules_have_changed();
    }

    /// Gives the mux port to a program of this group.
    fn own(&mut self, group: u32) {
        let credentials = Credentials {
            uid: 7,
            groups: vec![group],
        };
        let owner = PortOwner {
            credentials: Arc::new(credentials),
            associations: self.associations.clone(),
        };
        self.owners.set(PORT, owner);
    }

    fn judge_frame(&mut self, way: Way, frame: &[u8]) -> Verdict {
        let mut filter = PortRules {
            rules: &mut self.rules,
            owners: &mut self.owners,
            counters: &mut self.counters,
            now: self.now,
        };
        assert!(!filter.passes_all());
        filter.judge(PORT, way, frame)
    }

    fn judge(&mut self, sent: Sent) -> Verdict {
        self.judge_frame(sent.way, &sent.frame())
    }

    fn passes(&mut self, sent: Sent) -> bool {
        self.judge(sent) == Verdict::Pass
    }

    /// Opens a connection. `way` is the direction of the opener's packets.
    fn open(&mut self, way: Way) {
        self.open_from(way, 0);
    }

    /// Opens a connection, with `offset` added to both initial sequence numbers.
    fn open_from(&mut self, way: Way, offset: u32) {
        let back = back(way);
        let (seq, ack) = numbers(way);
        let (seq, ack) = (seq + offset, ack + offset);
        assert!(self.passes(tcp(way, SYN, seq, 0)), "SYN");
        assert!(self.passes(tcp(back, SYN_ACK, ack, seq + 1)), "SYN-ACK");
        assert!(self.passes(tcp(way, ACK, seq + 1, ack + 1)), "the last ACK");
    }

    fn denied(&self) -> u64 {
        self.counters.drops[DropReason::RuleDenied.index()]
    }
}

fn back(way: Way) -> Way {
    match way {
        Way::In => Way::Out,
        Way::Out => Way::In,
    }
}

/// Returns the initial sequence numbers of the sender and of the receiver.
fn numbers(way: Way) -> (u32, u32) {
    match way {
        Way::In => (THEIRS, OURS),
        Way::Out => (OURS, THEIRS),
    }
}

/// Returns a scene in which the rules accept only connections in the direction `way`. The action
/// for the other direction is `otherwise`.
fn only(way: Way, otherwise: Action) -> Scene {
    match way {
        Way::In => Scene::new(Action::Accept, otherwise),
        Way::Out => Scene::new(otherwise, Action::Accept),
    }
}

const WAYS: [Way; 2] = [Way::In, Way::Out];

#[test]
fn without_rules_all_packets_pass_unseen() {
    let mut scene = Scene::new(Action::Drop, Action::Drop);
    scene.rules = RuleSet::default();
    let filter = PortRules {
        rules: &mut scene.rules,
        owners: &mut scene.owners,
        counters: &mut scene.counters,
        now: scene.now,
    };
    assert!(filter.passes_all());
}

#[test]
fn a_connection_in_an_accepted_direction_has_all_its_segments() {
    for way in WAYS {
        let mut scene = only(way, Action::Refuse);
        scene.open(way);
        assert_eq!(scene.rules.hits().iter().sum::<u64>(), 1, "one decision");
        for (way, (seq, ack)) in [(way, numbers(way)), (back(way), numbers(back(way)))] {
            for flags in [ACK, ACK.union(TcpFlags::FIN), RST_ACK, TcpFlags::RST] {
                let data = tcp(way, flags, seq + 5000, ack + 7000).with_payload(100);
                assert!(scene.passes(data), "{way:?} {flags:?}");
            }
        }
        // A side retransmits its SYN-ACK or SYN if the acknowledgment is lost.
        let (seq, ack) = numbers(way);
        assert!(scene.passes(tcp(back(way), SYN_ACK, ack, seq + 1)));
        assert!(scene.passes(tcp(way, SYN, seq, 0)));
        // The other side may not open another connection of the same 5-tuple.
        assert!(!scene.passes(tcp(back(way), SYN, ack, 0)));
        // An idle connection stays in the table.
        scene.now += Duration::from_secs(7 * 86_400);
        assert!(scene.passes(tcp(back(way), ACK, ack + 1, seq + 1)));
    }
}

#[test]
fn a_closed_port_answers_a_syn_by_a_rst() {
    for way in WAYS {
        let mut scene = only(way, Action::Drop);
        let (seq, _) = numbers(way);
        assert!(scene.passes(tcp(way, SYN, seq, 0)));
        assert!(scene.passes(tcp(back(way), RST_ACK, 0, seq + 1)));
        // The RST has opened no connection.
        assert!(!scene.passes(tcp(back(way), ACK, 1, seq)));
        assert!(!scene.passes(tcp(way, ACK, seq + 1, 1)));
    }
}

/// A side restarts during a handshake. The restarted side answers the next segment of the other
/// side by a RST without ACK. The sequence number of the RST is the acknowledgment number of that
/// segment.
#[test]
fn a_restarted_side_resets_a_handshake() {
    for way in WAYS {
        let mut scene = only(way, Action::Drop);
        let (seq, ack) = numbers(way);
        let client = |seq| tcp(way, TcpFlags::RST, seq, 0);
        let server = |seq| tcp(back(way), TcpFlags::RST, seq, 0);
        assert!(!scene.passes(client(seq + 1)) && !scene.passes(server(ack + 1)));
        assert!(scene.passes(tcp(way, SYN, seq, 0)));
        assert!(scene.passes(client(seq + 1)), "{way:?}");
        assert!(!scene.passes(client(seq)) && !scene.passes(client(seq + 2)));
        assert!(!scene.passes(server(seq + 1)) && !scene.passes(server(ack + 1)));
        assert!(scene.passes(tcp(back(way), SYN_ACK, ack, seq + 1)));
        assert!(scene.passes(server(ack + 1)), "{way:?}");
        assert!(!scene.passes(server(ack)) && !scene.passes(server(seq + 1)));
        // The RSTs have opened no connection.
        assert!(!scene.passes(tcp(back(way), ACK, ack + 1, seq)));
    }
}

/// TCP Fast Open (RFC 7413): a SYN has data, and the answer acknowledges the SYN with or without
/// the data. The server sends data before an ACK of the client. The first ACK of the client
/// acknowledges the SYN-ACK and this data.
#[test]
fn data_in_the_handshake_passes() {
    for way in WAYS {
        for taken in [0, 50] {
            let mut scene = only(way, Action::Refuse);
            let (seq, ack) = numbers(way);
            let next = seq + 1 + taken;
            assert!(scene.passes(tcp(way, SYN, seq, 0).with_payload(50)));
            assert!(scene.passes(tcp(back(way), SYN_ACK, ack, next)));
            let early = tcp(back(way), ACK, ack + 1, next).with_payload(30);
            assert!(scene.passes(early));
            assert!(scene.passes(tcp(way, ACK, next, ack + 31)));
            assert!(scene.passes(tcp(back(way), ACK, ack + 500, next + 500)));
        }
    }
}

/// The rules accept only connections from one side. Without a handshake, no segment of the other
/// side passes, whatever its flags are.
#[test]
fn a_segment_without_a_handshake_does_not_pass() {
    for way in WAYS {
        let mut scene = only(back(way), Action::Refuse);
        for flags in 0..=255 {
            for payload in [0, 1000] {
                let sent = tcp(way, TcpFlags(flags), 7, 8).with_payload(payload);
                assert_eq!(scene.judge(sent), Verdict::Refuse, "{way:?} {flags:#x}");
            }
        }
        assert_eq!(scene.denied(), 512);
        assert_eq!(scene.rules.hits().iter().sum::<u64>(), 512);
        // A SYN of the accepted side permits only the answers to this SYN.
        let (ours, theirs) = numbers(way);
        assert!(scene.passes(tcp(back(way), SYN, theirs, 0)));
        for flags in 0..=255 {
            for ack in [theirs - 1, theirs, theirs + 2, ours, 0] {
                let sent = tcp(way, TcpFlags(flags), ours, ack).with_payload(10);
                assert_eq!(scene.judge(sent), Verdict::Refuse, "{way:?} {flags:#x}");
            }
        }
        // Without the ACK flag, the acknowledgment number has no meaning.
        assert!(!scene.passes(tcp(way, TcpFlags::RST, ours, theirs + 1)));
        assert!(!scene.passes(tcp(way, TcpFlags::FIN, ours, theirs + 1)));
        assert!(scene.passes(tcp(way, SYN_ACK, ours, theirs + 1)));
    }
}

/// The rules let the program open no connection. Neither random segments of the program nor random
/// RSTs of the peer pass.
#[test]
fn a_program_cannot_talk_to_a_refused_peer() {
    let mut scene = Scene::new(Action::Accept, Action::Drop);
    let mut random = 1u64;
    for _ in 0..200_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let part = |shift: u32| (random >> shift) as u32;
        let sent = tcp(
            Way::Out,
            TcpFlags((random >> 56) as u8),
            part(33) % 16,
            part(40) % 16,
        );
        assert!(!scene.passes(sent), "{:?}", sent.header);
        let reset = tcp(Way::In, RST_ACK, part(45) % 16, part(50) % 16);
        assert!(!scene.passes(reset), "a RST for a segment that never left");
    }
}

#[test]
fn both_sides_may_open_at_once_if_both_directions_are_accepted() {
    for (inbound, outbound) in [
        (Action::Accept, Action::Accept),
        (Action::Accept, Action::Refuse),
        (Action::Refuse, Action::Accept),
    ] {
        for answers in WAYS {
            let mut scene = Scene::new(inbound, outbound);
            let opens_in = scene.passes(tcp(Way::In, SYN, THEIRS, 0));
            let opens_out = scene.passes(tcp(Way::Out, SYN, OURS, 0));
            assert_eq!(opens_in, inbound == Action::Accept);
            assert_eq!(opens_out, outbound == Action::Accept);
            let (seq, ack) = numbers(answers);
            let answered = scene.passes(tcp(answers, SYN_ACK, seq, ack + 1));
            let asked = if answers == Way::In {
                opens_out
            } else {
                opens_in
            };
            assert_eq!(answered, asked, "a SYN-ACK needs a SYN that passed");
            if opens_in && opens_out {
                let (seq, ack) = numbers(back(answers));
                assert!(scene.passes(tcp(back(answers), SYN_ACK, seq, ack + 1)));
                assert!(scene.passes(tcp(answers, ACK, ack + 1, seq + 1)));
            }
        }
    }
}

#[test]
fn the_verdict_is_the_action_of_the_denying_rule() {
    for (action, verdict) in [
        (Action::Refuse, Verdict::Refuse),
        (Action::Drop, Verdict::Drop),
    ] {
        for way in WAYS {
            let mut scene = only(back(way), action);
            for flags in [SYN, ACK, SYN_ACK] {
                assert_eq!(scene.judge(tcp(way, flags, 1, 2)), verdict);
            }
            assert_eq!(scene.judge(udp(way)), verdict);
            let sum = scene.rules.hits().iter().sum::<u64>();
            assert_eq!((sum, scene.denied()), (4, 4));
        }
    }
}

#[test]
fn new_rules_judge_known_connections_by_their_opener() {
    for way in WAYS {
        let mut scene = only(way, Action::Accept);
        scene.open(way);
        let other = only(back(way), Action::Refuse);
        scene.rules = other.rules;
        scene.owners.rules_have_changed();
        for way in WAYS {
            let (seq, ack) = numbers(way);
            let data = tcp(way, ACK, seq + 10, ack + 10).with_payload(10);
            assert_eq!(scene.judge(data), Verdict::Refuse);
        }
        scene.set_rules(vec![Rule {
            peer_ports: vec![1..=2],
            action: Action::Drop,
            ..Rule::default()
        }]);
        let (seq, ack) = numbers(way);
        assert!(scene.passes(tcp(way, ACK, seq + 10, ack + 10)));
    }
}

/// A connection that opened while there were no rules goes on only if the rules accept both sides
/// as the opener.
#[test]
fn an_unknown_connection_needs_both_directions() {
    for (inbound, outbound, passes) in [
        (Action::Accept, Action::Accept, true),
        (Action::Accept, Action::Refuse, false),
        (Action::Refuse, Action::Accept, false),
    ] {
        let mut scene = Scene::new(inbound, outbound);
        for way in WAYS {
            assert_eq!(scene.passes(tcp(way, ACK, 1, 2).with_payload(3)), passes);
        }
    }
}

/// While there are no rules, the other side may open a connection of the same 5-tuple. New rules
/// therefore must not use an opener that was recorded before.
#[test]
fn openers_are_forgotten_while_there_are_no_rules() {
    for way in WAYS {
        let mut scene = only(way, Action::Refuse);
        let rules = scene.rules.clone();
        scene.open(way);
        let (seq, ack) = numbers(way);
        let data = || tcp(back(way), ACK, ack + 10, seq + 10).with_payload(10);
        let other = only(back(way), Action::Refuse).rules;
        scene.associations.rules_change(&rules, &other);
        scene.associations.rules_change(&other, &rules);
        assert!(scene.passes(data()), "rules without a pause");
        scene.associations.rules_change(&rules, &RuleSet::default());
        scene.associations.rules_change(&RuleSet::default(), &rules);
        assert_eq!(scene.judge(data()), Verdict::Refuse);
        scene.open(way);
        assert!(scene.passes(data()), "a new connection");
    }
}

#[test]
fn a_pair_may_be_used_again_from_the_other_side() {
    for way in WAYS {
        let mut scene = Scene::new(Action::Accept, Action::Accept);
        scene.open(way);
        scene.open_from(back(way), 5000);
        let rules = only(back(way), Action::Refuse).rules;
        scene.rules = rules;
        scene.owners.rules_have_changed();
        let (seq, ack) = numbers(way);
        assert!(scene.passes(tcp(way, ACK, seq + 10, ack + 10)));
        let rules = only(way, Action::Refuse).rules;
        scene.rules = rules;
        scene.owners.rules_have_changed();
        assert!(!scene.passes(tcp(way, ACK, seq + 10, ack + 10)));
    }
}

/// Another program of the same user gets the mux port and the port's claims (the 3-tuples whose
/// packets go to the port). The rules give other verdicts on this program.
#[test]
fn rules_apply_to_the_present_owner_of_a_claim() {
    let mut scene = Scene::new(Action::Accept, Action::Accept);
    scene.set_rules(vec![
        Rule {
            direction: Some(Direction::Out),
            groups: vec![33],
            ..Rule::default()
        },
        Rule {
            direction: Some(Direction::Out),
            action: Action::Drop,
            ..Rule::default()
        },
    ]);
    scene.open(Way::Out);
    let data = tcp(Way::Out, ACK, OURS + 10, THEIRS + 10);
    assert!(scene.passes(data));
    scene.own(44);
    assert_eq!(scene.judge(data), Verdict::Drop);
    assert_eq!(
        scene.judge(tcp(Way::In, ACK, THEIRS + 10, OURS + 10)),
        Verdict::Drop
    );
    // Another program of the first group continues the connection.
    scene.own(33);
    assert!(scene.passes(data));
    scene.owners.remove(PORT);
    assert_eq!(scene.judge(data), Verdict::Drop, "nobody owns the port");
}

#[test]
fn a_datagram_may_be_answered_for_a_while() {
    for way in WAYS {
        let mut scene = only(way, Action::Refuse);
        assert_eq!(scene.judge(udp(back(way))), Verdict::Refuse, "unasked");
        assert!(scene.passes(udp(way)) && scene.passes(udp(back(way))));
        assert_eq!(scene.rules.hits().iter().sum::<u64>(), 2);
        // Answers do not prolong the time in which answers pass.
        for _ in 0..4 {
            scene.now += Duration::from_secs(30);
            assert!(scene.passes(udp(back(way))));
        }
        scene.now += Duration::from_secs(8);
        assert_eq!(scene.judge(udp(back(way))), Verdict::Refuse, "late");
        assert!(scene.passes(udp(way)) && scene.passes(udp(back(way))));
        scene.now += Duration::from_secs(100);
        assert!(scene.passes(udp(way)));
        scene.now += Duration::from_secs(100);
        assert!(scene.passes(udp(back(way))));
        // A datagram does not admit segments, and a connection does not admit datagrams.
        assert!(!scene.passes(tcp(back(way), ACK, 1, 2)));
        let mut scene = only(way, Action::Refuse);
        scene.open(way);
        assert!(!scene.passes(udp(back(way))));
    }
}

#[test]
fn new_rules_judge_datagrams_by_the_first_sender() {
    let mut scene = Scene::new(Action::Accept, Action::Accept);
    assert!(scene.passes(udp(Way::In)) && scene.passes(udp(Way::Out)));
    scene.set(Action::Drop, Action::Refuse);
    assert_eq!(scene.judge(udp(Way::Out)), Verdict::Refuse);
    assert_eq!(scene.judge(udp(Way::In)), Verdict::Drop);
    scene.set(Action::Accept, Action::Refuse);
    assert!(scene.passes(udp(Way::Out)), "an answer to the peer");
}

#[test]
fn icmp_errors_belong_to_segments_of_the_port() {
    for way in WAYS {
        let mut scene = only(way, Action::Refuse);
        let stray = scene.judge_frame(Way::In, &icmp_about(OURS));
        assert_eq!(stray, Verdict::Drop, "there is no such segment");
        let (seq, ack) = numbers(way);
        assert!(scene.passes(tcp(way, SYN, seq, 0)));
        if way == Way::In {
            assert!(scene.passes(tcp(back(way), SYN_ACK, ack, seq + 1)));
        }
        assert_eq!(scene.judge_frame(Way::In, &icmp_about(OURS)), Verdict::Pass);
        let forged = scene.judge_frame(Way::In, &icmp_about(OURS + 1));
        assert_eq!(forged, Verdict::Drop, "another number");
        let mut scene = only(way, Action::Refuse);
        scene.open(way);
        let of_data = scene.judge_frame(Way::In, &icmp_about(OURS + 5000));
        assert_eq!(of_data, Verdict::Pass);
    }
}

#[test]
fn icmp_errors_about_datagrams_belong_to_an_accepted_exchange() {
    let error = icmp_quoting(&udp(Way::Out));
    for way in WAYS {
        let mut scene = only(way, Action::Refuse);
        let stray = scene.judge_frame(Way::In, &error);
        assert_eq!(stray, Verdict::Drop, "the port has sent no datagram");
        assert!(scene.passes(udp(way)) && scene.passes(udp(back(way))));
        assert_eq!(scene.judge_frame(Way::In, &error), Verdict::Pass);
        // ICMP errors do not prolong the time in which answers pass.
        scene.now += Duration::from_secs(110);
        assert_eq!(scene.judge_frame(Way::In, &error), Verdict::Pass);
        scene.now += Duration::from_secs(18);
        assert_eq!(scene.judge_frame(Way::In, &error), Verdict::Drop);
        assert!(!scene.passes(udp(back(way))), "late");
        // New rules apply to the exchange.
        assert!(scene.passes(udp(way)));
        scene.rules = only(back(way), Action::Refuse).rules;
        scene.owners.rules_have_changed();
        assert_eq!(scene.judge_frame(Way::In, &error), Verdict::Drop);
    }
    // A TCP connection does not admit an ICMP error about a datagram.
    let mut scene = only(Way::Out, Action::Refuse);
    scene.open(Way::Out);
    assert_eq!(scene.judge_frame(Way::In, &error), Verdict::Drop);
    // Without a record of the exchange, the rules must accept both directions.
    let mut scene = Scene::new(Action::Accept, Action::Accept);
    assert_eq!(scene.judge_frame(Way::In, &error), Verdict::Pass);
}

#[test]
fn a_packet_of_another_kind_does_not_pass() {
    let mut scene = Scene::new(Action::Accept, Action::Accept);
    let mut frame = tcp(Way::In, SYN, 1, 0).frame();
    // Protocol 132 is SCTP.
    frame[23] = 132;
    finish_ip_header(&mut frame);
    assert_eq!(scene.judge_frame(Way::In, &frame), Verdict::Drop);
    assert_eq!(scene.judge_frame(Way::In, &frame[..30]), Verdict::Drop);
}
