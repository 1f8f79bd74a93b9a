//! A Tidelane service, a victim with a live connection, and the attackers that the input creates.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration as StdDuration,
};

use tidelane_abi::{Message, message};
use tidelane_attacker::{
    protocol::{Answer, Failure, Service},
    rings::{Connection, Rings},
    sockets::Bound,
};
use tidelane_host::{HostRequest, PORTS_PER_REQUEST};
use tidelane_packet_io::MemPort;
use tidelane_ring::{Doorbell, ServicePageMap, registration::new_message};
use tidelane_time::{Duration, Instant};
use tidelane_wire::IpAddress;
use tidelaned::{
    claims::{Claims, Owner},
    clock::now,
    cores::Cores,
    descriptors::DescriptorThreads,
    service_state::ServiceState,
    session::{NextStep, Session},
};

use super::{
    core::{ClaimSet, Link, Wire},
    descriptors::{self, Descriptors, Kind},
    fuzz_program::{
        FuzzProgram, MACS, PEER, PEER_PORT, Peer, VICTIM_PORT, Victim, answer, answer_requests,
        holds_secret, seal, secret, set_network,
    },
    kernel::{is_held, open_descriptors, pair, spare},
    test_namespace::{SERVICE, TestNamespace, bound},
};

/// Index of the interface that the service serves. The loopback interface has another index, so a
/// socket that is bound to the loopback interface (SO_BINDTODEVICE) permits no claim.
const SERVED_IFINDEX: u32 = 77;
/// Virtual time that passes in each step.
const STEP: Duration = Duration::from_micros(20);
/// Number of steps after which two undisturbed hosts have finished their work.
const QUIESCE_STEPS: u32 = 40;
/// User id of the attackers' programs.
const ATTACKER_ID: u32 = 65_534;
/// Largest number of simultaneous attackers.
pub const ATTACKERS_MAX: usize = 4;
/// Number of secret bytes in one exchange.
const SECRET_LEN: u32 = 600;
/// Longest time for which claims may outlive the last connection, by the clock of the machine.
const CLAIMS_END_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two checks for remaining claims.
const PAUSE: StdDuration = StdDuration::from_millis(1);

/// A service with its programs. The documentation of [the module](super) lists the invariants.
pub struct Scene<'g> {
    namespace: &'g TestNamespace,
    now: Instant,
    core: Link,
    claim_set: ClaimSet,
    shared: ServiceState<MemPort>,
    sessions: BTreeMap<u64, Session>,
    wire: Wire,
    /// The peer, which is the other end of all connections.
    pub peer: Peer,
    victim: Victim,
    /// Protected connection: victim's end, peer's end, and secret bytes sent in each direction.
    protected: Option<(Connection, Connection, u32)>,
    /// The programs that the input controls.
    pub attackers: Vec<FuzzProgram>,
    descriptors: Descriptors,
}

/// Runs `play` in a new scene, and checks all invariants.
pub fn run(namespace: &TestNamespace, play: impl FnOnce(&mut Scene<'_>)) {
    let before = open_descriptors();
    let mut scene = Scene::new(namespace);
    play(&mut scene);
    scene.check();
    scene.end();
    drop(scene);
    assert_eq!(open_descriptors(), before, "descriptors are left open");
}

impl<'g> Scene<'g> {
    fn new(namespace: &'g TestNamespace) -> Self {
        let now = Instant::from_secs(1);
        let (core, far) = Link::new(SERVICE, MACS[0], now);
        set_network(&mut core.core().host, now, SERVICE);
        let (peer, peer_far) = Peer::new(now);
        let claim_set = ClaimSet::default();
        let (_, page_fd) = ServicePageMap::create(1).expect("there is memory");
        let cores = Cores::new(vec![Arc::new(core.clone())]);
        let claims = Claims::new(Box::new(claim_set.clone()));
        let descriptors =
            DescriptorThreads::immediate(SERVED_IFINDEX).expect("sockets can be inspected");
        let mut shared = ServiceState::new(cores, claims, page_fd, descriptors);
        let addresses = [IpAddress::from_v4(SERVICE)];
        shared.set_addresses(&addresses).expect("claims are free");
        shared.link_address = Some(MACS[0]);
        let mut descriptors = Descriptors::default();
        let shares = Bound {
            reuse_address: true,
            ..bound(&format!("0.0.0.0:{VICTIM_PORT}"))
        };
        descriptors.put(Kind::SharesVictim, shares.make().expect("the port is free"));
        let socket = TcpListener::bind(("0.0.0.0", VICTIM_PORT)).expect("the port can be shared");
        let service = SocketAddr::from((SERVICE, VICTIM_PORT));
        let (connected, accepted) =
            descriptors::connection(&socket, service).expect("the kernel's loopback");
        descriptors.put(Kind::Connected, connected);
        descriptors.put(Kind::Accepted, accepted);
        let (ours, theirs) = pair();
        let mut scene = Self {
            namespace,
            now,
            core,
            claim_set,
            sessions: BTreeMap::new(),
            wire: Wire([far, peer_far]),
            peer,
            victim: Victim {
                program: FuzzProgram::new(0, Service::over(theirs).expect("a socket")),
                listener: 0,
                socket,
            },
            protected: None,
            attackers: Vec::new(),
            descriptors,
            shared,
        };
        scene.victim.program.session = scene.admit(ours, 0);
        scene.open_victim();
        scene
    }

    /// Registers the victim. The victim then listens and gets its first connection.
    fn open_victim(&mut self) {
        let mut victim = std::mem::replace(&mut self.victim.program, FuzzProgram::new(0, spare()));
        assert!(self.register(&mut victim), "the victim is refused");
        let mut listen = new_message(message::LISTEN);
        listen.backlog = 8;
        let socket = self.victim.socket.try_clone().expect("a descriptor");
        let listened = self.ask(&victim, &listen, &[socket.as_fd()]);
        let listened = listened.expect("an answer").expect("the victim's port");
        self.victim.listener = listened.message.listener;
        if let Some(rings) = &mut victim.rings {
            rings.join(self.victim.listener);
        }
        self.victim.program = victim;
        self.protected = Some(self.connect_victim());
        self.exchange_secrets();
    }

    /// Opens a connection from the peer to the victim. Returns both ends, and 0 as sent bytes.
    fn connect_victim(&mut self) -> (Connection, Connection, u32) {
        let (ours, theirs) = (
            self.victim.program.connections.len(),
            self.peer.connections.len(),
        );
        self.peer.connect(VICTIM_PORT);
        for _ in 0..QUIESCE_STEPS {
            self.step();
            let accepted = self.victim.program.connections.get(ours);
            if let (Some(accepted), Some(opened)) = (accepted, self.peer.connections.get(theirs)) {
                return (*accepted, *opened, 0);
            }
        }
        panic!("the victim gets no connection");
    }

    /// Sends secret bytes in both directions of the protected connection, and checks their arrival.
    fn exchange_secrets(&mut self) {
        let Some((ours, theirs, sent)) = self.protected else {
            return;
        };
        let bytes: Vec<u8> = (sent..sent + SECRET_LEN).map(secret).collect();
        if let Some(rings) = &mut self.victim.program.rings {
            rings.send(ours, sent, &bytes);
        }
        self.peer.rings().send(theirs, sent, &bytes);
        let mut left = QUIESCE_STEPS;
        let ends = |scene: &mut Self| {
            let victim = scene.victim.program.rings.as_ref();
            let received = victim.and_then(|rings| rings.received(ours));
            let by_peer = scene.peer.rings().received(theirs);
            [received, by_peer].map(|end| end.map_or((0, true), |end| end))
        };
        let all = sent + SECRET_LEN;
        while ends(self) != [(all, false); 2] {
            assert!(
                left > 0,
                "the victim's bytes do not arrive: {:?}",
                ends(self)
            );
            left -= 1;
            self.step();
        }
        let mut got = vec![0; SECRET_LEN as usize];
        if let Some(rings) = &mut self.victim.program.rings {
            assert!(rings.read(ours, sent, &mut got), "no receive buffer");
            assert_eq!(got, bytes, "the victim received other bytes");
            rings.read_all(ours);
        }
        assert!(self.peer.rings().read(theirs, sent, &mut got));
        assert_eq!(got, bytes, "the victim's peer received other bytes");
        self.peer.rings().read_all(theirs);
        self.protected = Some((ours, theirs, all));
    }

    /// Creates a session over `socket` for a process of user `uid`. Returns its session number.
    fn admit(&mut self, socket: OwnedFd, uid: u32) -> u64 {
        let mut peer = tidelaned::peer::Peer::of(&socket).expect("a peer");
        (peer.uid, peer.gid) = (uid, uid);
        let session = Session::of_peer(&mut self.shared, peer, socket).expect("there is room");
        let number = session.number;
        self.sessions.insert(number, session);
        number
    }

    /// Connects a new attacker to the service, unless [`ATTACKERS_MAX`] attackers exist.
    pub fn add_attacker(&mut self) {
        if self.attackers.len() < ATTACKERS_MAX {
            let (ours, theirs) = pair();
            let number = self.admit(ours, ATTACKER_ID);
            let service = Service::over(theirs).expect("a socket");
            self.attackers.push(FuzzProgram::new(number, service));
        }
    }

    /// Closes the registration socket of attacker `at`.
    pub fn remove_attacker(&mut self, at: usize) {
        if at < self.attackers.len() {
            let attacker = self.attackers.swap_remove(at);
            let session = attacker.session;
            drop(attacker);
            self.serve(session);
        }
    }

    /// Sends REGISTER and CONTEXT for context 0. Returns false if the service refused one of them.
    pub fn register(&mut self, sender: &mut FuzzProgram) -> bool {
        if let Some(Ok(answer)) = self.ask(sender, &new_message(message::REGISTER), &[]) {
            sender.registered(answer);
        }
        let Some(program) = &sender.program else {
            return false;
        };
        let bell = Doorbell::new().expect("a descriptor");
        let rings = Rings::new(&program.region, 0, program.page.cores());
        let made = self.ask(sender, &new_message(message::CONTEXT), &[bell.fd()]);
        sender.rings = rings;
        matches!(made, Some(Ok(_)))
    }

    /// Sends a message of the program `sender`, lets the service handle it, and returns the answer.
    pub fn ask(
        &mut self,
        sender: &FuzzProgram,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Option<Result<Answer, Failure>> {
        let service = sender.socket()?;
        service.send(message, descriptors).ok()?;
        self.serve(sender.session);
        answer(service)
    }

    /// Calls [`ask`](Self::ask) for attacker `at`, with descriptors of these kinds. Checks that the
    /// service grants no claim for a kind that permits none.
    pub fn attack(&mut self, at: usize, message: &Message, kinds: &[Kind]) {
        if at >= self.attackers.len() {
            return;
        }
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for kind in kinds {
            let descriptor = self.descriptors.get(self.namespace, *kind);
            descriptors.extend(descriptor.and_then(|fd| fd.try_clone_to_owned().ok()));
        }
        let mut attacker = self.attackers.swap_remove(at);
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let answered = self.ask(&attacker, message, &borrowed);
        if let Some(Ok(answered)) = answered {
            self.check_claim(message, kinds.first().copied());
            match answered.message.kind {
                message::REGISTERED => attacker.registered(answered),
                message::CONTEXT if attacker.rings.is_none() => {
                    attacker.rings = attacker.program.as_ref().and_then(|program| {
                        let cores = program.page.cores();
                        Rings::new(&program.region, message.context, cores)
                    });
                }
                message::INHERIT => self.add_child(answered),
                message::PORT_OPENED => seal(&answered),
                _ => {}
            }
        }
        self.attackers.push(attacker);
    }

    fn check_claim(&self, message: &Message, kind: Option<Kind>) {
        let claims = matches!(
            message.kind,
            message::LISTEN | message::RESERVE | message::CLAIM_TUPLE
        );
        let permitted = kind.is_some_and(|kind| kind.permits(message.kind));
        assert!(!claims || permitted, "{kind:?} was given a claim");
    }

    /// Adds the child of INHERIT as an attacker. If there is no room, ends the child's session.
    fn add_child(&mut self, answer: Answer) {
        let newest = self.sessions.keys().next_back().copied();
        let socket = answer.descriptors.into_iter().next();
        if let (Some(number), Some(socket)) = (newest, socket) {
            rustix::io::ioctl_fionbio(&socket, true).expect("a socket");
            let service = Service::over(socket).expect("a socket");
            if self.attackers.len() < ATTACKERS_MAX {
                self.attackers.push(FuzzProgram::new(number, service));
            } else {
                drop(service);
                self.serve(number);
            }
        }
    }

    /// Sends bytes, which may be an invalid message, from attacker `at`.
    pub fn attack_with_bytes(&mut self, at: usize, bytes: &[u8], kinds: &[Kind]) {
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for kind in kinds {
            let descriptor = self.descriptors.get(self.namespace, *kind);
            descriptors.extend(descriptor.and_then(|fd| fd.try_clone_to_owned().ok()));
        }
        let Some(attacker) = self.attackers.get(at) else {
            return;
        };
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Some(service) = attacker.socket() {
            let _ = service.send_bytes(bytes, &borrowed);
            let session = attacker.session;
            self.serve(session);
        }
    }

    /// Closes the attackers' descriptor of this kind.
    pub fn close(&mut self, kind: Kind) {
        self.descriptors.close(kind);
    }

    /// Joins attacker `at` to a listener.
    pub fn join(&mut self, at: usize, listener: u32) {
        let rings = self.attackers.get_mut(at).and_then(|a| a.rings.as_mut());
        if let Some(rings) = rings {
            rings.join(listener);
        }
    }

    /// Opens a connection of attacker `at` to the peer's listener or to another port of the peer.
    pub fn connect(&mut self, at: usize, to_listener: bool, port: u16) {
        let rings = self.attackers.get_mut(at).and_then(|a| a.rings.as_mut());
        if let Some(rings) = rings {
            let port = if to_listener { PEER_PORT } else { port };
            rings.connect(IpAddress::from_v4(PEER).0, port, 0);
        }
    }

    /// Returns one of the peer's unprotected connections, chosen by `which` modulo their number.
    pub fn peer_connection(&self, which: usize) -> Option<Connection> {
        let protected = self.protected.map(|(_, peer, _)| peer);
        let all = self.peer.connections.iter();
        let others = all.filter(|connection| Some(**connection) != protected);
        let others: Vec<&Connection> = others.collect();
        others.get(which % others.len().max(1)).map(|c| **c)
    }

    /// Lets the service handle the messages that wait on a session's socket.
    fn serve(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let mut next = session.receive(&mut self.shared);
        while next == NextStep::Wait {
            let checked = self.shared.descriptors.next().expect("is checked");
            next = session.handle_checked(&mut self.shared, checked);
            if next == NextStep::Continue {
                next = session.receive(&mut self.shared);
            }
        }
        for child in std::mem::take(&mut session.children) {
            self.sessions.insert(child.number, child);
        }
        if next == NextStep::End {
            self.end_session(number);
        }
    }

    fn end_session(&mut self, number: u64) {
        if let Some(session) = self.sessions.remove(&number) {
            session.end(&mut self.shared);
        }
    }

    /// Lets `STEP` pass: each host takes a step, frames move, and the control thread runs.
    pub fn step(&mut self) {
        self.now += STEP;
        self.core.step(self.now);
        self.serve_host();
        self.wire.carry(0);
        self.peer.step(self.now);
        self.wire.carry(1);
        self.victim.program.poll(self.victim.listener);
        // The control plane uses the clock of the machine.
        self.shared.finish_claims(now());
    }

    /// Lets `time` pass, and then takes a step.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        self.step();
    }

    /// Handles the host's requests, as the control thread does.
    fn serve_host(&mut self) {
        let claims = &mut self.shared.claims;
        let at = now();
        let others = answer_requests(&self.core, |host, now, addr| {
            let ports = claims.reserve_ports(addr, PORTS_PER_REQUEST, at);
            host.add_ports(now, addr, &ports);
        });
        for request in others {
            if let HostRequest::PortIdle { program, endpoint } = request {
                let is_program =
                    |(_, session): &(&u64, &Session)| session.program(0) == Some(program);
                if let Some((number, _)) = self.sessions.iter().find(is_program) {
                    let name = (Owner::Session(*number), endpoint);
                    self.shared.claims.connection_ended(name, at);
                }
            }
        }
    }

    /// Checks the invariants that must hold at any time.
    pub fn check(&mut self) {
        for claim in self.claim_set.claims() {
            assert!(is_held(&claim), "no socket holds {claim:?}");
        }
        self.exchange_secrets();
        self.protected = Some(self.connect_victim());
        self.exchange_secrets();
        for attacker in &self.attackers {
            if let Some(program) = &attacker.program {
                let looked = program.read_memory(16, |bytes| {
                    assert!(!holds_secret(bytes), "an attacker has the victim's bytes");
                });
                looked.expect("memory can be read");
            }
        }
    }

    /// Ends all sessions, and checks that no programs, flows, buffers or programs' claims remain.
    fn end(&mut self) {
        self.attackers.clear();
        self.victim.program = FuzzProgram::new(0, spare());
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.serve(number);
            assert!(!self.sessions.contains_key(&number), "a live session");
        }
        for _ in 0..400 {
            if self.core.core().host.usage() == (0, 0, 0) {
                break;
            }
            self.wait(Duration::from_secs(2));
        }
        // The control plane uses the clock of the machine for claims.
        let until = now() + CLAIMS_END_WITHIN;
        while !self.claim_set.own_claims().is_empty() && now() < until {
            thread::sleep(PAUSE);
            self.step();
        }
        let is_over =
            self.core.core().host.usage() == (0, 0, 0) && self.claim_set.own_claims().is_empty();
        assert!(is_over, "{}", self.leftovers());
    }

    fn leftovers(&self) -> String {
        let core = self.core.core();
        format!(
            "left are (programs, flows, bytes) {:?}, {:?}, claims {:?}",
            core.host.usage(),
            core.host.sockets(),
            self.claim_set.own_claims()
        )
    }
}
