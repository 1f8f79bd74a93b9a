//! Tests of the identifications of IPv4 packets that a host sends (RFC 6864, RFC 7739 §3): packets
//! to one peer reveal nothing about packets to other peers. A host is the stack of one core of the
//! service.

use tidelane_time::Duration;
use tidelane_wire::{IpAddress, TcpFlags};

use crate::stage::{Stage, listen, segment, stranger};

/// Returns the identifications of packets that the host has sent to `peer`.
fn identifications(stage: &mut Stage, peer: IpAddress) -> Vec<u16> {
    let frames = stage.core.sent();
    let to_peer = frames.iter().filter(|frame| {
        let addr = [frame[30], frame[31], frame[32], frame[33]];
        IpAddress::from_v4(addr) == peer
    });
    to_peer
        .map(|frame| u16::from_be_bytes([frame[18], frame[19]]))
        .collect()
}

/// Returns the identifications of two challenge ACKs on a new connection from `port` of `peer`.
fn of_challenges(stage: &mut Stage, peer: IpAddress, port: u16) -> [u16; 2] {
    let mut syn = segment(TcpFlags::SYN, 7, 0);
    syn.src_port = port;
    let theirs = stage.exchange(peer, syn)[0].seq.to_u32();
    let mut ack = segment(TcpFlags::ACK, 8, theirs.wrapping_add(1));
    ack.src_port = port;
    stage.exchange(peer, ack);
    [0, 1].map(|_| {
        // The host sends a challenge ACK on a connection only if 500 ms have passed since the
        // previous challenge ACK.
        stage.now += Duration::from_millis(600);
        stage.send(peer, syn, &[]);
        stage.run();
        identifications(stage, peer)[0]
    })
}

#[test]
fn each_flow_counts_ip_identifications_from_a_secret_start() {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    let mut firsts = Vec::new();
    for number in 0..12 {
        let (peer, port) = (stranger(number / 2), 5000 + number as u16);
        let [first, second] = of_challenges(&mut stage, peer, port);
        assert_eq!(second, first.wrapping_add(1));
        firsts.push(first);
    }
    let apart = |a: &u16, b: &u16| a.wrapping_sub(*b).min(b.wrapping_sub(*a));
    let far = firsts.windows(2).filter(|two| apart(&two[0], &two[1]) > 64);
    assert!(far.count() >= 9, "{firsts:?}");
}

/// The identification is zero, as in Linux for a packet with DF that no connected socket sends.
#[test]
fn answers_without_a_flow_and_syn_ack_have_identification_zero() {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    for number in 0..200 {
        let peer = stranger(number);
        let mut to_nobody = segment(TcpFlags::SYN, 7, 0);
        to_nobody.dst_port = 81;
        // The first answer is a SYN,ACK, of a half-open flow or with a SYN cookie. The second
        // answer is a RST.
        for syn in [segment(TcpFlags::SYN, 7, 0), to_nobody] {
            stage.send(peer, syn, &[]);
            stage.run();
            assert_eq!(identifications(&mut stage, peer), [0], "{number}");
        }
    }
    assert!(stage.core.counter("syncookies_sent") > 0);
    // A retransmitted SYN,ACK has the identification zero, too.
    let mut again = 0;
    for _ in 0..2000 {
        stage.now += Duration::from_millis(1);
        stage.core.host.step(stage.now);
        let repeated = identifications(&mut stage, stranger(1));
        assert!(repeated.iter().all(|id| *id == 0), "{repeated:?}");
        again += repeated.len();
    }
    assert!(again > 0);
}
