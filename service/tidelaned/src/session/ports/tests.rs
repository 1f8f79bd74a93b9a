//! Tests of sessions (connected programs) with mux ports, which carry frames between a program and
//! the NIC. The sessions use sockets of this process. The served interface is loopback. A stand-in
//! for the demux (the XDP program) only records its claims and counts its changes.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, listen, socket, socketpair, sockopt,
};
use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Action, Interface, RuleSet};
use tidelane_packet_io::{MemConfig, MemPort};
use tidelane_ring::{ServicePageMap, registration::recv_message};
use tidelane_steering::{Claim, DemuxCounters, Scope, StackId, Steering, SteeringError};
use tidelane_time::Instant;
use tidelane_wire::{MacAddress, protocol};

use super::*;
use crate::{
    accounts::LimitsConfig,
    claims::Claims,
    core_link::{Call, CoreLink},
    cores::Cores,
    descriptors::DescriptorThreads,
    peer::Peer,
    session::NextStep,
    sys,
};

/// Index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const HERE: IpAddress = IpAddress::from_v4([127, 0, 0, 1]);
/// Uids of the users of programs. Neither is root.
pub(in crate::session) const ALICE: u32 = 65_000;
const BOB: u32 = 65_001;

/// A core (polling thread of the service) whose calls run on the caller's thread.
#[derive(Clone)]
pub(in crate::session) struct Link(Arc<Mutex<Host<MemPort>>>);

impl Link {
    fn new() -> Self {
        let (near, _far) = MemPort::pair(MemConfig::default());
        let interface = Interface {
            link: LinkId(1),
            mac: MAC,
            mtu: 1500,
            addresses: vec![HERE],
        };
        let config = EngineConfig {
            flows_max: 64,
            ..EngineConfig::default()
        };
        let host = Host::new(config, [7; 16], interface, vec![near]).expect("there is memory");
        Self(Arc::new(Mutex::new(host)))
    }

    pub(in crate::session) fn host(&self) -> MutexGuard<'_, Host<MemPort>> {
        self.0.lock().expect("no test has failed")
    }
}

impl CoreLink<MemPort> for Link {
    fn send(&self, call: Call<MemPort>) {
        call(&mut self.host(), Instant::from_secs(1));
    }

    fn watch(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: BorrowedFd<'_>) {}

    fn is_beside(&self) -> bool {
        false
    }

    fn stop(&self) {}

    fn boosts(&self) -> u32 {
        0
    }
}

/// A demux that records its claims and counts its changes.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<(Claimed, usize)>>);

/// Claims, as protocol and port.
type Claimed = BTreeSet<(u8, u16)>;

impl Record {
    /// Returns the claims, and the number of changes so far.
    fn get(&self) -> (Claimed, usize) {
        self.0.lock().expect("no test has failed").clone()
    }
}

impl Steering for Record {
    fn claim(&mut self, claim: &Claim, _: StackId, _: Scope) -> Result<(), SteeringError> {
        let mut record = self.0.lock().expect("no test has failed");
        record.0.insert((claim.proto, claim.port));
        record.1 += 1;
        Ok(())
    }

    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError> {
        let mut record = self.0.lock().expect("no test has failed");
        record.1 += 1;
        Ok(record.0.remove(&(claim.proto, claim.port)))
    }

    fn counters(&self) -> Result<DemuxCounters, SteeringError> {
        Ok(DemuxCounters::default())
    }
}

/// A program, and the service's session with it.
pub(in crate::session) struct Program {
    /// The program's end of the registration socket.
    pub(in crate::session) socket: OwnedFd,
    /// `None` once the service has ended the session.
    pub(in crate::session) session: Option<Session>,
}

/// A service with two cores.
pub(in crate::session) struct Scene {
    pub(in crate::session) shared: ServiceState<MemPort>,
    pub(in crate::session) links: [Link; 2],
    demux: Record,
}

impl Scene {
    /// Makes a service without programs. Returns `None` unless this process runs as root.
    pub(in crate::session) fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let links = [Link::new(), Link::new()];
        let cores = links.iter().map(|link| Arc::new(link.clone()) as _);
        let cores = Cores::new(cores.collect());
        let demux = Record::default();
        let (_, page) = ServicePageMap::create(2).expect("there is memory");
        let threads = DescriptorThreads::immediate(LOOPBACK).expect("sockets can be examined");
        let claims = Claims::new(Box::new(demux.clone()));
        let mut shared = ServiceState::new(cores, claims, page, threads);
        shared.set_addresses(&[HERE]).expect("no claims yet");
        shared.link_address = Some(MAC);
        Some(Self {
            shared,
            links,
            demux,
        })
    }

    /// Connects a program of user `uid`.
    pub(in crate::session) fn connect(&mut self, uid: u32) -> Program {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, socket) = pair.expect("a pair");
        let mut peer = Peer::of(&ours).expect("a peer");
        peer.uid = uid;
        let session = Session::of_peer(&mut self.shared, peer, ours).expect("there is room");
        Program {
            socket,
            session: Some(session),
        }
    }

    /// Sends a message, and lets the service handle the message. Returns the answer and the
    /// answer's descriptors. Returns `None` if the service has ended the session.
    pub(in crate::session) fn ask(
        &mut self,
        program: &mut Program,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Option<(Message, Vec<OwnedFd>)> {
        send_message(program.socket.as_fd(), message, descriptors).expect("it is sent");
        let session = program.session.as_mut()?;
        let mut next = session.receive(&mut self.shared);
        while next == NextStep::Wait {
            let checked = self.shared.descriptors.next().expect("it was checked");
            next = session.handle_checked(&mut self.shared, checked);
        }
        if next == NextStep::End {
            self.end(program);
            return None;
        }
        recv_message(program.socket.as_fd()).expect("an answer")
    }

    pub(in crate::session) fn end(&mut self, program: &mut Program) {
        if let Some(session) = program.session.take() {
            session.end(&mut self.shared);
        }
    }

    /// Sends a message. Returns the refusal of its answer, 0 for none.
    fn refusal_of(
        &mut self,
        program: &mut Program,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> u32 {
        let answer = self.ask(program, message, descriptors);
        answer.expect("the session goes on").0.refusal
    }

    /// Opens a mux port, and maps and seals its memories. Returns the properties of the port, or
    /// the refusal.
    fn open(&mut self, program: &mut Program) -> Result<PacketPort, u32> {
        let bell = Doorbell::new().expect("a descriptor");
        let answer = self.ask(program, &open_port(PORT_RING_LEN_MIN), &[bell.fd()]);
        let (answer, descriptors) = answer.expect("the session goes on");
        if answer.refusal != 0 {
            return Err(answer.refusal);
        }
        // Two memories for each of two cores, the service page, and a doorbell for each core.
        assert_eq!((answer.kind, descriptors.len()), (message::PORT_OPENED, 7));
        for pair in descriptors[..4].chunks_exact(2) {
            let memories = [pair[0].as_fd(), pair[1].as_fd()];
            let port = &answer.packet_port;
            PortRegions::map(memories, port.number, port.ring_len).expect("it can be mapped");
        }
        Ok(answer.packet_port)
    }

    /// Connects a program of user `uid`, and opens a mux port.
    fn port(&mut self, uid: u32) -> Program {
        let mut program = self.connect(uid);
        self.open(&mut program).expect("there is room");
        program
    }

    /// Claims the 3-tuple of a socket. Returns the refusal, 0 for none.
    fn claim(&mut self, program: &mut Program, socket: impl AsFd) -> u32 {
        let claim = new_message(message::CLAIM_TUPLE);
        self.refusal_of(program, &claim, &[socket.as_fd()])
    }

    /// Releases the claim of a 3-tuple at [`HERE`]. Returns the refusal, 0 for none.
    fn release(&mut self, program: &mut Program, protocol: u8, port: u16) -> u32 {
        let mut release = new_message(message::RELEASE_TUPLE);
        release.packet_port.protocol = protocol.into();
        release.local_addr = HERE.0;
        release.port = port.into();
        self.refusal_of(program, &release, &[])
    }

    /// Returns the mux port that has claimed a 3-tuple at [`HERE`]. Fails if the two cores have
    /// different ports.
    fn owner(&self, protocol: u8, port: u16) -> Option<PortId> {
        let owner = |link: &Link| {
            let host = link.host();
            host.mux_ports()
                .claims()
                .owner(protocol, Endpoint::new(HERE, port))
        };
        let [one, other] = self.links.each_ref().map(owner);
        assert_eq!(one, other, "the cores differ");
        one
    }

    /// Fails if there is a mux port, a claim or a charge.
    fn check_empty(&self) {
        assert!(self.shared.ports.is_empty());
        assert_eq!(self.shared.claims.count(), 0);
        assert!(self.demux.get().0.is_empty());
        for link in &self.links {
            assert!(link.host().mux_ports().is_empty());
        }
        for user in self.shared.accounts.users() {
            let used: Vec<_> = user.lines().filter(|line| line.used > 0).collect();
            assert!(used.is_empty(), "{:?} still has {used:?}", user.id());
        }
    }
}

fn open_port(ring_len: u32) -> Message {
    let mut request = new_message(message::OPEN_PORT);
    request.packet_port.ring_len = ring_len;
    request
}

/// Returns a socket that is bound to `addr` and `port`, and the number of the TCP or UDP port. If
/// `port` is 0, the kernel chooses the port. `reuse` is the value of SO_REUSEADDR.
fn bound(kind: SocketType, addr: &str, port: u16, reuse: bool) -> (OwnedFd, u16) {
    let fresh = socket(AddressFamily::INET, kind, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&fresh, reuse).expect("allowed");
    let addr: SocketAddr = format!("{addr}:{port}").parse().expect("an address");
    bind(&fresh, &addr).expect("a free port");
    let name = rustix::net::getsockname(&fresh).expect("a name");
    let port = SocketAddr::try_from(name).expect("IP").port();
    (fresh, port)
}

#[test]
fn a_claim_is_on_all_cores_and_ends_with_the_session() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let mut program = scene.connect(ALICE);
    let terms = scene.open(&mut program).expect("there is room");
    assert_eq!((terms.number, terms.cores), (0, 2));
    assert_eq!(terms.ring_len, PORT_RING_LEN_MIN);
    assert_eq!((terms.link_address, terms.frame_len_max), (MAC.0, 1514));
    for (kind, protocol) in [
        (SocketType::STREAM, protocol::TCP),
        (SocketType::DGRAM, protocol::UDP),
    ] {
        let (socket, port) = bound(kind, "127.0.0.1", 0, false);
        assert_eq!(scene.claim(&mut program, &socket), 0);
        assert_eq!(scene.claim(&mut program, &socket), 0, "second claim");
        assert_eq!(scene.owner(protocol, port), Some(PortId(0)));
        assert!(scene.demux.get().0.contains(&(protocol, port)));
        drop(socket);
        let taken = |port| match kind {
            SocketType::STREAM => TcpListener::bind(("127.0.0.1", port)).map(drop),
            _ => UdpSocket::bind(("127.0.0.1", port)).map(drop),
        };
        let error = taken(port).expect_err("the service holds the port");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let other = if protocol == protocol::TCP { 17 } else { 6 };
        assert_eq!(
            scene.release(&mut program, other, port),
            refusal::NOT_ENTITLED
        );
        assert_eq!(scene.release(&mut program, protocol, port), 0);
        assert_eq!(
            scene.release(&mut program, protocol, port),
            refusal::NOT_ENTITLED
        );
        assert_eq!(scene.owner(protocol, port), None);
        assert!(!scene.demux.get().0.contains(&(protocol, port)));
        taken(port).expect("the port is free");
        let (again, port) = bound(kind, "0.0.0.0", 0, false);
        assert_eq!(scene.claim(&mut program, &again), 0);
        assert_eq!(scene.owner(protocol, port), Some(PortId(0)));
    }
    scene.end(&mut program);
    scene.check_empty();
    // The number 0 of the mux port is free again.
    let mut next = scene.connect(BOB);
    assert_eq!(scene.open(&mut next).map(|terms| terms.number), Ok(0));
    scene.end(&mut next);
    scene.check_empty();
}

#[test]
fn only_a_bound_and_unused_socket_proves_a_claim() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let mut program = scene.port(ALICE);
    let (stream, datagram) = (SocketType::STREAM, SocketType::DGRAM);
    let listening = bound(stream, "127.0.0.1", 0, false).0;
    listen(&listening, 1).expect("it listens");
    let connected = bound(datagram, "127.0.0.1", 0, false).0;
    let peer: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    rustix::net::connect(&connected, &peer).expect("UDP connects to any address");
    let elsewhere = std::thread::spawn(move || {
        sys::enter_new_network_namespace().expect("a new namespace");
        bound(stream, "0.0.0.0", 0, false).0
    });
    for (what, descriptor) in [
        (
            "unbound",
            socket(AddressFamily::INET, stream, None).expect("a socket"),
        ),
        ("listening", listening),
        ("connected", connected),
        (
            "of another namespace",
            elsewhere.join().expect("the thread ends"),
        ),
        (
            "raw",
            socket(
                AddressFamily::INET,
                SocketType::RAW,
                Some(rustix::net::ipproto::ICMP),
            )
            .expect("root may"),
        ),
        (
            "a file",
            std::fs::File::open("/dev/null").expect("a file").into(),
        ),
    ] {
        let refusal = scene.claim(&mut program, &descriptor);
        assert_eq!(refusal, refusal::NOT_ENTITLED, "{what}");
    }
    let unserved = bound(stream, "127.0.0.2", 0, false).0;
    assert_eq!(
        scene.claim(&mut program, &unserved),
        refusal::NOT_ACCELERATED
    );
    assert!(scene.demux.get().0.is_empty());
    scene.end(&mut program);
    scene.check_empty();
}

#[test]
fn a_3_tuple_of_another_socket_is_in_use() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let mut program = scene.port(ALICE);
    // UDP sockets with SO_REUSEADDR can share a port. TCP sockets with SO_REUSEADDR can share a
    // port until one of them listens.
    for kind in [SocketType::DGRAM, SocketType::STREAM] {
        let (mine, port) = bound(kind, "127.0.0.1", 0, true);
        let (theirs, _) = bound(kind, "127.0.0.1", port, true);
        if kind == SocketType::STREAM {
            listen(&theirs, 1).expect("it listens");
        }
        assert_eq!(scene.claim(&mut program, &mine), refusal::IN_USE);
    }
    // After the claim of a TCP port, another socket that is bound to the port cannot listen.
    let (mine, port) = bound(SocketType::STREAM, "127.0.0.1", 0, true);
    let (theirs, _) = bound(SocketType::STREAM, "127.0.0.1", port, true);
    assert_eq!(scene.claim(&mut program, &mine), 0);
    assert!(listen(&theirs, 1).is_err());
    let mut other = scene.port(BOB);
    assert_eq!(scene.claim(&mut other, &theirs), refusal::IN_USE);
    assert_eq!(scene.owner(protocol::TCP, port), Some(PortId(0)));
    for program in [&mut program, &mut other] {
        scene.end(program);
    }
    scene.check_empty();
}

#[test]
fn a_socket_moves_its_claim_to_another_port_of_its_user() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    for kind in [SocketType::STREAM, SocketType::DGRAM] {
        let protocol = if kind == SocketType::STREAM {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let (mut old, mut new) = (scene.port(ALICE), scene.port(ALICE));
        let mut stranger = scene.port(BOB);
        let (socket, port) = bound(kind, "127.0.0.1", 0, false);
        assert_eq!(scene.claim(&mut old, &socket), 0);
        let before = scene.demux.get();
        assert_eq!(scene.claim(&mut stranger, &socket), refusal::IN_USE);
        assert_eq!(scene.owner(protocol, port), Some(PortId(0)));
        assert_eq!(scene.claim(&mut new, &socket), 0);
        assert_eq!(scene.owner(protocol, port), Some(PortId(1)));
        assert_eq!(
            scene.release(&mut old, protocol, port),
            refusal::NOT_ENTITLED
        );
        scene.end(&mut old);
        assert_eq!(scene.owner(protocol, port), Some(PortId(1)));
        assert_eq!(scene.demux.get(), before, "the demux has changed");
        scene.end(&mut new);
        scene.end(&mut stranger);
        scene.check_empty();
    }
}

#[test]
fn a_session_opens_one_port_and_registers_no_program_beside_it() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let bell = Doorbell::new().expect("a descriptor");
    let (socket, port) = bound(SocketType::STREAM, "127.0.0.1", 0, false);
    let mut program = scene.connect(ALICE);
    // A claim fails before the mux port is open, and also before the port's memories are sealed.
    assert_eq!(scene.claim(&mut program, &socket), refusal::MALFORMED);
    assert_eq!(
        scene.release(&mut program, protocol::TCP, port),
        refusal::MALFORMED
    );
    let open = open_port(PORT_RING_LEN_MIN);
    assert_eq!(scene.refusal_of(&mut program, &open, &[bell.fd()]), 0);
    assert_eq!(scene.claim(&mut program, &socket), refusal::MALFORMED);
    // A session with an open mux port refuses each of these requests.
    assert_eq!(
        scene.refusal_of(&mut program, &open, &[bell.fd()]),
        refusal::MALFORMED
    );
    for kind in [message::REGISTER, message::PROBE, message::INHERIT, 99] {
        let refusal = scene.refusal_of(&mut program, &new_message(kind), &[]);
        assert_eq!(refusal, refusal::MALFORMED, "{kind}");
    }
    scene.end(&mut program);
    let mut registered = scene.connect(ALICE);
    let register = new_message(message::REGISTER);
    assert_eq!(scene.refusal_of(&mut registered, &register, &[]), 0);
    assert_eq!(
        scene.refusal_of(&mut registered, &open, &[bell.fd()]),
        refusal::MALFORMED
    );
    assert_eq!(scene.claim(&mut registered, &socket), refusal::MALFORMED);
    scene.end(&mut registered);
    scene.check_empty();
}

#[test]
fn a_port_has_a_doorbell_and_a_possible_length() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let bell = Doorbell::new().expect("a descriptor");
    let file = std::fs::File::open("/dev/null").expect("a file");
    let mut program = scene.connect(ALICE);
    let open = open_port(PORT_RING_LEN_MIN);
    assert_eq!(
        scene.refusal_of(&mut program, &open, &[file.as_fd()]),
        refusal::MALFORMED
    );
    for ring_len in [
        0,
        1,
        PORT_RING_LEN_MIN / 2,
        3 << 14,
        2 * PORT_RING_LEN_MAX,
        u32::MAX,
    ] {
        let open = open_port(ring_len);
        let refusal = scene.refusal_of(&mut program, &open, &[bell.fd()]);
        assert_eq!(refusal, refusal::MALFORMED, "{ring_len}");
    }
    // A message with a wrong number of descriptors ends the session.
    for bells in [&[][..], &[bell.fd(), bell.fd()]] {
        let mut program = scene.connect(ALICE);
        assert!(
            scene.ask(&mut program, &open, bells).is_none(),
            "the session goes on"
        );
        let mut program = scene.port(ALICE);
        let claim = new_message(message::CLAIM_TUPLE);
        assert!(
            scene.ask(&mut program, &claim, bells).is_none(),
            "the session goes on"
        );
    }
    scene.end(&mut program);
    scene.check_empty();
}

#[test]
fn ports_memory_and_claims_are_limited() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    // Each of the two open mux ports has four memories and seven descriptors. Each of the three
    // sessions has two descriptors. The limits below therefore leave no room for a third mux port.
    let memory = 8 * (PORT_DATA + u64::from(PORT_RING_LEN_MIN));
    let set = |scene: &mut Scene, limits: &str| {
        let limits: LimitsConfig = toml::from_str(limits).expect("limits");
        scene.shared.accounts.set_limits(limits);
    };
    let (mut first, mut second) = (scene.port(ALICE), scene.port(ALICE));
    let mut third = scene.connect(ALICE);
    for limits in [
        "programs = 2",
        &format!("ring_bytes = {memory}"),
        "descriptors = 20",
    ] {
        set(&mut scene, limits);
        assert_eq!(scene.open(&mut third), Err(refusal::LIMIT), "{limits}");
    }
    set(&mut scene, "ports = 2");
    scene.open(&mut third).expect("there is room");
    let sockets = [0; 3].map(|_| bound(SocketType::STREAM, "127.0.0.1", 0, false).0);
    assert_eq!(scene.claim(&mut first, &sockets[0]), 0);
    assert_eq!(scene.claim(&mut second, &sockets[1]), 0);
    assert_eq!(scene.claim(&mut third, &sockets[2]), refusal::LIMIT);
    scene.end(&mut first);
    assert_eq!(scene.claim(&mut third, &sockets[2]), 0);
    scene.end(&mut second);
    scene.end(&mut third);
    scene.check_empty();
}

/// Mux ports can be opened with and without rules. The mux ports of a user share one table of
/// connections, which the rules use.
#[test]
fn ports_open_while_there_are_rules() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let mut first = scene.port(ALICE);
    scene.shared.rules = RuleSet::new(Vec::new(), Action::Drop);
    let mut second = scene.port(ALICE);
    let mut third = scene.port(BOB);
    let associations = |port| scene.shared.ports.associations(PortId(port)).expect("open");
    assert!(Arc::ptr_eq(&associations(0), &associations(1)));
    assert!(!Arc::ptr_eq(&associations(0), &associations(2)));
    let (socket, port) = bound(SocketType::STREAM, "127.0.0.1", 0, false);
    assert_eq!(scene.claim(&mut second, &socket), 0);
    assert_eq!(scene.owner(protocol::TCP, port), Some(PortId(1)));
    for program in [&mut first, &mut second, &mut third] {
        scene.end(program);
    }
    scene.check_empty();
}

/// A user's rate limit holds for each mux port of the user, and is divided among the cores. New
/// limits also apply to mux ports that are already open.
#[test]
fn ports_have_the_rates_of_their_user() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let limits = |text: &str| {
        let limits: LimitsConfig = toml::from_str(text).expect("limits");
        limits.resolve(|_| None).expect("a number")
    };
    scene
        .shared
        .accounts
        .set_limits(limits("port_packets_per_second = 1001"));
    let mut programs = [scene.port(ALICE), scene.port(0)];
    let sockets = [0, 1].map(|_| bound(SocketType::STREAM, "127.0.0.1", 0, false).0);
    let rates = |scene: &Scene, port: u32| {
        let rate = |link: &Link| link.host().mux_ports().rate(PortId(port));
        let [one, other] = scene.links.each_ref().map(rate);
        assert_eq!(one, other, "the cores differ");
        one.map(|rate| (rate.packets, rate.bytes))
    };
    assert_eq!(scene.claim(&mut programs[0], &sockets[0]), 0);
    assert_eq!(rates(&scene, 0), Some((Some(501), None)));
    scene.shared.accounts.set_limits(limits(
        "port_bytes_per_second = 8000\n[user.0]\nport_packets_per_second = 0",
    ));
    for program in &programs {
        let session = program.session.as_ref().expect("it goes on");
        session.port.as_ref().expect("a port").limit(&scene.shared);
    }
    assert_eq!(rates(&scene, 0), Some((None, Some(4000))));
    assert_eq!(rates(&scene, 1), None, "the cores already have it");
    assert_eq!(scene.claim(&mut programs[1], &sockets[1]), 0);
    assert_eq!(rates(&scene, 1), Some((Some(0), None)));
    for program in &mut programs {
        scene.end(program);
    }
    scene.check_empty();
}

/// Offset of the packets from the start of a mux port's memory, in bytes.
const PORT_DATA: u64 = tidelane_abi::port::PORT_DATA_OFFSET;
