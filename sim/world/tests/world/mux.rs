//! The mux (`service/mux`) with real stacks. The mux shares one NIC and one address between three
//! stacks. The embedded stack and smoltcp each have a mux port (the packet interface of a program
//! to the mux, here a link in memory). The third stack takes the place of the host, which gets the
//! packets that no mux port claims. The peer is at the other end of the NIC.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{self, DeviceCapabilities, Medium},
    socket::tcp,
    wire::{HardwareAddress, IpAddress as SmolAddress, IpCidr},
};
use tidelane_embedded::{
    Connection, Duration, Endpoint, FnPort, Instant, IpAddress, Listener, MacAddress, MemConfig,
    MemPort, PacketIo, Stack, StackConfig,
};
use tidelane_mux::{Mux, PortId, ProgramPort, Tuple};
use tidelane_packet_io::{Burst, TxChecksum};
use tidelane_wire::{TcpFlags, parse_ipv4, parse_tcp};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const LOCAL: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
const PEER: IpAddress = IpAddress::from_v4([10, 0, 0, 2]);
/// TCP ports of the three servers: on the embedded stack, on smoltcp, and on the host.
const SERVERS: [u16; 3] = [1000, 1001, 22];
/// Bytes that each client sends and gets back.
const LEN: usize = 300_000;

/// smoltcp's network device on a mux port.
struct Device(ProgramPort<MemPort>);

/// A received packet.
struct RxToken(Vec<u8>);

/// A permission to send one packet.
struct TxToken<'a>(&'a mut ProgramPort<MemPort>);

impl phy::Device for Device {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(RxToken, TxToken<'_>)> {
        let mut burst = self.0.new_burst();
        self.0.rx_burst(&mut burst, 1);
        let packet = burst.frame(0).map(|frame| frame[14..].to_vec());
        self.0.rx_release(&mut burst);
        Some((RxToken(packet?), TxToken(&mut self.0)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<TxToken<'_>> {
        self.0.tx_frame()?;
        Some(TxToken(&mut self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let result = write(&mut packet);
        if let Some(frame) = self.0.tx_frame() {
            frame[..6].copy_from_slice(&PEER_MAC.0);
            frame[6..12].copy_from_slice(&MAC.0);
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame[14..14 + len].copy_from_slice(&packet);
            self.0.tx_commit(14 + len, TxChecksum::Done);
            self.0.tx_flush();
        }
        result
    }
}

/// An echo server on smoltcp.
struct Smol {
    device: Device,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Smol {
    fn new(port: ProgramPort<MemPort>) -> Self {
        let mut device = Device(port);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = 7;
        let mut interface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let local = SmolAddress::v4(10, 0, 0, 1);
            addresses.push(IpCidr::new(local, 24)).unwrap();
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; 65_535]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.listen(SERVERS[1]).unwrap();
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Self {
            device,
            interface,
            sockets,
            socket,
        }
    }

    fn turn(&mut self, now: Instant) {
        let now = smoltcp::time::Instant::from_micros(now.as_micros() as i64);
        self.interface
            .poll(now, &mut self.device, &mut self.sockets);
        let socket = self.sockets.get_mut::<tcp::Socket>(self.socket);
        let mut buffer = [0; 4096];
        while socket.can_recv() && socket.send_capacity() - socket.send_queue() >= buffer.len() {
            let count = socket.recv_slice(&mut buffer).unwrap();
            assert_eq!(socket.send_slice(&buffer[..count]), Ok(count));
        }
    }
}

/// An echo server on the embedded stack.
struct Echo<P: PacketIo> {
    stack: Stack<P>,
    listener: Listener,
    connections: Vec<Connection>,
}

impl<P: PacketIo> Echo<P> {
    fn new(port: P, listens_at: u16) -> Self {
        let config = StackConfig {
            mac: MAC,
            gateway: PEER_MAC,
            ..StackConfig::new(LOCAL, [listens_at as u8; 16])
        };
        let mut stack = Stack::new(config, port);
        let listener = stack.listen(Endpoint::new(LOCAL, listens_at), 8).unwrap();
        Self {
            stack,
            listener,
            connections: Vec::new(),
        }
    }

    fn turn(&mut self, now: Instant) {
        self.stack.poll(now);
        self.connections.extend(self.stack.accept(self.listener));
        for connection in &self.connections {
            let data = self.stack.received(*connection).concat();
            let written = self.stack.write(*connection, &data);
            self.stack.consume(*connection, written);
        }
        self.stack.flush();
    }
}

/// The peer's end of the NIC, and the number of resets that the peer has received, by the server's
/// TCP port.
type Wire = Rc<RefCell<(MemPort, HashMap<u16, u32>)>>;
type PeerPort = FnPort<Box<dyn FnMut(&mut [u8]) -> Option<usize>>, Box<dyn FnMut(&[u8]) -> bool>>;

/// Makes the packet interface of the peer at `wire`. Every `loss`-th packet to the peer is lost.
/// Zero means no loss.
fn peer_port(wire: &Wire, loss: u32) -> PeerPort {
    let (rx, tx, mut count) = (Rc::clone(wire), Rc::clone(wire), 0_u32);
    let receive = move |packet: &mut [u8]| {
        loop {
            let (port, resets) = &mut *rx.borrow_mut();
            let mut burst = port.new_burst();
            port.rx_burst(&mut burst, 1);
            let frame = burst.frame(0).map(<[u8]>::to_vec);
            port.rx_release(&mut burst);
            let frame = frame?;
            let segment = parse_ipv4(&frame[14..]).unwrap();
            let segment = parse_tcp(segment.payload).unwrap();
            if segment.flags.contains(TcpFlags::RST) {
                *resets.entry(segment.src_port).or_default() += 1;
            }
            count += 1;
            if loss == 0 || count % loss > 0 {
                packet[..frame.len() - 14].copy_from_slice(&frame[14..]);
                return Some(frame.len() - 14);
            }
        }
    };
    let send = move |packet: &[u8]| {
        let (port, _) = &mut *tx.borrow_mut();
        let Some(frame) = port.tx_frame() else {
            return false;
        };
        frame[..6].copy_from_slice(&MAC.0);
        frame[6..12].copy_from_slice(&PEER_MAC.0);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..14 + packet.len()].copy_from_slice(packet);
        port.tx_commit(14 + packet.len(), TxChecksum::Done);
        port.tx_flush();
        true
    };
    FnPort::new(1500, Box::new(receive), Box::new(send))
}

/// The peer's connection to one server.
struct Client {
    connection: Connection,
    /// Number of bytes that the client has written.
    sent: usize,
    /// The bytes that the client has received.
    got: Vec<u8>,
}

/// All stacks, and the mux between them.
struct Net {
    mux: Mux<MemPort, MemPort, MemPort>,
    embedded: Option<Echo<ProgramPort<MemPort>>>,
    embedded_port: PortId,
    smol: Smol,
    host: Echo<MemPort>,
    peer: Stack<PeerPort>,
    clients: Vec<Client>,
    wire: Wire,
    now: Instant,
    /// The [`LEN`] bytes that each client sends.
    data: Vec<u8>,
}

impl Net {
    fn new(loss: u32) -> Self {
        let config = MemConfig {
            partial_checksums: false,
            ..MemConfig::default()
        };
        let (wire, nic) = MemPort::pair(config);
        let (host_port, host) = MemPort::pair(config);
        let mut mux = Mux::new(nic, host, MAC, vec![LOCAL], 64);
        let mut open = |number| {
            let (near, far) = MemPort::pair(config);
            let (id, doorbell) = mux.open(near).unwrap();
            let local = Endpoint::new(LOCAL, number);
            mux.ports_mut()
                .claim(Tuple { protocol: 6, local }, id)
                .unwrap();
            (id, ProgramPort::new(far, doorbell))
        };
        let (embedded_port, first) = open(SERVERS[0]);
        let (_, second) = open(SERVERS[1]);
        let wire = Rc::new(RefCell::new((wire, HashMap::new())));
        let mut peer = Stack::new(StackConfig::new(PEER, [9; 16]), peer_port(&wire, loss));
        let now = Instant::from_secs(1);
        peer.poll(now);
        let local = Endpoint::new(PEER, 0);
        let clients = SERVERS.map(|port| Client {
            connection: peer.connect(local, Endpoint::new(LOCAL, port)).unwrap(),
            sent: 0,
            got: Vec::new(),
        });
        Self {
            mux,
            embedded: Some(Echo::new(first, SERVERS[0])),
            embedded_port,
            smol: Smol::new(second),
            host: Echo::new(host_port, SERVERS[2]),
            peer,
            clients: clients.into(),
            wire,
            now,
            data: (0..LEN).map(|n| (n * 31 % 251) as u8).collect(),
        }
    }

    fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        self.peer.poll(self.now);
        for client in &mut self.clients {
            let rest = &self.data[client.sent..];
            client.sent += self.peer.write(client.connection, rest);
            let got = self.peer.received(client.connection).concat();
            self.peer.consume(client.connection, got.len());
            client.got.extend(got);
        }
        self.peer.flush();
        self.mux.step();
        if let Some(embedded) = &mut self.embedded {
            embedded.turn(self.now);
        }
        self.smol.turn(self.now);
        self.host.turn(self.now);
        self.mux.step();
    }

    /// Runs until the clients with the indices `of` have received all their data.
    fn run(&mut self, of: &[usize]) {
        for _ in 0..2_000_000 {
            self.turn();
            if of.iter().all(|at| self.clients[*at].got.len() == LEN) {
                return;
            }
        }
        let got: Vec<usize> = self.clients.iter().map(|client| client.got.len()).collect();
        panic!("the clients have {got:?} of {LEN} bytes");
    }

    fn check(&self, of: &[usize]) {
        for at in of {
            assert!(self.clients[*at].got == self.data, "client {at}");
        }
    }

    fn resets(&self) -> HashMap<u16, u32> {
        self.wire.borrow().1.clone()
    }
}

#[test]
fn three_stacks_share_an_address() {
    let mut net = Net::new(0);
    net.run(&[0, 1, 2]);
    net.check(&[0, 1, 2]);
    assert!(net.resets().is_empty(), "{:?}", net.resets());
}

#[test]
fn three_stacks_share_an_address_over_a_lossy_wire() {
    let mut net = Net::new(20);
    net.run(&[0, 1, 2]);
    net.check(&[0, 1, 2]);
    assert!(net.resets().is_empty(), "{:?}", net.resets());
}

/// The embedded stack dies during the transfer. The mux then passes the packets of the stack's
/// connection to the host. The host resets the connection, as Linux resets the connections of a
/// dead program. No other connection is disturbed.
#[test]
fn the_crash_of_one_stack_disturbs_no_other() {
    let mut net = Net::new(0);
    while net.clients[0].got.len() < LEN / 3 {
        net.turn();
    }
    net.embedded = None;
    assert!(net.mux.ports_mut().close(net.embedded_port).is_some());
    net.run(&[1, 2]);
    net.check(&[1, 2]);
    // The peer ignores a reset whose sequence number is below its RCV.NXT. A reset that answers a
    // retransmission of the peer has the right number, so run until the peer retransmits.
    for _ in 0..10_000 {
        net.turn();
    }
    let resets = net.resets();
    assert!(
        resets.get(&SERVERS[0]).is_some_and(|count| *count > 0),
        "{resets:?}"
    );
    assert_eq!(resets.len(), 1, "{resets:?}");
    assert!(net.peer.is_end(net.clients[0].connection));
}

/// A new version of the program takes over the 3-tuple (protocol, local address, local port). The
/// new version does not know the idle connection of the old version. A new connection reaches the
/// new version.
#[test]
fn a_new_stack_takes_the_3_tuples_over() {
    let mut net = Net::new(0);
    net.run(&[0, 1, 2]);
    let config = MemConfig {
        partial_checksums: false,
        ..MemConfig::default()
    };
    let (near, far) = MemPort::pair(config);
    let (next, doorbell) = net.mux.open(near).unwrap();
    let (old, old_port) = (net.embedded.take().unwrap(), net.embedded_port);
    net.embedded = Some(Echo::new(ProgramPort::new(far, doorbell), SERVERS[0]));
    assert!(net.mux.ports_mut().hand_over(old_port, next));
    drop(old);
    let server = Endpoint::new(LOCAL, SERVERS[0]);
    let connection = net.peer.connect(Endpoint::new(PEER, 0), server).unwrap();
    net.clients[0] = Client {
        connection,
        sent: 0,
        got: Vec::new(),
    };
    net.run(&[0]);
    net.check(&[0]);
    assert!(net.resets().is_empty(), "{:?}", net.resets());
}
