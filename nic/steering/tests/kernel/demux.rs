//! Tests of the demux on a veth: redirected frames, passed frames, and detaching. The demux is the
//! XDP program that redirects the packets of claimed 3-tuples (local address, protocol and local
//! port) to the service, the process `tidelaned`. The demux passes all other packets to the kernel.

use std::{
    io::{BufRead, BufReader, ErrorKind},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tidelane_steering::{
    AttachMode, Buffers, Claim, Demux, Scope, StackId, Steering, SteeringError,
    kernel_tables::{KernelTables, address_from_ipv4},
};

use crate::net::{Pair, privileged};

const HOST_PORT: &str = "10.77.0.1:8080";
const SECOND: Duration = Duration::from_secs(1);
/// Environment variable with the interface index for a child process of the test.
const HOLD_VARIABLE: &str = "TIDELANE_TEST_HOLD_IFINDEX";

fn web_claim() -> Claim {
    let addr = address_from_ipv4("10.77.0.1".parse().unwrap());
    Claim {
        addr,
        proto: 6,
        port: 8080,
    }
}

fn has_xdp(pair: &Pair) -> bool {
    pair.host.run(|| {
        let kernel_tables = KernelTables::open().unwrap();
        let link = kernel_tables.link_by_name("veth0").unwrap();
        !link.xdp_programs.is_empty()
    })
}

/// Waits until the kernel has detached the XDP program. The kernel detaches the program when all
/// descriptors of its attachment (a BPF link) are closed. A process that another test has just
/// started has a copy of the descriptor until `exec`.
fn assert_gone(pair: &Pair) {
    let start = Instant::now();
    while has_xdp(pair) {
        assert!(start.elapsed() < SECOND, "the program is still there");
    }
}

fn connect(pair: &Pair) -> std::io::Result<TcpStream> {
    let address: SocketAddr = HOST_PORT.parse().unwrap();
    pair.peer
        .run(|| TcpStream::connect_timeout(&address, SECOND / 2))
}

#[test]
fn without_a_socket_or_a_claim_the_kernel_answers() {
    if !privileged("without_a_socket_or_a_claim_the_kernel_answers") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let mut demux = pair
        .host
        .run(|| Demux::load_and_attach(ifindex, 1, Buffers::One))
        .unwrap();
    assert_eq!(
        demux.mode(),
        AttachMode::Native,
        "{:?}",
        demux.native_error()
    );
    assert!(has_xdp(&pair));

    let refused = connect(&pair).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let counters = demux.counters().unwrap();
    assert_eq!((counters.unclaimed, counters.no_socket), (1, 0));

    demux.claim(&web_claim(), StackId(3), Scope::Whole).unwrap();
    assert_eq!(demux.claims().unwrap(), [(web_claim(), StackId(3))]);
    let listener = pair.host.run(|| TcpListener::bind(HOST_PORT)).unwrap();
    connect(&pair).unwrap();
    assert!(demux.counters().unwrap().no_socket >= 1);
    drop(listener);

    assert!(demux.unclaim(&web_claim()).unwrap());
    assert!(!demux.unclaim(&web_claim()).unwrap());
    assert!(demux.claims().unwrap().is_empty());
    drop(demux);
    assert_gone(&pair);
}

/// Returns an Ethernet frame to link address `to`. The frame has a UDP datagram from port 7001 of
/// the peer to `port` of the host.
fn datagram(to: [u8; 6], port: u16, text: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 28 + text.len() as u8, 0, 1, 0, 0, 64, 17, 0, 0];
    ip.extend([10, 77, 0, 2, 10, 77, 0, 1]);
    let words = ip.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let checksum = !((sum >> 16) + (sum & 0xffff)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    frame.extend(ip);
    frame.extend([0x1b, 0x59]);
    frame.extend(port.to_be_bytes());
    // The length of the UDP datagram, and zero for "no checksum".
    frame.extend([0, 8 + text.len() as u8, 0, 0]);
    frame.extend(text);
    frame
}

/// A frame that the service hands back goes to the kernel, despite the claim.
#[test]
fn the_kernel_gets_frames_that_are_handed_back() {
    if !privileged("the_kernel_gets_frames_that_are_handed_back") {
        return;
    }
    // Test both modes. A veth whose peer may send jumbo frames accepts no native program for
    // packets in a single buffer (`Buffers::One`).
    for (pair, mode) in [
        (Pair::new(), AttachMode::Native),
        (Pair::with_mtu(9000), AttachMode::Generic),
    ] {
        let ifindex = pair.host.index("veth0");
        pair.host.run(|| {
            let mut demux = Demux::load_and_attach(ifindex, 1, Buffers::One).unwrap();
            assert_eq!(demux.mode(), mode);
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            socket.set_read_timeout(Some(SECOND)).unwrap();
            let port = socket.local_addr().unwrap().port();
            let claim = Claim {
                proto: 17,
                port,
                ..web_claim()
            };
            demux.claim(&claim, StackId(0), Scope::Whole).unwrap();
            let kernel_tables = KernelTables::open().unwrap();
            let link = kernel_tables.link_by_name("veth0").unwrap();
            let frame = datagram(link.mac.unwrap().0, port, b"given back");
            demux.hand_back(&frame).unwrap();
            let mut text = [0; 64];
            let (len, from) = socket.recv_from(&mut text).unwrap();
            assert_eq!(&text[..len], b"given back");
            assert_eq!(from.to_string(), "10.77.0.2:7001");
            let seen = demux.counters().unwrap();
            let past_the_claim = (seen.redirected, seen.no_socket) == (0, 0);
            assert!(past_the_claim, "{seen:?}");
            assert!(demux.hand_back(&[0; 5000]).is_err(), "longer than a page");
            assert!(demux.hand_back(&[0; 3]).is_err(), "no frame");
        });
    }
}

#[test]
fn another_program_is_respected() {
    if !privileged("another_program_is_respected") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let first = pair
        .host
        .run(|| Demux::load_and_attach(ifindex, 1, Buffers::One))
        .unwrap();
    let second = pair
        .host
        .run(|| Demux::load_and_attach(ifindex, 1, Buffers::One))
        .err()
        .unwrap();
    assert!(
        matches!(&second, SteeringError::OtherProgram { interface, .. } if interface == "veth0")
    );
    for words in [
        "another native XDP program, tidelane_demux",
        "ip link set dev veth0 xdpdrv off",
    ] {
        assert!(second.to_string().contains(words), "{second}");
    }
    assert!(has_xdp(&pair));
    drop(first);
    pair.host
        .run(|| Demux::load_and_attach(ifindex, 1, Buffers::One))
        .unwrap();
}

#[test]
fn generic_mode_is_used_if_native_mode_is_refused() {
    if !privileged("generic_mode_is_used_if_native_mode_is_refused") {
        return;
    }
    // A veth whose peer may send jumbo frames accepts no native program for packets in a single
    // buffer (`Buffers::One`).
    let pair = Pair::with_mtu(9000);
    let ifindex = pair.host.index("veth0");
    let demux = pair
        .host
        .run(|| Demux::load_and_attach(ifindex, 1, Buffers::One))
        .unwrap();
    assert_eq!(demux.mode(), AttachMode::Generic);
    assert!(demux.native_error().is_some());
    assert_eq!(
        connect(&pair).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert_eq!(demux.counters().unwrap().unclaimed, 1);
}

#[test]
fn errors_name_the_cause() {
    if !privileged("errors_name_the_cause") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let absent = pair
        .host
        .run(|| Demux::load_and_attach(9999, 1, Buffers::One))
        .err()
        .unwrap();
    assert!(matches!(absent, SteeringError::NoSuchInterface(9999)));
    let queues = pair
        .host
        .run(|| Demux::load_and_attach(ifindex, 1000, Buffers::One))
        .err()
        .unwrap();
    assert!(matches!(
        queues,
        SteeringError::TooManyQueues { queues: 1000, .. }
    ));
    let unprivileged = pair.host.run(|| {
        let held = capabilities(None).unwrap();
        let effective = held.effective - CapabilitySet::NET_ADMIN;
        set_capabilities(None, CapabilitySets { effective, ..held }).unwrap();
        Demux::load_and_attach(ifindex, 1, Buffers::One)
            .err()
            .unwrap()
    });
    assert!(matches!(unprivileged, SteeringError::NotPermitted));
    assert!(unprivileged.to_string().contains("setcap"));
}

/// Helper for `a_killed_process_leaves_nothing`, which runs this test in another process.
#[test]
fn child_that_holds_a_claim() {
    let Ok(ifindex) = std::env::var(HOLD_VARIABLE) else {
        return;
    };
    let mut demux = Demux::load_and_attach(ifindex.parse().unwrap(), 1, Buffers::One).unwrap();
    let config = tidelane_af_xdp::XdpConfig::for_veth();
    let port = tidelane_af_xdp::XdpPort::open("veth0", 0, &config).unwrap();
    demux.register_xsk(0, port.fd()).unwrap();
    demux.claim(&web_claim(), StackId(0), Scope::Whole).unwrap();
    println!("holding");
    std::thread::sleep(60 * SECOND);
}

#[test]
fn a_killed_process_leaves_nothing() {
    if !privileged("a_killed_process_leaves_nothing") {
        return;
    }
    let pair = Pair::new();
    let ifindex = pair.host.index("veth0");
    let _listener = pair.host.run(|| TcpListener::bind(HOST_PORT)).unwrap();
    let test = std::env::current_exe().unwrap();
    let mut child = Command::new("ip")
        .args(["netns", "exec", &pair.host.name])
        .arg(test)
        .args(["--exact", "demux::child_that_holds_a_claim", "--nocapture"])
        .env(HOLD_VARIABLE, ifindex.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.any(|line| line.is_ok_and(|line| line.contains("holding")));
    assert!(ready, "the child did not attach");
    assert!(has_xdp(&pair));
    assert_eq!(
        connect(&pair).unwrap_err().kind(),
        ErrorKind::TimedOut,
        "the claim has no effect"
    );

    child.kill().unwrap();
    child.wait().unwrap();
    connect(&pair).expect("the kernel answers again");
    assert_gone(&pair);
}
