//! The programs of a scene (one input of the fuzzer). The victim and its attackers are programs of
//! one Tidelane service. The peer is a program on the host at the other end of the link.

use std::{io, net::TcpListener, os::fd::AsFd, sync::Arc};

use tidelane_attacker::{
    protocol::{Answer, Failure, Service},
    region::Program,
    rings::{Connection, Event, Rings},
};
use tidelane_host::{Bell, Host, HostRequest, Listen, Route};
use tidelane_packet_io::MemPort;
use tidelane_ring::{Layout, PortRegions, ProgramRegion};
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

use super::{core::Link, test_namespace::SERVICE};

/// Address of the peer's host.
pub const PEER: [u8; 4] = [10, 77, 0, 2];
/// Port of the victim's listener.
pub const VICTIM_PORT: u16 = 80;
/// Port of the peer's listener.
pub const PEER_PORT: u16 = 9000;
/// Link addresses of the service's host and the peer's host.
pub const MACS: [MacAddress; 2] = [
    MacAddress([2, 0, 0, 0, 0, 1]),
    MacAddress([2, 0, 0, 0, 0, 2]),
];
/// Number of consecutive secret bytes that prove a leak, because a coincidence is too unlikely.
pub const SECRET_RUN: usize = 8;

/// Returns the byte at stream position `pos` of the data between the victim and its peer. The data
/// is the secret. The data that attackers send has other bytes.
pub fn secret(pos: u32) -> u8 {
    0xe0 | (pos & 15) as u8
}

/// Returns true if `byte` may be part of a secret.
pub fn may_be_secret(byte: u8) -> bool {
    byte >> 4 == 0xe
}

/// Returns true if `bytes` contains at least [`SECRET_RUN`] consecutive bytes of the secret.
pub fn holds_secret(bytes: &[u8]) -> bool {
    let mut run = 0;
    let mut before = 0;
    for &byte in bytes {
        let follows = run > 0 && byte & 15 == (before + 1) & 15;
        run = match may_be_secret(byte) {
            true if follows => run + 1,
            true => 1,
            false => 0,
        };
        if run >= SECRET_RUN {
            return true;
        }
        before = byte;
    }
    false
}

/// A program in a scene: its registration socket, its shared memory, and its connections.
pub struct FuzzProgram {
    /// Number of the program's session (the service's record of the registration socket).
    pub session: u64,
    /// The program's end of the registration socket, before the answer to REGISTER.
    pub service: Option<Service>,
    /// The registered program, after the answer to REGISTER.
    pub program: Option<Program>,
    /// Rings of the program's first context. A context is one thread of a program, with the rings
    /// over which the thread uses the service.
    pub rings: Option<Rings>,
    /// Connections of the program, the oldest first. Closed connections stay in the list.
    pub connections: Vec<Connection>,
}

impl FuzzProgram {
    /// Creates a program that has sent no message.
    pub fn new(session: u64, service: Service) -> Self {
        Self {
            session,
            service: Some(service),
            program: None,
            rings: None,
            connections: Vec::new(),
        }
    }

    /// Returns the registration socket, before or after REGISTER.
    pub fn socket(&self) -> Option<&Service> {
        let registered = self.program.as_ref().map(|program| &program.service);
        registered.or(self.service.as_ref())
    }

    /// Handles the service's answer to REGISTER.
    pub fn registered(&mut self, answer: Answer) {
        if let Some(service) = self.service.take() {
            self.program = Program::from_answer(service, answer).ok();
        }
    }

    /// Reads events. Accepts the connections of `listener`, and records all new connections.
    pub fn poll(&mut self, listener: u32) {
        let Some(rings) = &mut self.rings else {
            return;
        };
        for event in rings.events() {
            match event {
                Event::Accepted(connection) => {
                    rings.accept(connection, listener);
                    self.connections.push(connection);
                }
                Event::Started(connection) => self.connections.push(connection),
                Event::Failed | Event::Ready(_) => {}
            }
        }
    }
}

/// The program whose data and connections must be protected.
pub struct Victim {
    /// The victim's session and memory.
    pub program: FuzzProgram,
    /// The service's number for the victim's listener.
    pub listener: u32,
    /// The victim's listening kernel socket.
    pub socket: TcpListener,
}

/// A doorbell (a wake-up of a sleeping program) without effect, because the scene drives the peer
/// itself.
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) -> bool {
        true
    }
}

/// A separate host with one well-behaved program.
pub struct Peer {
    link: Link,
    rings: Rings,
    /// Connections, oldest first.
    pub connections: Vec<Connection>,
}

impl Peer {
    /// Creates a peer. Returns the peer, and the far end of its host's NIC in memory.
    pub fn new(now: Instant) -> (Self, MemPort) {
        let (link, far) = Link::new(PEER, MACS[1], now);
        let layout = Layout::new(256, 4 << 20, 4 << 20).expect("a possible layout");
        let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
        let rings = Rings::new(&region, 0, 1).expect("a first context");
        let mut core = link.core();
        set_network(&mut core.host, now, PEER);
        let id = core.host.add_program("peer".to_owned(), 1, region);
        assert!(core.host.add_context(id, 0, Box::new(NoBell)));
        let listen = Listen {
            number: 1,
            key: 1,
            local: Endpoint::new(IpAddress::from_v4(PEER), PEER_PORT),
            v6_only: false,
            group: None,
            backlog: 64,
            within_host: false,
        };
        core.host.listen(id, &listen).expect("a listener");
        drop(core);
        let mut peer = Self {
            link,
            rings,
            connections: Vec::new(),
        };
        peer.rings.join(1);
        (peer, far)
    }

    /// Opens a connection to a port of the service's host.
    pub fn connect(&mut self, port: u16) {
        let service = IpAddress::from_v4(SERVICE);
        self.rings.connect(service.0, port, 0);
    }

    /// Takes one step. Accepts the connections of the listener, and records all new connections.
    pub fn step(&mut self, now: Instant) {
        self.link.step(now);
        answer_requests(&self.link, |host, now, addr| {
            let ports: Vec<u16> = (20_000..20_064).collect();
            host.add_ports(now, addr, &ports);
        });
        for event in self.rings.events() {
            match event {
                Event::Accepted(connection) => {
                    self.rings.accept(connection, 1);
                    self.connections.push(connection);
                }
                Event::Started(connection) => self.connections.push(connection),
                Event::Failed | Event::Ready(_) => {}
            }
        }
    }

    /// Returns the rings of the peer's context.
    pub fn rings(&mut self) -> &mut Rings {
        &mut self.rings
    }
}

/// Sets the only address and the only route of a host. The prefix length of the route counts the
/// 96 bits before the IPv4 address in its IPv6 form.
pub fn set_network(host: &mut Host<MemPort>, now: Instant, own: [u8; 4]) {
    let source = IpAddress::from_v4(own);
    let on_link = Route {
        prefix: IpAddress::from_v4([10, 77, 0, 0]),
        prefix_len: 96 + 24,
        gateway: None,
        source,
    };
    host.set_routes(now, vec![source], vec![on_link]);
}

/// Answers a host's neighbour requests. `more_ports` answers the host's requests for ports. Returns
/// all other requests.
pub fn answer_requests(
    link: &Link,
    mut more_ports: impl FnMut(&mut Host<MemPort>, Instant, IpAddress),
) -> Vec<HostRequest> {
    let mut others = Vec::new();
    let mut core = link.core();
    let now = core.now;
    while let Some(request) = core.host.take_request() {
        match request {
            HostRequest::Resolve { addr } => {
                let ends = [SERVICE, PEER].map(IpAddress::from_v4);
                let mac = ends.iter().zip(MACS).find(|(end, _)| **end == addr);
                core.host.set_neighbour(now, addr, mac.map(|(_, mac)| mac));
            }
            HostRequest::MorePorts { addr } => more_ports(&mut core.host, now, addr),
            other => others.push(other),
        }
    }
    others
}

/// Returns the service's answer, or `None` if it has not arrived.
pub fn answer(service: &Service) -> Option<Result<Answer, Failure>> {
    match service.receive() {
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => None,
        answer => Some(answer),
    }
}

/// Maps the two memories of the mux port (a pair of packet rings to share the NIC) that an attacker
/// has opened. The mapping seals the memory that the attacker writes. Until this memory is sealed,
/// the service refuses the attacker's claims of 3-tuples.
pub fn seal(answer: &Answer) {
    for pair in answer.descriptors.chunks_exact(2).take(1) {
        let memories = [pair[0].as_fd(), pair[1].as_fd()];
        let port = &answer.message.packet_port;
        let mapped = PortRegions::map(memories, port.number, port.ring_len);
        mapped.expect("the memories of the service can be mapped");
    }
}
