//! Tests of GSO frames over a veth pair. An AF_XDP port sends GSO frames through its packet socket,
//! because AF_XDP has no GSO. The peer's kernel receives a GSO frame whole. If the peer's interface
//! has an XDP program, the peer's kernel receives segments instead.

use std::{
    os::fd::OwnedFd,
    sync::atomic::AtomicU8,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto, recv, socket};
use tidelane_af_xdp::{XdpConfig, XdpPort, queue_counts};
use tidelane_packet_io::{GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum};
use tidelane_steering::{Buffers, Demux};

use crate::{
    frames::{self, ETHERNET_LEN, HOST, IP_LEN, PEER},
    net::{Pair, privileged},
    ports::mac,
};

const TIMEOUT: Duration = Duration::from_secs(3);
const TCP: u8 = 6;
const TCP_LEN: usize = 20;
/// Number of payload bytes in each TCP segment of a GSO frame.
const SEGMENT_SIZE: usize = 1000;
/// Sequence number of the first payload byte.
const FIRST_SEQ: u32 = 7000;
/// TCP flags.
const FIN_PSH_ACK: u8 = 0x19;

/// Returns a TCP frame whose checksum field holds the pseudo-header sum.
fn tcp(macs: ([u8; 6], [u8; 6]), payload: &[u8]) -> Vec<u8> {
    let mut frame = macs.1.to_vec();
    frame.extend(macs.0);
    frame.extend([8, 0]);
    frame.extend(frames::ipv4(TCP, HOST, PEER, TCP_LEN + payload.len()));
    frame.extend([0, 80, 0x12, 0x34]);
    frame.extend(FIRST_SEQ.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0x50, FIN_PSH_ACK, 1, 0]);
    let words = [HOST, PEER].concat();
    let sum = words
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum::<u32>()
        + u32::from(TCP)
        + (TCP_LEN + payload.len()) as u32;
    let folded = (sum & 0xffff) + (sum >> 16);
    frame.extend((((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// Sends `frame`, which the function `tcp` built, as a GSO frame.
fn send_gso(port: &mut XdpPort, frame: &[u8]) -> Result<(), LinkFull> {
    let (headers, rest) = frame.split_at(ETHERNET_LEN + IP_LEN + TCP_LEN);
    port.tx_gso_headers()[..headers.len()].copy_from_slice(headers);
    let rest: Vec<AtomicU8> = rest.iter().copied().map(AtomicU8::new).collect();
    let (before_wrap, after_wrap) = rest.split_at(rest.len() / 3);
    let gso = GsoParameters {
        headers_len: headers.len() as u16,
        segment_size: SEGMENT_SIZE as u16,
        tcp_start: (ETHERNET_LEN + IP_LEN) as u16,
        is_v6: false,
    };
    port.tx_gso_send(GsoPayload::Shared([before_wrap, after_wrap]), gso)
}

/// Receives packets on a raw socket until their TCP payloads have `payload_len` bytes in total.
/// Returns the TCP segments, with their TCP headers.
fn receive(socket: &OwnedFd, payload_len: usize) -> Vec<Vec<u8>> {
    let (start, mut seen, mut bytes) = (Instant::now(), Vec::new(), 0);
    let mut buffer = vec![0; 70_000];
    while bytes < payload_len {
        assert!(start.elapsed() < TIMEOUT, "only {bytes} bytes came");
        if let Ok((len, _)) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            seen.push(buffer[IP_LEN..len].to_vec());
            bytes += len - IP_LEN - TCP_LEN;
        }
    }
    seen
}

/// Sends one GSO frame of `payload`. Returns the TCP segments that the peer's kernel received.
fn segments_seen(peer_has_xdp: bool, payload: &[u8]) -> Vec<Vec<u8>> {
    let pair = Pair::new();
    let mut port = pair
        .host
        .run(|| XdpPort::open("veth0", 0, &XdpConfig::for_veth()).unwrap());
    let (peer, _demux) = pair.peer.run(|| {
        let demux = peer_has_xdp.then(|| {
            let (ifindex, queues) = (pair.peer.index("veth0"), queue_counts("veth0").unwrap());
            Demux::load_and_attach(ifindex, queues.rx, Buffers::One).unwrap()
        });
        let kind = (AddressFamily::INET, SocketType::RAW);
        (socket(kind.0, kind.1, Some(ipproto::TCP)).unwrap(), demux)
    });
    let frame = tcp((mac(&pair.host), mac(&pair.peer)), payload);
    assert!(port.capabilities().tx_gso_len_max as usize >= frame.len());
    let calls = port.system_calls();
    send_gso(&mut port, &frame).unwrap();
    assert_eq!(port.counters().tx_gso_frames, 1);
    assert_eq!(port.system_calls(), calls + 1);
    receive(&peer, payload.len())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
}

#[test]
fn a_kernel_receives_a_gso_frame_unsplit() {
    if !privileged("a_kernel_receives_a_gso_frame_unsplit") {
        return;
    }
    let payload = pattern(60_500);
    let seen = segments_seen(false, &payload);
    assert_eq!(seen.len(), 1);
    assert_eq!(&seen[0][TCP_LEN..], payload);
}

#[test]
fn a_gso_frame_to_an_xdp_program_is_segmented() {
    if !privileged("a_gso_frame_to_an_xdp_program_is_segmented") {
        return;
    }
    let payload = pattern(4_500);
    let seen = segments_seen(true, &payload);
    assert_eq!(seen.len(), 5);
    for (number, segment) in seen.iter().enumerate() {
        let at = number * SEGMENT_SIZE;
        let seq = FIRST_SEQ + at as u32;
        assert_eq!(segment[4..8], seq.to_be_bytes());
        let end = payload.len().min(at + SEGMENT_SIZE);
        assert_eq!(segment[TCP_LEN..], payload[at..end]);
        // Segmentation leaves FIN and PSH to the last segment.
        let flags = if end == payload.len() {
            FIN_PSH_ACK
        } else {
            0x10
        };
        assert_eq!(segment[13], flags);
    }
}

/// While the interface is down, the first frame stays in the TX ring. The port therefore refuses
/// the GSO frame, and accepts it after the interface is up.
#[test]
fn a_gso_frame_does_not_overtake_queued_frames() {
    if !privileged("a_gso_frame_does_not_overtake_queued_frames") {
        return;
    }
    let pair = Pair::new();
    let mut port = pair
        .host
        .run(|| XdpPort::open("veth0", 0, &XdpConfig::for_veth()).unwrap());
    let kind = (AddressFamily::INET, SocketType::RAW);
    let peer = pair
        .peer
        .run(|| socket(kind.0, kind.1, Some(ipproto::TCP)).unwrap());
    let macs = (mac(&pair.host), mac(&pair.peer));
    pair.host.ip("link set veth0 down");
    let first = tcp(macs, b"first");
    port.tx_frame().unwrap()[..first.len()].copy_from_slice(&first);
    let checksum = TxChecksum::Partial {
        start: (ETHERNET_LEN + IP_LEN) as u16,
        offset: 16,
    };
    port.tx_commit(first.len(), checksum);
    port.tx_flush();
    assert_eq!(port.tx_pending(), 1);
    let payload = pattern(4_500);
    let second = tcp(macs, &payload);
    assert_eq!(send_gso(&mut port, &second), Err(LinkFull));
    assert_eq!(port.counters().tx_gso_frames, 0);

    pair.host.ip("link set veth0 up");
    let start = Instant::now();
    while !pair.host.ip("link show veth0").contains("LOWER_UP") {
        assert!(start.elapsed() < TIMEOUT, "the link has no carrier");
    }
    send_gso(&mut port, &second).unwrap();
    let seen = receive(&peer, b"first".len() + payload.len());
    assert_eq!(seen[0][TCP_LEN..], *b"first");
    assert_eq!(seen[1][TCP_LEN..], payload);
}
