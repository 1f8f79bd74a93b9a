//! Tests of how a [`NicContext`], the TCP and UDP stack within a program, claims ports. The tests
//! use a link in memory and a fake kernel. A claim reserves a port in the kernel, and steers the
//! port's packets to the context.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time,
};

use tidelane_direct::{DirectOptions, TimeSource};
use tidelane_direct_nic::{Kernel, NicContext, Transport};
use tidelane_embedded::{Duration, Instant, MemConfig, MemPort};
use tidelane_rings::{Context, Descriptor, Events, ListenOptions, ReadyList, Wait};
use tidelane_wire::{IpAddress, MacAddress};

/// IP addresses of the client and of the server.
const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// Link addresses of the client and of the server.
const LINK_ADDRESSES: [MacAddress; 2] = [
    MacAddress([2, 0, 0, 0, 0, 1]),
    MacAddress([2, 0, 0, 0, 0, 2]),
];
/// First port that the fake kernel selects. The fake kernel then counts up.
const FIRST_PORT: u16 = 40_000;

/// The state of a fake kernel, which the test sets and inspects.
#[derive(Default)]
struct KernelState {
    /// Claims of TCP ports.
    claims: BTreeSet<(IpAddress, u16)>,
    /// Claims of UDP ports.
    datagram_claims: BTreeSet<(IpAddress, u16)>,
    /// Ports that a kernel socket uses.
    used: BTreeSet<u16>,
    /// Addresses at which every claim is refused.
    refused: BTreeSet<IpAddress>,
    /// If there are this many TCP claims, every further claim is refused.
    claims_max: usize,
    /// Port that the fake kernel selects next.
    next_port: u16,
    /// Link address of every next hop. `None` if no next hop answers.
    next_hop: Option<MacAddress>,
    /// Number of calls of `next_hop`.
    look_ups: usize,
    /// True after the context has dropped the fake kernel.
    is_gone: bool,
}

impl KernelState {
    /// Returns the claims of a protocol.
    fn of(&mut self, transport: Transport) -> &mut BTreeSet<(IpAddress, u16)> {
        match transport {
            Transport::Tcp => &mut self.claims,
            Transport::Udp => &mut self.datagram_claims,
        }
    }
}

/// A fake kernel, which shares its state with the test.
struct FakeKernel(Rc<RefCell<KernelState>>);

impl Drop for FakeKernel {
    fn drop(&mut self) {
        self.0.borrow_mut().is_gone = true;
    }
}

impl Kernel for FakeKernel {
    fn claim(&mut self, addr: IpAddress, transport: Transport, port: u16) -> io::Result<u16> {
        let mut state = self.0.borrow_mut();
        if state.used.contains(&port) || state.refused.contains(&addr) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if state.claims.len() >= state.claims_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let port = match port {
            0 => {
                state.next_port += 1;
                state.next_port - 1
            }
            port => port,
        };
        let claims = state.of(transport);
        if !claims.insert((addr, port)) {
            assert_eq!(transport, Transport::Udp, "claimed twice");
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(port)
    }

    fn release(&mut self, addr: IpAddress, transport: Transport, port: u16) {
        let mut state = self.0.borrow_mut();
        let claims = state.of(transport);
        assert!(claims.remove(&(addr, port)), "released twice");
    }

    fn next_hop(&mut self, _peer: IpAddr) -> io::Result<MacAddress> {
        let mut state = self.0.borrow_mut();
        state.look_ups += 1;
        state
            .next_hop
            .ok_or_else(|| io::ErrorKind::HostUnreachable.into())
    }
}

/// A virtual clock. Each wait advances the clock by 1 ms, whatever the time limit of the wait.
struct VirtualClock(Rc<Cell<Instant>>);

impl<P> TimeSource<P> for VirtualClock {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn wait(&mut self, _port: &mut P, _limit: Option<time::Duration>) -> io::Result<()> {
        self.0.set(self.0.get() + Duration::from_millis(1));
        Ok(())
    }
}

/// One end of the link: a context, the ready list (the events of the last `sync`), and the state of
/// the context's fake kernel.
struct End {
    context: NicContext<MemPort, FakeKernel>,
    list: ReadyList,
    kernel: Rc<RefCell<KernelState>>,
}

impl End {
    fn sync(&mut self) {
        self.context
            .sync(&mut self.list, Wait::For(time::Duration::from_millis(1)))
            .expect("a working link");
    }

    /// Returns the first descriptor in the ready list that has at least one of `events`.
    fn first_with(&self, events: Events) -> Option<Descriptor> {
        let entries = (0..self.list.len()).map(|at| self.list.entry(at));
        let mut found = entries.filter(|entry| entry.events.intersects(events));
        found.next().map(|entry| entry.descriptor)
    }

    /// Returns the claims of TCP ports: addresses and ports.
    fn claims(&self) -> Vec<(IpAddress, u16)> {
        self.kernel.borrow().claims.iter().copied().collect()
    }
}

/// Returns a client (index 0) and a server (index 1) on one link. `extra` are additional addresses
/// of the server.
fn pair(extra: &[IpAddress]) -> [End; 2] {
    let clock = Rc::new(Cell::new(Instant::from_secs(1)));
    let (near, far) = MemPort::pair(MemConfig::default());
    let mut ports = [Some(near), Some(far)];
    [0, 1].map(|end| {
        let address = IpAddress::from_v4(ADDRESSES[end]);
        let mut options = DirectOptions::new(address, [end as u8 + 1; 16]);
        options.buffers = 256;
        options.stack.mac = LINK_ADDRESSES[end];
        if end == 1 {
            options.stack.addresses.extend(extra);
        }
        let state = Rc::new(RefCell::new(KernelState {
            claims_max: usize::MAX,
            next_port: FIRST_PORT,
            next_hop: Some(LINK_ADDRESSES[1 - end]),
            ..KernelState::default()
        }));
        let kernel = FakeKernel(Rc::clone(&state));
        let time = VirtualClock(Rc::clone(&clock));
        let port = ports[end].take().expect("an unused port");
        End {
            context: NicContext::new(&options, port, time, kernel).expect("valid options"),
            list: ReadyList::new(),
            kernel: state,
        }
    })
}

/// Returns the server's first address with `port`.
fn server(port: u16) -> SocketAddr {
    (ADDRESSES[1], port).into()
}

fn listen(end: &mut End, local: SocketAddr) -> io::Result<Descriptor> {
    end.context.listen(local, &ListenOptions::default())
}

/// Connects to port 80 of the server. Returns the descriptors of both ends.
fn connect(ends: &mut [End; 2]) -> (Descriptor, Descriptor) {
    let client = ends[0].context.connect(server(80)).expect("a port");
    let (mut connected, mut accepted) = (false, None);
    for _ in 0..1000 {
        ends.iter_mut().for_each(End::sync);
        connected |= ends[0].first_with(Events::CONNECTED) == Some(client);
        accepted = accepted.or(ends[1].first_with(Events::ACCEPTED));
        if let Some(accepted) = accepted.filter(|_| connected) {
            return (client, accepted);
        }
    }
    panic!("no connection");
}

/// Sends 1,000 bytes from the end with the index `from`, and asserts that the other end receives
/// these bytes.
fn transfer(ends: &mut [End; 2], from: usize, (sender, receiver): (Descriptor, Descriptor)) {
    let data: Vec<u8> = (0..1000_u32).map(|at| (at * 31 % 251) as u8).collect();
    let mut buffer = ends[from].context.allocate(sender).expect("a buffer");
    assert_eq!(buffer.append(&data), data.len());
    ends[from].context.send(sender, buffer).expect("room");
    let mut got = Vec::new();
    for _ in 0..1000 {
        ends.iter_mut().for_each(End::sync);
        let end = &mut ends[1 - from];
        for at in 0..end.list.len() {
            if end.list.entry(at).descriptor == receiver {
                while let Some(buffer) = end.list.take_next(at) {
                    got.extend_from_slice(buffer.payload());
                }
            }
        }
        if got.len() >= data.len() {
            return assert!(got == data);
        }
    }
    panic!("{} of {} bytes", got.len(), data.len());
}

/// Closes a connection. The server closes first, so that TIME-WAIT is at the server.
fn close(ends: &mut [End; 2], (client, accepted): (Descriptor, Descriptor)) {
    ends[1].context.close(accepted);
    for _ in 0..1000 {
        ends.iter_mut().for_each(End::sync);
        if ends[0].first_with(Events::END) == Some(client) {
            ends[0].context.close(client);
            // Allow time for the FIN and its ACK.
            for _ in 0..5 {
                ends.iter_mut().for_each(End::sync);
            }
            return;
        }
    }
    panic!("the connection stays");
}

/// A listener claims its port, and a connect claims a port that the kernel selects. Later connects
/// reuse the port after its connection has ended. Dropping a context drops its [`Kernel`], which
/// holds the claims.
#[test]
fn ports_are_claimed_once() {
    let mut ends = pair(&[]);
    let listener = listen(&mut ends[1], server(80)).expect("a free port");
    let [client, server_address] = ADDRESSES.map(IpAddress::from_v4);
    assert_eq!(ends[1].claims(), [(server_address, 80)]);
    for round in 1..=20 {
        let (near, far) = connect(&mut ends);
        transfer(&mut ends, 0, (near, far));
        transfer(&mut ends, 1, (far, near));
        close(&mut ends, (near, far));
        assert_eq!(ends[0].claims(), [(client, FIRST_PORT)], "round {round}");
        assert_eq!(ends[0].kernel.borrow().look_ups, round);
    }
    // The listener's connections and claim stay after the listener is closed.
    let (near, far) = connect(&mut ends);
    ends[1].context.close(listener);
    transfer(&mut ends, 0, (near, far));
    assert_eq!(ends[1].claims(), [(server_address, 80)]);
    listen(&mut ends[1], server(80)).expect("a port that this context has claimed");
    close(&mut ends, (near, far));
    let state = Rc::clone(&ends[1].kernel);
    assert!(!state.borrow().is_gone);
    drop(ends);
    assert!(state.borrow().is_gone);
}

/// Dropping a context ends its connection at the peer, too.
#[test]
fn the_end_of_a_context_resets_its_connections() {
    let mut ends = pair(&[]);
    listen(&mut ends[1], server(80)).expect("a free port");
    let (near, _) = connect(&mut ends);
    let [mut client, server] = ends;
    drop(server);
    for _ in 0..1000 {
        client.sync();
        if client.first_with(Events::CLOSED) == Some(near) {
            return;
        }
    }
    panic!("no reset arrives");
}

/// Concurrent connections to one peer use different local ports. If no claimed port is free and the
/// kernel refuses a further claim, a connect fails. A later connect reuses the port of a connection
/// that has ended.
#[test]
fn opens_beyond_the_ports_fail_until_a_port_is_free() {
    let mut ends = pair(&[]);
    listen(&mut ends[1], server(80)).expect("a free port");
    ends[0].kernel.borrow_mut().claims_max = 50;
    let mut open: Vec<_> = (0..50).map(|_| connect(&mut ends)).collect();
    assert_eq!(ends[0].claims().len(), 50);
    for _ in 0..3 {
        let refused = ends[0].context.connect(server(80)).expect_err("no port");
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
    }
    // A connection to another port of the peer can use one of the claimed local ports.
    let other = ends[0].context.connect(server(81)).expect("another port");
    ends[0].context.abort(other);
    for at in [3, 30, 0] {
        close(&mut ends, open.swap_remove(at));
    }
    for _ in 0..3 {
        connect(&mut ends);
    }
    assert!(ends[0].context.connect(server(80)).is_err());
    assert_eq!(ends[0].claims().len(), 50);
}

/// A listener at 0.0.0.0 claims the port at all IPv4 addresses. A listener at `::` claims the port
/// at the addresses of both IP versions. If one claim fails, no claim and no listener remains.
#[test]
fn a_listener_claims_all_its_addresses() {
    let v4 = IpAddress::from_v4([10, 0, 0, 3]);
    let v6 = IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let mut ends = pair(&[v4, v6]);
    let first = IpAddress::from_v4(ADDRESSES[1]);
    let end = &mut ends[1];
    let any_v4: SocketAddr = ([0, 0, 0, 0], 80).into();
    let any_v6: SocketAddr = ([0_u16; 8], 80).into();
    end.kernel.borrow_mut().refused.insert(v4);
    let refused = listen(end, any_v4).expect_err("one address is refused");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(end.claims(), []);
    end.kernel.borrow_mut().refused.clear();
    listen(end, any_v4).expect("a free port");
    assert_eq!(end.claims(), [(first, 80), (v4, 80)]);
    // A refused listener adds no claim, and does not remove the claims of the other listener.
    let refused = listen(end, any_v6).expect_err("[::] covers IPv4, too");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(end.claims(), [(first, 80), (v4, 80)]);
    let other_port: SocketAddr = ([0_u16; 8], 81).into();
    listen(end, other_port).expect("a free port");
    let mut expected = vec![(first, 80), (v4, 80), (first, 81), (v4, 81), (v6, 81)];
    expected.sort_unstable();
    assert_eq!(end.claims(), expected);
    end.kernel.borrow_mut().used.insert(8080);
    for (local, kind) in [
        (server(8080), io::ErrorKind::AddrInUse),
        (server(0), io::ErrorKind::InvalidInput),
        (([10, 0, 0, 9], 80).into(), io::ErrorKind::AddrNotAvailable),
    ] {
        let refused = listen(end, local).expect_err("refused");
        assert_eq!(refused.kind(), kind, "{local}");
    }
    assert_eq!(end.claims(), expected);
}

/// A connect to an unreachable peer fails and claims nothing.
#[test]
fn an_unreachable_peer_is_an_error_of_the_open() {
    let mut ends = pair(&[]);
    ends[0].kernel.borrow_mut().next_hop = None;
    for _ in 0..1000 {
        let refused = ends[0]
            .context
            .connect(server(80))
            .expect_err("no neighbour");
        assert_eq!(refused.kind(), io::ErrorKind::HostUnreachable);
    }
    let v6: SocketAddr = ([0xfd00, 0, 0, 0, 0, 0, 0, 2], 80).into();
    let refused = ends[0].context.connect(v6).expect_err("no address");
    assert_eq!(refused.kind(), io::ErrorKind::AddrNotAvailable);
    assert_eq!(ends[0].claims(), []);
    assert!(ends[0].context.direct().has_no_connections());
}

/// Queues a datagram from the socket `from` to `peer`.
fn send_datagram(end: &mut End, from: Descriptor, payload: &[u8], peer: SocketAddr) {
    let mut buffer = end.context.pool().allocate().expect("free");
    assert_eq!(buffer.append(payload), payload.len());
    end.context.send_to(from, buffer, peer).expect("room");
}

/// Runs both ends until the end with the index `at` receives a datagram. Returns the sender and the
/// payload.
fn await_datagram(ends: &mut [End; 2], at: usize) -> (SocketAddr, Vec<u8>) {
    for _ in 0..1000 {
        ends.iter_mut().for_each(End::sync);
        if let Some((sender, buffer)) = ends[at].list.take_datagram(0) {
            return (sender, buffer.payload().to_vec());
        }
    }
    panic!("no datagram");
}

/// A UDP socket claims its port until the socket is closed. The context looks up the next hop in
/// the kernel only for a peer that has sent nothing. Answers to a sender go to the source link
/// address of the sender's frame.
#[test]
fn a_udp_socket_claims_its_port() {
    let mut ends = pair(&[]);
    let [client_address, server_address] = ADDRESSES.map(IpAddress::from_v4);
    listen(&mut ends[1], server(53)).expect("TCP");
    let bound = ends[1].context.bind(server(53)).expect("UDP");
    let refused = ends[1].context.bind(server(53)).expect_err("in use");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    let socket = ends[0].context.bind(([0; 4], 0).into()).expect("a port");
    for _ in 0..3 {
        send_datagram(&mut ends[0], socket, b"request", server(53));
        let (client, request) = await_datagram(&mut ends, 1);
        assert_eq!(client, (ADDRESSES[0], FIRST_PORT).into());
        assert_eq!(request, b"request");
        send_datagram(&mut ends[1], bound, b"answer", client);
        let (sender, answer) = await_datagram(&mut ends, 0);
        assert_eq!((sender, &answer[..]), (server(53), &b"answer"[..]));
    }
    let look_ups = ends.each_ref().map(|end| end.kernel.borrow().look_ups);
    assert_eq!(look_ups, [1, 0]);
    let claims = |end: &End| end.kernel.borrow().datagram_claims.clone();
    assert_eq!(claims(&ends[0]), [(client_address, FIRST_PORT)].into());
    assert_eq!(claims(&ends[1]), [(server_address, 53)].into());
    ends[0].context.close(socket);
    ends[1].context.abort(bound);
    assert_eq!((claims(&ends[0]), claims(&ends[1])), Default::default());
    assert_eq!(ends[1].claims(), [(server_address, 53)]);
}

/// A datagram to an unreachable peer fails. When the peer has become reachable, the socket can send
/// to the peer.
#[test]
fn a_datagram_to_an_unreachable_peer_fails() {
    let mut ends = pair(&[]);
    let socket = ends[0].context.bind(([0; 4], 0).into()).expect("a port");
    ends[0].kernel.borrow_mut().next_hop = None;
    send_datagram(&mut ends[0], socket, b"lost", server(53));
    ends[0].sync();
    assert_eq!(ends[0].first_with(Events::SEND_FAILED), Some(socket));
    ends[0].kernel.borrow_mut().next_hop = Some(LINK_ADDRESSES[1]);
    ends[1].context.bind(server(53)).expect("a free port");
    send_datagram(&mut ends[0], socket, b"there", server(53));
    assert_eq!(await_datagram(&mut ends, 1).1, b"there");
}

/// A UDP socket at an unspecified address claims its port at all addresses of the IP version, even
/// if the kernel selects the port. If one claim fails, no claim remains.
#[test]
fn a_udp_socket_claims_all_its_addresses() {
    let second = IpAddress::from_v4([10, 0, 0, 3]);
    let v6 = IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let mut ends = pair(&[second, v6]);
    let first = IpAddress::from_v4(ADDRESSES[1]);
    let end = &mut ends[1];
    let claims = |end: &End| end.kernel.borrow().datagram_claims.clone();
    let any_v4 = |port: u16| SocketAddr::from(([0; 4], port));
    // The port that the kernel selects first is in use at the second address.
    let other = (second, FIRST_PORT);
    end.kernel.borrow_mut().datagram_claims.insert(other);
    let bound = end.context.bind(any_v4(0)).expect("another port");
    let port = FIRST_PORT + 1;
    assert_eq!(claims(end), [other, (first, port), (second, port)].into());
    end.context.close(bound);
    let refused = end.context.bind(any_v4(FIRST_PORT)).expect_err("in use");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(claims(end), [other].into());
    let any_v6 = SocketAddr::from(([0_u16; 8], 53));
    end.context.bind(any_v6).expect("a free port");
    assert_eq!(claims(end), [other, (v6, 53)].into());
    let foreign = SocketAddr::from(([10, 0, 0, 9], 53));
    let refused = end.context.bind(foreign).expect_err("another host");
    assert_eq!(refused.kind(), io::ErrorKind::AddrNotAvailable);
}
