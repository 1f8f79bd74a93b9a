//! A host that runs smoltcp, an independent implementation of TCP/IP.
//!
//! The programs of this host follow the same plans as the programs of Tidelane's hosts
//! ([`ConnectionEnd`]). A connection with another kind of host therefore tests two implementations
//! together. A program with smoltcp on a mux port (packet rings to a service) also uses
//! [`SmoltcpHost`].

mod device;
mod stream;

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    socket::tcp,
    wire::{HardwareAddress, IpCidr, IpEndpoint},
};
use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};
use tidelane_wire::Endpoint;

use crate::{
    connection_end::{ConnectionEnd, Next, RunState},
    family::{Family, IPV6_MTU_MIN},
    ledger::Violation,
    plan::Role,
    smoltcp_spec::SmoltcpSpec,
    topology::{Topology, address},
    worker::Start,
};
use device::Device;
use stream::SmoltcpStream;

/// Longest delay from the arrival of a frame to its processing, in nanoseconds.
const WAKE_TIME_MAX: u64 = 20_000;
/// Interval of the checks for peers that have disappeared without a reset.
const GONE_PEER_INTERVAL: Duration = Duration::from_secs(20);
/// First port of the ephemeral range.
const PORT_FIRST: u16 = 49_152;

/// All sockets of the host, which the interface and the streams share.
type Sockets = Rc<RefCell<SocketSet<'static>>>;

/// A connection that its program has not closed.
struct Connection {
    end: ConnectionEnd<SmoltcpStream>,
    /// Time at which the program serves the connection next. `None` if the program waits for an
    /// event.
    at: Option<Instant>,
}

/// A host with smoltcp as its stack, and its programs.
pub struct SmoltcpHost {
    /// Time of the next run. `None` while the host waits for a frame.
    pub next: Option<Instant>,
    spec: SmoltcpSpec,
    device: Device,
    interface: Interface,
    sockets: Sockets,
    /// Listening sockets that wait for a SYN or for the end of the handshake, with their ports.
    listening: Vec<(u16, SocketHandle)>,
    connections: Vec<Connection>,
    /// Sockets that their program has closed, and whose connections TCP has not yet finished.
    lingering: Vec<SmoltcpStream>,
    /// Active opens that have not begun, in the order of time.
    starts: VecDeque<Start>,
    /// Time of the next check for peers that have disappeared.
    next_gone_check: Instant,
    /// Local port of the next active open.
    next_port: u16,
    /// Number of connections accepted so far.
    accepted: u64,
    rng: Rng,
}

fn micros(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.as_micros() as i64)
}

fn smol(endpoint: Endpoint) -> IpEndpoint {
    IpEndpoint::new(std::net::IpAddr::from(endpoint.addr).into(), endpoint.port)
}

/// Returns true if a socket has a connection between these endpoints. smoltcp needs one listening
/// socket for each connection. Without this check, a retransmitted SYN would reach a second
/// listening socket.
fn is_known(sockets: &SocketSet<'_>, (peer, own): (Endpoint, Endpoint)) -> bool {
    let ends = (Some(smol(peer)), Some(smol(own)));
    sockets.iter().any(|(_, socket)| {
        let smoltcp::socket::Socket::Tcp(socket) = socket;
        (socket.remote_endpoint(), socket.local_endpoint()) == ends
    })
}

impl SmoltcpHost {
    /// Creates host `index` of `topology`. `starts` are in the order of time.
    pub fn new(
        index: usize,
        spec: &SmoltcpSpec,
        topology: &Topology,
        starts: VecDeque<Start>,
        rng: Rng,
    ) -> Self {
        let mut device = Device::new(index, spec.mtu, topology);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rng.fork(1).next_u64();
        let mut interface = Interface::new(config, &mut device, micros(Instant::ZERO));
        let own = |family| smol(Endpoint::new(address(family, index), 0)).addr;
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(own(Family::V4), 24));
            if spec.mtu >= IPV6_MTU_MIN {
                let _ = addresses.push(IpCidr::new(own(Family::V6), 64));
            }
        });
        Self {
            next: Some(Instant::ZERO),
            spec: *spec,
            device,
            interface,
            sockets: Rc::new(RefCell::new(SocketSet::new(Vec::new()))),
            listening: Vec::new(),
            connections: Vec::new(),
            lingering: Vec::new(),
            starts,
            next_gone_check: Instant::ZERO,
            next_port: PORT_FIRST,
            accepted: 0,
            rng: rng.fork(2),
        }
    }

    /// Sets the local TCP port of the first active open. Each further active open uses the next
    /// port.
    pub fn set_first_port(&mut self, port: u16) {
        self.next_port = port;
    }

    /// Listens on `port` with `backlog` sockets, each for one connection.
    pub fn listen(&mut self, port: u16, backlog: usize) {
        for _ in 0..backlog {
            let handle = self.new_socket();
            let mut sockets = self.sockets.borrow_mut();
            let listens = sockets.get_mut::<tcp::Socket>(handle).listen(port);
            listens.expect("a new socket can listen");
            self.listening.push((port, handle));
        }
    }

    fn new_socket(&mut self) -> SocketHandle {
        let buffer = |len| tcp::SocketBuffer::new(vec![0; len as usize]);
        let (rx, tx) = (buffer(self.spec.rx_len), buffer(self.spec.tx_len));
        let mut socket = tcp::Socket::new(rx, tx);
        socket.set_nagle_enabled(self.spec.nagle);
        let delay = self.spec.ack_delay;
        let delay =
            (!delay.is_zero()).then(|| smoltcp::time::Duration::from_micros(delay.as_micros()));
        socket.set_ack_delay(delay);
        if self.spec.cubic {
            socket.set_congestion_control(tcp::CongestionControl::Cubic);
        }
        self.sockets.borrow_mut().add(socket)
    }

    /// Queues an arriving frame and schedules its processing.
    pub fn deliver(&mut self, now: Instant, frame: &[u8]) {
        self.device.arrive(frame);
        let at = now + Duration(self.rng.below(WAKE_TIME_MAX + 1));
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Takes the frames that the host has sent.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        self.device.take_sent()
    }

    /// Returns true if the programs of the host have finished.
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.starts.is_empty()
    }

    /// Returns true if TCP has finished all connections.
    pub fn is_over(&self) -> bool {
        self.is_idle() && self.lingering.is_empty()
    }

    /// Returns the ends of connections that the programs have not yet closed. For each end, returns
    /// the number of the connection (`None` if the number is unknown) and the role.
    pub fn open_ends(&self) -> Vec<(Option<u32>, Role)> {
        let ends = self.connections.iter();
        ends.map(|connection| connection.end.name()).collect()
    }

    /// Describes the connections that are not yet opened, or that TCP has not yet finished.
    pub fn describe(&self) -> String {
        let sockets = self.sockets.borrow();
        let is_open = |socket: &&tcp::Socket<'_>| {
            !matches!(socket.state(), tcp::State::Closed | tcp::State::Listen)
        };
        let sockets = sockets.iter().map(|(_, socket)| {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            socket
        });
        let states: Vec<_> = sockets
            .filter(is_open)
            .map(|socket| {
                (
                    socket.state(),
                    socket.local_endpoint(),
                    socket.remote_endpoint(),
                )
            })
            .collect();
        let (starts, sides) = (self.starts.len(), self.open_ends());
        format!("smoltcp: {starts} to start, open {sides:?}, sockets {states:?}")
    }

    /// Processes all frames that have arrived, and lets the programs serve their connections.
    pub fn run(&mut self, now: Instant, run_state: &mut RunState) -> Result<(), Violation> {
        // Process one frame at a time, to observe every state of a connection.
        loop {
            let more = self
                .device
                .admit(|ends| is_known(&self.sockets.borrow(), ends));
            self.poll(now);
            self.observe(now);
            if !more {
                break;
            }
        }
        self.open_due(now, run_state);
        self.give_turns(now, run_state)?;
        let closed = self.lingering.iter_mut();
        let aborts: Vec<_> = closed.map(|stream| stream.end_fin_wait_2(now)).collect();
        self.poll(now);
        self.observe(now);
        self.remove_finished(now, run_state);
        let due = self.interface.poll_at(micros(now), &self.sockets.borrow());
        let due = due.map(|at| Instant::from_micros(at.total_micros().max(0) as u64));
        let gone_check = (!self.connections.is_empty()).then_some(self.next_gone_check);
        self.next = [due, gone_check, self.starts.front().map(|start| start.at)]
            .into_iter()
            .chain(self.connections.iter().map(|connection| connection.at))
            .chain(aborts)
            .flatten()
            .min()
            .map(|at| at.max(now + Duration::from_micros(1)));
        Ok(())
    }

    fn poll(&mut self, now: Instant) {
        let mut sockets = self.sockets.borrow_mut();
        self.interface
            .poll(micros(now), &mut self.device, &mut sockets);
    }

    /// Updates the streams after a frame, and accepts new connections.
    fn observe(&mut self, now: Instant) {
        for connection in &mut self.connections {
            connection.end.stream().observe();
        }
        self.lingering.iter_mut().for_each(SmoltcpStream::observe);
        let mut taken = Vec::new();
        let sockets = self.sockets.clone();
        self.listening.retain(|(_, handle)| {
            let state = sockets.borrow().get::<tcp::Socket>(*handle).state();
            let waits = matches!(state, tcp::State::Listen | tcp::State::SynReceived);
            if !waits {
                taken.push(*handle);
            }
            waits
        });
        for handle in taken {
            self.accepted += 1;
            let mut stream = SmoltcpStream::new(self.sockets.clone(), handle);
            stream.observe();
            let rng = self.rng.fork(self.accepted << 1 | 1);
            let end = ConnectionEnd::server(now, stream, rng);
            self.connections.push(Connection { end, at: None });
        }
    }

    fn open_due(&mut self, now: Instant, run_state: &mut RunState) {
        while let Some(start) = self.starts.front().filter(|start| start.at <= now).copied() {
            self.starts.pop_front();
            let handle = self.new_socket();
            let port = self.next_port;
            self.next_port += 1;
            let to = smol(start.to);
            let mut sockets = self.sockets.borrow_mut();
            let socket = sockets.get_mut::<tcp::Socket>(handle);
            let connects = socket.connect(self.interface.context(), to, port);
            connects.expect("a new socket can connect");
            drop(sockets);
            let _ = run_state.ledger.open(now, start.id, Role::Client);
            let stream = SmoltcpStream::new(self.sockets.clone(), handle);
            let rng = self.rng.fork(u64::from(start.id) << 1);
            let end = ConnectionEnd::client(now, stream, start.id, run_state.seed, rng);
            self.connections.push(Connection { end, at: None });
        }
    }

    fn give_turns(&mut self, now: Instant, run_state: &mut RunState) -> Result<(), Violation> {
        let gone_check = now >= self.next_gone_check;
        if gone_check {
            self.next_gone_check = now + GONE_PEER_INTERVAL;
        }
        let mut open = Vec::new();
        for mut connection in std::mem::take(&mut self.connections) {
            let closed = match connection.end.turn(now, run_state)? {
                Next::Closed => true,
                Next::At(at) => {
                    connection.at = Some(at);
                    false
                }
                Next::Event => {
                    connection.at = None;
                    false
                }
            };
            if closed || (gone_check && connection.end.check_gone_peer(now, run_state)?) {
                let name = connection.end.name();
                self.lingering
                    .push(connection.end.into_stream().named(name));
            } else {
                open.push(connection);
            }
        }
        self.connections = open;
        Ok(())
    }

    /// Removes sockets whose connections TCP has finished.
    fn remove_finished(&mut self, now: Instant, run_state: &mut RunState) {
        self.lingering.retain_mut(|stream| {
            stream.discard_unread();
            let finished = stream.is_finished();
            if let (true, (Some(id), role)) = (finished, stream.name()) {
                // If the peer still sends to the removed socket, the peer receives a RST. The
                // ledger must therefore permit a RST.
                run_state.ledger.mark_broken(now, id, role);
            }
            if finished {
                stream.remove();
            }
            !finished
        });
    }
}
