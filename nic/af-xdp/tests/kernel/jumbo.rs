//! Tests with packets of a jumbo MTU. A long packet takes several frames of the UMEM (the memory of
//! an AF_XDP port's frames).

use tidelane_af_xdp::{MTU_MAX, XdpConfig, XdpError, XdpPort};
use tidelane_packet_io::PacketIo;
use tidelane_steering::Buffers;

use crate::{
    frames::{IP_LEN, PAYLOAD_AT, UDP_LEN},
    net::{Pair, privileged},
    ports::{CLAIMED_PORT, Testbed, endpoint, small},
};

/// Length in bytes of the longest UDP payload that is not fragmented.
const PAYLOAD_MAX: usize = MTU_MAX as usize - IP_LEN - UDP_LEN;

/// Returns a port and its peer (a [`Testbed`]) with the largest MTU. If the kernel has no packets
/// of several frames (multi-buffer, Linux 6.6), prints a message and returns `None`.
fn testbed(config: XdpConfig) -> Option<Testbed> {
    let pair = Pair::with_mtu(MTU_MAX);
    let opened = pair.host.run(|| XdpPort::open("veth0", 0, &config));
    if let Err(error @ XdpError::NoMultiBuffer { .. }) = opened {
        eprintln!("skipped: {error}");
        return None;
    }
    // `Testbed::over` opens the port again, and reports any other error.
    drop(opened);
    Some(Testbed::over(pair, Buffers::Several, config))
}

/// Returns payload lengths. The list has two short lengths and the two greatest lengths. For each
/// number of frames up to `PAYLOAD_MAX / frame_size`, the list also has the lengths that fill the
/// frames of a transmitted packet and of a received packet, and the lengths one byte below and one
/// byte above. A transmitted packet has 64 bytes of headroom in its first frame. A received packet
/// has 256 bytes of headroom in each frame.
fn lengths(frame_size: usize) -> Vec<usize> {
    let mut lengths = vec![1, 100, PAYLOAD_MAX - 1, PAYLOAD_MAX];
    for frames in 1..=PAYLOAD_MAX / frame_size {
        for headroom in [64, 256 * frames] {
            let full = frames * frame_size - headroom - PAYLOAD_AT;
            lengths.extend([full - 1, full, full + 1]);
        }
    }
    lengths
}

/// Returns bytes that differ by position and by `number`.
fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + at / 256 + number) as u8)
        .collect()
}

fn receive_all_lengths(config: XdpConfig) {
    let Some(mut testbed) = testbed(config) else {
        return;
    };
    let peer = testbed.peer_socket();
    // The rounds send more datagrams than there are frames, so that every frame is reused.
    for round in 0..20 {
        for len in lengths(config.frame_size as usize) {
            let sent = payload(round, len);
            peer.send_to(&sent, endpoint(CLAIMED_PORT)).unwrap();
            let frame = testbed.receive();
            assert!(frame[PAYLOAD_AT..] == sent, "{len} bytes");
        }
    }
    let statistics = testbed.port.statistics().unwrap();
    assert_eq!((statistics.rx_dropped, statistics.rx_invalid_descs), (0, 0));
}

fn transmit_all_lengths(config: XdpConfig) {
    let Some(mut testbed) = testbed(config) else {
        return;
    };
    let peer = testbed.peer_socket();
    let dest = peer.local_addr().unwrap().port();
    let mut buffer = vec![0; PAYLOAD_MAX + 1];
    let all = testbed.port.tx_free();
    for round in 0..20 {
        for len in lengths(config.frame_size as usize) {
            let sent = payload(round, len);
            assert!(testbed.send(dest, &sent));
            testbed.port.tx_flush();
            let received = peer.recv(&mut buffer).expect("the checksum is right");
            assert!(buffer[..received] == sent, "{len} bytes");
        }
    }
    testbed.port.tx_flush();
    assert_eq!(testbed.port.tx_free(), all, "a packet did not come back");
    assert_eq!(testbed.port.statistics().unwrap().tx_invalid_descs, 0);
    assert_eq!(testbed.port.counters().tx_errors, 0);
}

#[test]
fn packets_of_several_frames_are_received_whole() {
    if privileged("packets_of_several_frames_are_received_whole") {
        receive_all_lengths(small());
        receive_all_lengths(small().sized_for(MTU_MAX));
    }
}

#[test]
fn packets_of_several_frames_are_transmitted_whole() {
    if privileged("packets_of_several_frames_are_transmitted_whole") {
        transmit_all_lengths(small());
        transmit_all_lengths(small().sized_for(MTU_MAX));
    }
}

#[test]
fn packets_that_find_no_frames_are_dropped_whole() {
    if !privileged("packets_that_find_no_frames_are_dropped_whole") {
        return;
    }
    let Some(mut testbed) = testbed(small()) else {
        return;
    };
    let peer = testbed.peer_socket();
    // Each packet takes six of 64 frames, so that ten packets fit.
    for number in 0..30 {
        let sent = payload(number, PAYLOAD_MAX);
        peer.send_to(&sent, endpoint(CLAIMED_PORT)).unwrap();
    }
    for number in 0..10 {
        let frame = testbed.receive();
        assert!(
            frame[PAYLOAD_AT..] == payload(number, PAYLOAD_MAX),
            "{number}"
        );
    }
    let sent = payload(99, PAYLOAD_MAX);
    peer.send_to(&sent, endpoint(CLAIMED_PORT)).unwrap();
    assert!(testbed.receive()[PAYLOAD_AT..] == sent);
}
