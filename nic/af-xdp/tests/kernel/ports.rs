//! Tests of the packets that an AF_XDP port receives and transmits, and of packets that the kernel
//! keeps. The demux (XDP program of `tidelane-steering`) redirects a packet to the AF_XDP port if a
//! claim (an entry in the demux's table) has the packet's destination address, protocol and port.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities},
};
use tidelane_af_xdp::{MTU_MAX, XdpBurst, XdpConfig, XdpError, XdpMode, XdpPort, queue_counts};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_steering::{
    Buffers, Claim, Demux, Scope, StackId, Steering,
    kernel_tables::{KernelTables, address_from_ipv4},
};

use crate::{
    frames::{self, ETHERNET_LEN, HOST, IP_LEN, PAYLOAD_AT, PEER},
    net::{Namespace, Pair, privileged},
};

pub const TIMEOUT: Duration = Duration::from_secs(3);
pub const CLAIMED_PORT: u16 = 7777;
const TCP: u8 = 6;

/// A veth pair with a demux and an AF_XDP port at its host end.
pub struct Testbed {
    pair: Pair,
    demux: Demux,
    pub port: XdpPort,
    /// Link addresses of the host end and of the peer's end.
    macs: ([u8; 6], [u8; 6]),
    burst: XdpBurst,
}

/// Returns the link address of `veth0` in a namespace.
pub fn mac(namespace: &Namespace) -> [u8; 6] {
    namespace.run(|| {
        KernelTables::open()
            .unwrap()
            .link_by_name("veth0")
            .unwrap()
            .mac
            .unwrap()
            .0
    })
}

impl Testbed {
    fn new(config: XdpConfig) -> Self {
        Self::over(Pair::new(), Buffers::One, config)
    }

    /// Opens an AF_XDP port on the host end of `pair`, and claims `CLAIMED_PORT` for TCP and UDP.
    pub fn over(pair: Pair, buffers: Buffers, config: XdpConfig) -> Self {
        let ifindex = pair.host.index("veth0");
        let (mut demux, port) = pair.host.run(|| {
            let queues = queue_counts("veth0").unwrap();
            assert_eq!((queues.rx, queues.tx), (1, 1));
            let demux = Demux::load_and_attach(ifindex, queues.rx, buffers).unwrap();
            (demux, XdpPort::open("veth0", 0, &config).unwrap())
        });
        demux.register_xsk(0, port.fd()).unwrap();
        for proto in [TCP, frames::UDP] {
            let addr = address_from_ipv4(HOST.into());
            demux
                .claim(
                    &Claim {
                        addr,
                        proto,
                        port: CLAIMED_PORT,
                    },
                    StackId(0),
                    Scope::Whole,
                )
                .unwrap();
        }
        let macs = (mac(&pair.host), mac(&pair.peer));
        Self {
            burst: port.new_burst(),
            pair,
            demux,
            port,
            macs,
        }
    }

    /// Waits for one frame and returns a copy of it.
    pub fn receive(&mut self) -> Vec<u8> {
        let start = Instant::now();
        while self.port.rx_burst(&mut self.burst, 1) == 0 {
            assert!(
                start.elapsed() < TIMEOUT,
                "no frame came: {:?}",
                self.port.statistics()
            );
            let tick = Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            poll(&mut [PollFd::new(&self.port, PollFlags::IN)], Some(&tick)).unwrap();
        }
        let bytes = self.burst.frame(0).expect("a frame").to_vec();
        self.port.rx_release(&mut self.burst);
        bytes
    }

    /// Queues a UDP frame to the peer, and leaves the checksum to the AF_XDP port or the device
    /// (`TxChecksum::Partial`). Returns false if the AF_XDP port has no free frame.
    pub fn send(&mut self, dest_port: u16, payload: &[u8]) -> bool {
        let ports = (CLAIMED_PORT, dest_port);
        let frame = frames::udp(self.macs, (HOST, PEER), ports, payload);
        let Some(room) = self.port.tx_frame() else {
            return false;
        };
        room[..frame.len()].copy_from_slice(&frame);
        let start = (ETHERNET_LEN + IP_LEN) as u16;
        self.port
            .tx_commit(frame.len(), TxChecksum::Partial { start, offset: 6 });
        true
    }

    /// Returns a UDP socket of the peer's kernel.
    pub fn peer_socket(&self) -> UdpSocket {
        let socket = self
            .pair
            .peer
            .run(|| UdpSocket::bind("10.77.0.2:0"))
            .unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }
}

/// Returns the address of the pair's host end with the TCP or UDP port `port`.
pub fn endpoint(port: u16) -> SocketAddr {
    SocketAddr::from((HOST, port))
}

/// A small configuration, so that rings and frames are reused many times.
pub fn small() -> XdpConfig {
    XdpConfig {
        rx_frames: 64,
        tx_packets: 64,
        ..XdpConfig::for_veth()
    }
}

#[test]
fn claimed_packets_come_here_and_all_others_stay_with_the_kernel() {
    if !privileged("claimed_packets_come_here_and_all_others_stay_with_the_kernel") {
        return;
    }
    let mut testbed = Testbed::new(XdpConfig::for_veth());
    assert_eq!(testbed.port.mode(), XdpMode::Copy);
    let peer = testbed.peer_socket();
    peer.send_to(b"for the service", endpoint(CLAIMED_PORT))
        .unwrap();
    let frame = testbed.receive();
    assert_eq!(&frame[..6], testbed.macs.0);
    assert_eq!(&frame[PAYLOAD_AT..], b"for the service");

    let connecting = testbed
        .pair
        .peer
        .run(|| TcpStream::connect_timeout(&endpoint(CLAIMED_PORT), Duration::from_millis(300)));
    assert_eq!(connecting.unwrap_err().kind(), ErrorKind::TimedOut);
    let syn = testbed.receive();
    assert_eq!(
        (syn[23], syn[ETHERNET_LEN + IP_LEN + 13]),
        (TCP, 2),
        "the frame is not a SYN"
    );

    the_kernel_still_serves(&testbed.pair, &peer);

    let counters = testbed.demux.counters().unwrap();
    assert!(
        counters.redirected >= 2 && counters.no_socket == 0,
        "{counters:?}"
    );
    assert!(
        counters.unclaimed >= 4 && counters.icmp >= 1,
        "{counters:?}"
    );
    assert!(counters.passed() > counters.unclaimed);
    let statistics = testbed.port.statistics().unwrap();
    assert_eq!(
        (statistics.rx_dropped, statistics.rx_fill_ring_empty),
        (0, 0)
    );
    assert_eq!(testbed.port.counters().rx_packets, counters.redirected);
}

/// Checks that the kernel still handles ICMP echo requests, and UDP and TCP without a claim.
fn the_kernel_still_serves(pair: &Pair, udp: &UdpSocket) {
    let kernel_udp = pair.host.run(|| UdpSocket::bind(endpoint(9999))).unwrap();
    kernel_udp.set_read_timeout(Some(TIMEOUT)).unwrap();
    udp.send_to(b"for the kernel", endpoint(9999)).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(kernel_udp.recv(&mut buffer).unwrap(), 14);

    let listener = pair.host.run(|| TcpListener::bind(endpoint(8080))).unwrap();
    let mut client = pair
        .peer
        .run(|| TcpStream::connect(endpoint(8080)))
        .unwrap();
    let mut server = listener.accept().unwrap().0;
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut buffer[..5]).unwrap();
    assert_eq!(&buffer[..5], b"hello");

    let icmp = raw_icmp(&pair.peer);
    let echo = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
    sendto(&icmp, &echo, SendFlags::empty(), &endpoint(0)).unwrap();
    let tick = Timespec {
        tv_sec: 3,
        tv_nsec: 0,
    };
    assert_eq!(
        poll(&mut [PollFd::new(&icmp, PollFlags::IN)], Some(&tick)).unwrap(),
        1
    );
    let (len, _) = recv(&icmp, &mut buffer[..], RecvFlags::DONTWAIT).unwrap();
    assert_eq!(buffer[IP_LEN..len][0], 0, "not an echo reply");
}

fn raw_icmp(namespace: &Namespace) -> OwnedFd {
    let (family, kind) = (AddressFamily::INET, SocketType::RAW);
    namespace
        .run(|| socket(family, kind, Some(ipproto::ICMP)))
        .unwrap()
}

#[test]
fn icmp_errors_about_claimed_connections_come_here() {
    if !privileged("icmp_errors_about_claimed_connections_come_here") {
        return;
    }
    let mut testbed = Testbed::new(XdpConfig::for_veth());
    let icmp = raw_icmp(&testbed.pair.peer);
    // The message is ICMP "fragmentation needed" with a next-hop MTU of 1200. The quoted segment is
    // from the claimed port.
    let mut message = vec![3, 4, 0, 0, 0, 0, 0x04, 0xb0];
    message.extend(frames::ipv4(TCP, HOST, PEER, 8));
    message.extend(CLAIMED_PORT.to_be_bytes());
    message.extend([0x9c, 0x40, 0, 0, 0, 1]);
    assert!(tidelane_packet_io::finish_checksum(&mut message, 0, 2));
    sendto(&icmp, &message, SendFlags::empty(), &endpoint(0)).unwrap();
    let frame = testbed.receive();
    assert_eq!(&frame[ETHERNET_LEN + IP_LEN..], message);

    let quoted_port = message.len() - 8;
    message[quoted_port] ^= 1;
    sendto(&icmp, &message, SendFlags::empty(), &endpoint(0)).unwrap();
    let start = Instant::now();
    while testbed.demux.counters().unwrap().icmp == 0 {
        assert!(start.elapsed() < TIMEOUT);
    }
    assert_eq!(testbed.demux.counters().unwrap().redirected_icmp, 1);
}

/// Sends many more datagrams than the AF_XDP port has transmit frames. The peer's kernel verifies
/// the checksums.
fn transmit_many(config: XdpConfig) {
    const DATAGRAMS: u32 = 5000;
    const BATCH: u32 = 50;
    let mut testbed = Testbed::new(config);
    let peer = testbed.peer_socket();
    let dest = peer.local_addr().unwrap().port();
    let mut buffer = [0; 2048];
    for first in (0..DATAGRAMS).step_by(BATCH as usize) {
        for number in first..first + BATCH {
            let mut payload = number.to_be_bytes().to_vec();
            payload.resize(4 + (number % 1400) as usize, number as u8);
            assert!(testbed.send(dest, &payload));
        }
        testbed.port.tx_flush();
        assert_eq!(testbed.port.tx_pending(), 0);
        for number in first..first + BATCH {
            let len = peer
                .recv(&mut buffer)
                .expect("the kernel accepts the checksum");
            assert_eq!(len, 4 + (number % 1400) as usize);
            assert_eq!(buffer[..4], number.to_be_bytes());
        }
    }
    let counters = testbed.port.counters();
    assert_eq!(
        (counters.tx_packets, counters.tx_errors),
        (u64::from(DATAGRAMS), 0)
    );
    // One `sendto` sends at most 32 frames before Linux 6.17, so a batch takes two calls. Since
    // 6.17, the port raises this limit (XDP_MAX_TX_SKB_BUDGET), so a batch takes one call.
    assert!(
        counters.tx_kicks <= 2 * u64::from(DATAGRAMS / BATCH),
        "{counters:?}"
    );
    assert_eq!(testbed.port.statistics().unwrap().tx_invalid_descs, 0);
}

#[test]
fn the_peers_kernel_accepts_unfinished_checksums_that_are_declared() {
    if privileged("the_peers_kernel_accepts_unfinished_checksums_that_are_declared") {
        transmit_many(small());
    }
}

#[test]
fn without_metadata_checksums_are_finished_here() {
    if privileged("without_metadata_checksums_are_finished_here") {
        let config = XdpConfig {
            tx_checksum: false,
            ..small()
        };
        transmit_many(config);
    }
}

#[test]
fn received_frames_come_round() {
    if !privileged("received_frames_come_round") {
        return;
    }
    let mut testbed = Testbed::new(small());
    let peer = testbed.peer_socket();
    let mut held = testbed.port.new_burst();
    for round in 0..100u32 {
        for number in 0..50u32 {
            let payload = (round * 50 + number).to_be_bytes();
            peer.send_to(&payload, endpoint(CLAIMED_PORT)).unwrap();
        }
        let start = Instant::now();
        while held.len() < 50 {
            testbed.port.rx_burst(&mut held, BURST_MAX);
            assert!(start.elapsed() < TIMEOUT, "only {} frames came", held.len());
        }
        for (number, bytes) in (0..).zip(held.iter()) {
            assert_eq!(
                bytes[PAYLOAD_AT..],
                (round * 50 + number as u32).to_be_bytes()
            );
        }
        testbed.port.rx_release(&mut held);
    }
    // The first 64 packets occupy all 64 receive frames, so the kernel drops and counts the rest.
    for _ in 0..64 + 10 {
        peer.send_to(b"more", endpoint(CLAIMED_PORT)).unwrap();
    }
    let start = Instant::now();
    while held.len() < 64 {
        testbed.port.rx_burst(&mut held, BURST_MAX);
        assert!(start.elapsed() < TIMEOUT, "only {} frames came", held.len());
    }
    peer.send_to(b"lost", endpoint(CLAIMED_PORT)).unwrap();
    let start = Instant::now();
    while testbed.port.rx_overruns() != 11 {
        assert!(start.elapsed() < TIMEOUT, "{:?}", testbed.port.statistics());
    }
    assert_eq!(testbed.port.statistics().unwrap().rx_fill_ring_empty, 11);
    testbed.port.rx_release(&mut held);
    peer.send_to(b"again", endpoint(CLAIMED_PORT)).unwrap();
    assert_eq!(&testbed.receive()[PAYLOAD_AT..], b"again");
}

#[test]
fn a_port_on_a_down_link_queues_frames_and_reports_the_state() {
    if !privileged("a_port_on_a_down_link_queues_frames_and_reports_the_state") {
        return;
    }
    let mut testbed = Testbed::new(small());
    let peer = testbed.peer_socket();
    let dest = peer.local_addr().unwrap().port();
    testbed.pair.host.ip("link set veth0 down");
    let mut queued = 0;
    while testbed.send(dest, b"late") {
        queued += 1;
    }
    assert_eq!(queued, 64);
    testbed.port.tx_flush();
    assert_eq!(testbed.port.tx_pending(), 64);
    let error = testbed.port.take_tx_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
    testbed.pair.host.ip("link set veth0 up");
    let start = Instant::now();
    while testbed.port.tx_free() < 64 {
        testbed.port.tx_flush();
        assert!(start.elapsed() < TIMEOUT, "{:?}", testbed.port.counters());
    }
    assert!(testbed.send(dest, b"on time"));
    testbed.port.tx_flush();
    let mut buffer = [0; 64];
    let start = Instant::now();
    while peer
        .recv(&mut buffer)
        .is_ok_and(|len| &buffer[..len] != b"on time")
    {
        assert!(start.elapsed() < TIMEOUT);
    }
}

#[test]
fn a_port_carries_no_longer_packets_than_it_can_receive() {
    if !privileged("a_port_carries_no_longer_packets_than_it_can_receive") {
        return;
    }
    let testbed = Testbed::new(small());
    assert_eq!(testbed.port.capabilities().tx_frame_len_max, 2048 - 256);
}

#[test]
fn an_mtu_beyond_jumbo_frames_is_refused() {
    if !privileged("an_mtu_beyond_jumbo_frames_is_refused") {
        return;
    }
    let pair = Pair::with_mtu(MTU_MAX + 1);
    let refused = pair.host.run(|| XdpPort::open("veth0", 0, &small()));
    assert!(matches!(refused, Err(XdpError::MtuTooLarge { .. })));
}

#[test]
fn errors_name_the_cause() {
    if !privileged("errors_name_the_cause") {
        return;
    }
    let pair = Pair::with_mtu(3000);
    let open = |queue, config: XdpConfig| pair.host.run(|| XdpPort::open("veth0", queue, &config));
    let large = XdpConfig {
        frame_size: 4096,
        ..small()
    };
    let held = open(0, large).unwrap();
    assert!(matches!(
        open(0, large),
        Err(XdpError::QueueBusy { queue: 0, .. })
    ));
    assert!(matches!(
        open(7, large),
        Err(XdpError::NoSuchQueue { queue: 7, .. })
    ));
    let invalid = XdpConfig {
        rx_frames: 100,
        ..large
    };
    assert!(matches!(open(0, invalid), Err(XdpError::InvalidConfig(_))));
    let absent = pair
        .host
        .run(|| XdpPort::open("veth9", 0, &large))
        .err()
        .unwrap();
    assert!(absent.to_string().starts_with("no interface veth9"));
    assert!(
        pair.host
            .run(|| XdpPort::open_index(9999, 0, &large))
            .is_err()
    );
    let unprivileged = pair.host.run(|| {
        let held = capabilities(None).unwrap();
        let effective = held.effective - CapabilitySet::NET_RAW;
        set_capabilities(None, CapabilitySets { effective, ..held }).unwrap();
        XdpPort::open("veth0", 0, &large).err().unwrap()
    });
    assert!(matches!(unprivileged, XdpError::NotPermitted));
    drop(held);
    // The kernel frees the queue some milliseconds after the socket is closed. `open` repeats its
    // `bind` a limited number of times while the queue is busy.
    let again = open(
        0,
        XdpConfig {
            prefer_zero_copy: true,
            ..large
        },
    );
    assert_eq!(again.unwrap().mode(), XdpMode::Copy);
}
