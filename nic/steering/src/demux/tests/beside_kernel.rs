//! Tests of the demux with a claimed port that the kernel uses, too. The demux is the XDP program
//! that redirects the packets of claimed 3-tuples (local address, protocol, local port) to the
//! service (the process `tidelaned`). The [`Scope`] of the claim decides which packets of the port
//! the kernel keeps for its own sockets.
//!
//! The tests open sockets of the kernel on loopback addresses, and run the program on frames with
//! these addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use super::{
    ipv6::{ICMPV6, NOTHING, ipv6},
    *,
};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// Counters of a packet for the service. No queue has an AF_XDP socket in these tests, so the
/// program returns XDP_PASS and counts `no_socket`.
const SERVICES: DemuxCounters = DemuxCounters {
    no_socket: 1,
    ..NOTHING
};
/// Counters of a packet that the kernel keeps, because the kernel has a socket for the packet.
const KERNELS: DemuxCounters = DemuxCounters {
    kernel_socket: 1,
    ..NOTHING
};
/// A remote port without a connection in the kernel: these tests open no socket on this port.
const UNKNOWN_PORT: u16 = 9;

/// A listener of the kernel with a connection, and a claim on the listener's port.
struct Fixture {
    testbed: Testbed,
    listener: TcpListener,
    accepted: TcpStream,
    client: TcpStream,
    /// Address and port of the listener.
    local: SocketAddr,
}

impl Fixture {
    fn new(ip: IpAddr, scope: Scope) -> Option<Self> {
        let mut testbed = Testbed::without_claims()?;
        let listener = TcpListener::bind((ip, 0)).expect("a port");
        let local = listener.local_addr().expect("a local address");
        let client = TcpStream::connect(local).expect("a connection");
        let (accepted, _) = listener.accept().expect("a pending connection");
        let mut claims = testbed
            .object
            .hash_map::<KEY_LEN, CLAIM_LEN>("CLAIMS")
            .unwrap();
        let claim = Claim {
            addr: crate::kernel_tables::address_from_ip(ip),
            proto: TCP,
            port: local.port(),
        };
        let mut owner = [0; CLAIM_LEN];
        owner[4..8].copy_from_slice(&scope.flags().to_ne_bytes());
        claims.insert(&claim.key(), &owner).unwrap();
        Some(Self {
            testbed,
            listener,
            accepted,
            client,
            local,
        })
    }

    fn heartbeats(&mut self) -> Heartbeats {
        let words = self
            .testbed
            .object
            .mapped_array("HEARTBEATS", Heartbeats::LEN);
        Heartbeats::new(words.unwrap())
    }

    /// Returns the port of the connection's client.
    fn of_client(&self) -> u16 {
        self.client.local_addr().expect("a local address").port()
    }

    /// Returns a segment to the claimed port. The source is `port` of the claimed address.
    fn segment(&self, port: u16, flags: u8) -> Vec<u8> {
        let mut packet = header(self.local.ip(), TCP);
        packet.extend(port.to_be_bytes());
        packet.extend(self.local.port().to_be_bytes());
        packet.extend([0; 8]);
        packet.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
        packet
    }

    fn seen(&mut self, port: u16, flags: u8) -> DemuxCounters {
        let frame = ethernet(&self.segment(port, flags));
        self.testbed.seen(&frame)
    }
}

fn header(ip: IpAddr, proto: u8) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ipv4(proto, ip.octets(), ip.octets(), 0),
        IpAddr::V6(ip) => ipv6(proto, ip.octets(), ip.octets(), &[]),
    }
}

const LOOPBACKS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

#[test]
fn the_kernel_keeps_its_connections_and_its_listener() {
    for ip in LOOPBACKS {
        let Some(mut fixture) = Fixture::new(ip, Scope::BesideKernel) else {
            return;
        };
        let client = fixture.of_client();
        for flags in [ACK, SYN, RST, FIN | ACK] {
            assert_eq!(fixture.seen(client, flags), KERNELS, "{ip} {flags}");
        }
        assert_eq!(fixture.seen(UNKNOWN_PORT, SYN), KERNELS);
        // These segments belong to a connection of the service, or to none.
        for flags in [ACK, SYN | ACK, RST, FIN | ACK] {
            assert_eq!(fixture.seen(UNKNOWN_PORT, flags), SERVICES, "{ip} {flags}");
        }
    }
}

/// The claim is `Scope::Whole`, so the service gets all segments while the heartbeat of its core
/// (polling thread) is recent. If the heartbeat is a second old, the kernel takes new connections
/// to its listener, and keeps its own connections. The service then gets all other segments.
#[test]
fn the_kernel_takes_new_connections_of_a_silent_core() {
    const NO_HEARTBEAT: DemuxCounters = DemuxCounters {
        no_heartbeat: 1,
        ..NOTHING
    };
    for ip in LOOPBACKS {
        let Some(mut fixture) = Fixture::new(ip, Scope::Whole) else {
            return;
        };
        let (client, all) = (fixture.of_client(), Arc::new(fixture.heartbeats()));
        let core = all.of_queue(0);
        for (age_ms, ours) in [(0, SERVICES), (1000, NO_HEARTBEAT)] {
            core.beat(super::heartbeats::now_ns() - age_ms * 1_000_000);
            assert_eq!(fixture.seen(UNKNOWN_PORT, SYN), ours, "{ip} {age_ms}");
            for flags in [ACK, SYN, RST, FIN | ACK] {
                assert_eq!(fixture.seen(client, flags), ours, "{ip} {age_ms} {flags}");
            }
            for flags in [ACK, SYN | ACK, RST, FIN | ACK] {
                assert_eq!(
                    fixture.seen(UNKNOWN_PORT, flags),
                    SERVICES,
                    "{ip} {age_ms} {flags}"
                );
            }
        }
    }
}

/// The claim is `Scope::BesideConnections`. The kernel keeps the connections that it had before the
/// claim. The service gets new connections, although the kernel has a listener.
#[test]
fn the_kernel_keeps_its_connections_and_gets_no_new_ones() {
    for ip in LOOPBACKS {
        let Some(mut fixture) = Fixture::new(ip, Scope::BesideConnections) else {
            return;
        };
        let client = fixture.of_client();
        for flags in [ACK, SYN, RST, FIN | ACK] {
            assert_eq!(fixture.seen(client, flags), KERNELS, "{ip} {flags}");
        }
        for flags in [SYN, ACK, SYN | ACK, RST, FIN | ACK] {
            assert_eq!(fixture.seen(UNKNOWN_PORT, flags), SERVICES, "{ip} {flags}");
        }
    }
}

#[test]
fn the_kernel_keeps_connections_of_a_closed_listener() {
    for ip in LOOPBACKS {
        let Some(mut fixture) = Fixture::new(ip, Scope::BesideKernel) else {
            return;
        };
        let client = fixture.of_client();
        let other = TcpListener::bind((ip, 0)).expect("a port");
        drop(std::mem::replace(&mut fixture.listener, other));
        assert_eq!(fixture.seen(UNKNOWN_PORT, SYN), SERVICES);
        assert_eq!(fixture.seen(client, ACK), KERNELS);
        // The server closes first, so that its end of the connection is in TIME-WAIT.
        let spare = TcpListener::bind((ip, 0)).expect("a port");
        let replaced = TcpStream::connect(spare.local_addr().unwrap()).expect("a connection");
        drop(std::mem::replace(&mut fixture.accepted, replaced));
        let far = spare.accept().expect("a pending connection").0;
        drop(std::mem::replace(&mut fixture.client, far));
        assert_eq!(fixture.seen(client, ACK), KERNELS);
    }
}

#[test]
fn a_whole_claim_does_not_ask_the_kernel() {
    for ip in LOOPBACKS {
        let Some(mut fixture) = Fixture::new(ip, Scope::Whole) else {
            return;
        };
        let client = fixture.of_client();
        assert_eq!(fixture.seen(client, ACK), SERVICES);
        assert_eq!(fixture.seen(UNKNOWN_PORT, SYN), SERVICES);
    }
}

#[test]
fn fragments_and_errors_follow_the_connection() {
    for ip in LOOPBACKS {
        let Some(mut fixture) = Fixture::new(ip, Scope::BesideKernel) else {
            return;
        };
        for (port, whose) in [(fixture.of_client(), NOTHING), (UNKNOWN_PORT, SERVICES)] {
            let kernels = whose == NOTHING;
            // A quoted packet from the claimed port to `port`.
            let mut quoted = header(ip, TCP);
            quoted.extend(fixture.local.port().to_be_bytes());
            quoted.extend(port.to_be_bytes());
            quoted.extend([0; 4]);
            let (proto, kind) = if ip.is_ipv4() { (ICMP, 3) } else { (ICMPV6, 1) };
            let mut error = header(ip, proto);
            error.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
            error.extend(quoted);
            let icmp = DemuxCounters { icmp: 1, ..NOTHING };
            let expected = if kernels { icmp } else { SERVICES };
            assert_eq!(
                fixture.testbed.seen(&ethernet(&error)),
                expected,
                "{ip} {port}"
            );
            if ip.is_ipv4() {
                let mut first = fixture.segment(port, ACK);
                // The more-fragments flag makes the packet a first fragment.
                first[6] = 0x20;
                let fragments = DemuxCounters {
                    fragments: 1,
                    ..NOTHING
                };
                let expected = if kernels { fragments } else { SERVICES };
                assert_eq!(fixture.testbed.seen(&ethernet(&first)), expected, "{port}");
            }
        }
    }
}
