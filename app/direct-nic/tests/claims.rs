//! Contexts that claim their ports, on a link in memory and with a kernel of the test.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time,
};

use tidelane_direct::{DirectOptions, TimeSource};
use tidelane_direct_nic::{Kernel, NicContext};
use tidelane_embedded::{Duration, Instant, MemConfig, MemPort};
use tidelane_rings::{Context, Descriptor, Events, ListenOptions, ReadyList, Wait};
use tidelane_wire::{IpAddress, MacAddress};

/// Addresses and link addresses of the client and of the server.
const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const LINKS: [MacAddress; 2] = [
    MacAddress([2, 0, 0, 0, 0, 1]),
    MacAddress([2, 0, 0, 0, 0, 2]),
];
/// First port of the kernel's choice.
const FIRST_PORT: u16 = 40_000;

/// Calls of one context to its kernel.
#[derive(Default)]
struct Calls {
    claims: BTreeSet<(IpAddress, u16)>,
    /// Ports that a socket has.
    used: BTreeSet<u16>,
    /// Addresses at which no port can be claimed.
    refused: BTreeSet<IpAddress>,
    claims_max: usize,
    next_port: u16,
    /// Link address of all next hops.
    next_hop: Option<MacAddress>,
    look_ups: usize,
    is_gone: bool,
}

/// The kernel of a context.
struct FakeKernel(Rc<RefCell<Calls>>);

impl Drop for FakeKernel {
    fn drop(&mut self) {
        self.0.borrow_mut().is_gone = true;
    }
}

impl Kernel for FakeKernel {
    fn claim(&mut self, addr: IpAddress, port: u16) -> io::Result<u16> {
        let mut calls = self.0.borrow_mut();
        if calls.used.contains(&port) || calls.refused.contains(&addr) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if calls.claims.len() >= calls.claims_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let port = match port {
            0 => {
                calls.next_port += 1;
                calls.next_port - 1
            }
            port => port,
        };
        assert!(calls.claims.insert((addr, port)), "claimed twice");
        Ok(port)
    }

    fn release(&mut self, addr: IpAddress, port: u16) {
        let mut calls = self.0.borrow_mut();
        assert!(calls.claims.remove(&(addr, port)), "released twice");
    }

    fn next_hop(&mut self, _peer: IpAddr) -> io::Result<MacAddress> {
        let mut calls = self.0.borrow_mut();
        calls.look_ups += 1;
        calls
            .next_hop
            .ok_or_else(|| io::ErrorKind::HostUnreachable.into())
    }
}

/// A virtual clock, which each wait advances.
struct VirtualTime(Rc<Cell<Instant>>);

impl<P> TimeSource<P> for VirtualTime {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn wait(&mut self, _port: &mut P, _limit: Option<time::Duration>) -> io::Result<()> {
        self.0.set(self.0.get() + Duration::from_millis(1));
        Ok(())
    }
}

/// A context, its list, and the calls to its kernel.
struct End {
    context: NicContext<MemPort, FakeKernel>,
    list: ReadyList,
    calls: Rc<RefCell<Calls>>,
}

impl End {
    fn sync(&mut self) {
        self.context
            .sync(&mut self.list, Wait::For(time::Duration::from_millis(1)))
            .expect("a link");
    }

    /// Returns the first descriptor with one of these events.
    fn with(&self, events: Events) -> Option<Descriptor> {
        let entries = (0..self.list.len()).map(|at| self.list.entry(at));
        let mut found = entries.filter(|entry| entry.events.intersects(events));
        found.next().map(|entry| entry.descriptor)
    }

    fn claims(&self) -> Vec<(IpAddress, u16)> {
        self.calls.borrow().claims.iter().copied().collect()
    }
}

/// Returns a client and a server on one link. `extra` are further addresses of the server.
fn pair(extra: &[IpAddress]) -> [End; 2] {
    let clock = Rc::new(Cell::new(Instant::from_secs(1)));
    let (near, far) = MemPort::pair(MemConfig::default());
    let mut ports = [Some(near), Some(far)];
    [0, 1].map(|end| {
        let address = IpAddress::from_v4(ADDRESSES[end]);
        let mut options = DirectOptions::new(address, [end as u8 + 1; 16]);
        options.buffers = 256;
        options.stack.mac = LINKS[end];
        if end == 1 {
            options.stack.addresses.extend(extra);
        }
        let calls = Rc::new(RefCell::new(Calls {
            claims_max: usize::MAX,
            next_port: FIRST_PORT,
            next_hop: Some(LINKS[1 - end]),
            ..Calls::default()
        }));
        let kernel = FakeKernel(Rc::clone(&calls));
        let time = VirtualTime(Rc::clone(&clock));
        let port = ports[end].take().expect("one of each");
        End {
            context: NicContext::new(&options, port, time, kernel).expect("possible"),
            list: ReadyList::new(),
            calls,
        }
    })
}

fn server(port: u16) -> SocketAddr {
    (ADDRESSES[1], port).into()
}

fn listen(end: &mut End, local: SocketAddr) -> io::Result<Descriptor> {
    end.context.listen(local, &ListenOptions::default())
}

/// Opens a connection to port 80 of the server. Returns both descriptors.
fn connect(ends: &mut [End; 2]) -> (Descriptor, Descriptor) {
    let client = ends[0].context.connect(server(80)).expect("a port");
    let (mut connected, mut accepted) = (false, None);
    for _ in 0..1000 {
        ends.iter_mut().for_each(End::sync);
        connected |= ends[0].with(Events::CONNECTED) == Some(client);
        accepted = accepted.or(ends[1].with(Events::ACCEPTED));
        if let Some(accepted) = accepted.filter(|_| connected) {
            return (client, accepted);
        }
    }
    panic!("no connection");
}

/// Sends `data`, and compares what arrives.
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
        if ends[0].with(Events::END) == Some(client) {
            ends[0].context.close(client);
            // The FIN, and its ACK.
            for _ in 0..5 {
                ends.iter_mut().for_each(End::sync);
            }
            return;
        }
    }
    panic!("the connection stays");
}

/// A listener claims its port, and a connection a port of the kernel's choice. Later connections
/// use the same port. The claims end with the context.
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
        assert_eq!(ends[0].calls.borrow().look_ups, round);
    }
    // Connections outlive their listener, and so does the claim.
    let (near, far) = connect(&mut ends);
    ends[1].context.close(listener);
    transfer(&mut ends, 0, (near, far));
    assert_eq!(ends[1].claims(), [(server_address, 80)]);
    listen(&mut ends[1], server(80)).expect("the port of the same context");
    close(&mut ends, (near, far));
    let calls = Rc::clone(&ends[1].calls);
    assert!(!calls.borrow().is_gone);
    drop(ends);
    assert!(calls.borrow().is_gone);
}

/// The end of a context resets its connections before its ports are left to the kernel.
#[test]
fn the_end_of_a_context_resets_its_connections() {
    let mut ends = pair(&[]);
    listen(&mut ends[1], server(80)).expect("a free port");
    let (near, _) = connect(&mut ends);
    let [mut client, server] = ends;
    drop(server);
    for _ in 0..1000 {
        client.sync();
        if client.with(Events::CLOSED) == Some(near) {
            return;
        }
    }
    panic!("no reset arrives");
}

/// Concurrent connections to one peer have a port each. Without a further port, an open fails and
/// leaves nothing. A port that is free again is used.
#[test]
fn opens_beyond_the_ports_fail_until_a_port_is_free() {
    let mut ends = pair(&[]);
    listen(&mut ends[1], server(80)).expect("a free port");
    ends[0].calls.borrow_mut().claims_max = 50;
    let mut open: Vec<_> = (0..50).map(|_| connect(&mut ends)).collect();
    assert_eq!(ends[0].claims().len(), 50);
    for _ in 0..3 {
        let refused = ends[0].context.connect(server(80)).expect_err("no port");
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
    }
    // The ports are free for another peer.
    let other = ends[0].context.connect(server(81)).expect("another peer");
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

/// A listener at an unspecified address claims the port at all addresses of the version. If one
/// claim fails, there are no claims and no listener.
#[test]
fn a_listener_claims_all_its_addresses() {
    let v4 = IpAddress::from_v4([10, 0, 0, 3]);
    let v6 = IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let mut ends = pair(&[v4, v6]);
    let first = IpAddress::from_v4(ADDRESSES[1]);
    let end = &mut ends[1];
    let any_v4: SocketAddr = ([0, 0, 0, 0], 80).into();
    let any_v6: SocketAddr = ([0_u16; 8], 80).into();
    end.calls.borrow_mut().refused.insert(v4);
    let refused = listen(end, any_v4).expect_err("one address is refused");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(end.claims(), []);
    end.calls.borrow_mut().refused.clear();
    listen(end, any_v4).expect("no listener is there");
    assert_eq!(end.claims(), [(first, 80), (v4, 80)]);
    // A refused listener has no claims, and leaves those of the other one.
    let refused = listen(end, any_v6).expect_err("it covers IPv4, too");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(end.claims(), [(first, 80), (v4, 80)]);
    let other_port: SocketAddr = ([0_u16; 8], 81).into();
    listen(end, other_port).expect("a free port");
    let mut expected = vec![(first, 80), (v4, 80), (first, 81), (v4, 81), (v6, 81)];
    expected.sort_unstable();
    assert_eq!(end.claims(), expected);
    end.calls.borrow_mut().used.insert(8080);
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

/// A peer that cannot be reached is the error of the open, which claims nothing.
#[test]
fn an_unreachable_peer_is_an_error_of_the_open() {
    let mut ends = pair(&[]);
    ends[0].calls.borrow_mut().next_hop = None;
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
