//! Tests of segments from *strangers*, peers without an established connection to a host (the stack
//! of one core of the service). The tests cover forged SYNs, timers that become due while frames
//! wait, and segments that may belong to connections of the kernel.

use tidelane_host::HostRequest;
use tidelane_packet_io::BURST_MAX;
use tidelane_time::Duration;
use tidelane_wire::{MacAddress, TcpFlags, TcpOptions, parse_frame, parse_tcp, tcp_checksum_ok};

use crate::stage::{Stage, listen, segment, stranger};

impl Stage {
    fn listening() -> Self {
        let mut stage = Self::new();
        listen(&mut stage.core.host, 1 << 20);
        stage
    }
}

/// The number of half-open connections is limited. The host answers further SYNs with SYN cookies.
/// The host does not ask the kernel to resolve the senders (to find their link addresses), because
/// the kernel's neighbour table is small and shared by all programs.
#[test]
fn forged_syns_are_answered_without_neighbour_resolution() {
    let mut stage = Stage::listening();
    let count = 100_000;
    for number in 0..count {
        let answers = stage.exchange(stranger(number), segment(TcpFlags::SYN, 7, 0));
        let flags: Vec<TcpFlags> = answers.iter().map(|answer| answer.flags).collect();
        assert_eq!(flags, [TcpFlags::SYN | TcpFlags::ACK], "{number}");
    }
    let (_, half_open, _) = stage.core.host.usage();
    assert!((16..=128).contains(&half_open), "{half_open}");
    let cookies = stage.core.counter("syncookies_sent");
    assert_eq!(cookies, u64::from(count) - half_open as u64);
    // The host retransmits the SYN,ACKs and gives up, still without a request to the kernel.
    for _ in 0..90 {
        stage.now += Duration::from_secs(1);
        stage.core.answers(stage.now);
    }
    assert_eq!(stage.core.host.usage().1, 0);
    assert_eq!(stage.asked_about(), []);
}

/// While the link address of a peer is not resolved, a half-open connection sends to the link
/// address from which the most recent SYN arrived.
#[test]
fn a_retransmitted_syn_is_answered_at_its_new_link_address() {
    let mut stage = Stage::listening();
    let syn = segment(TcpFlags::SYN, 7, 0);
    assert_eq!(stage.exchange(stranger(1), syn).len(), 1);
    stage.router = MacAddress([2, 0, 0, 0, 0, 9]);
    stage.now += Duration::from_millis(600);
    assert_eq!(stage.exchange(stranger(1), syn).len(), 1);
    // A retransmitted SYN,ACK also goes to the new router. Its timer is late in the first step, and
    // the host holds late timers back for up to 10 ms.
    for late in [Duration::from_secs(2), Duration::from_millis(20)] {
        stage.now += late;
        stage.run();
    }
    assert_eq!(stage.answers(stranger(1)).len(), 1);
}

/// If a peer completes the handshake, the host asks the kernel to resolve the peer. The SYN,ACK may
/// have come from a half-open connection, or may have been a SYN cookie.
#[test]
fn a_peer_that_completes_the_handshake_is_resolved() {
    for half_open in [0, 200] {
        let mut stage = Stage::listening();
        for number in 0..half_open {
            stage.exchange(stranger(number), segment(TcpFlags::SYN, 7, 0));
        }
        let client = stranger(1_000_000);
        let answers = stage.exchange(client, segment(TcpFlags::SYN, 7, 0));
        let theirs = answers[0].seq.to_u32();
        stage.exchange(client, segment(TcpFlags::ACK, 8, theirs.wrapping_add(1)));
        assert_eq!(stage.asked_about(), [client]);
        let by_cookie = stage.core.counter("syncookies_recv");
        assert_eq!(by_cookie, u64::from(half_open > 0));
    }
}

/// RFC 7323 §7.1: a timestamp does not reveal the host's clock, and the timestamps that two peers
/// get are unrelated.
/// All connections of one peer see the same clock, whether the SYN,ACK is of a half-open connection
/// (the first peers) or a SYN cookie (the later peers).
#[test]
fn each_peer_sees_a_timestamp_clock_of_its_own() {
    let mut stage = Stage::listening();
    let mut seen = Vec::new();
    let mut tsval = |from, src_port| {
        let mut syn = segment(TcpFlags::SYN, 7, 0);
        syn.src_port = src_port;
        syn.options = TcpOptions::timestamps(77, 0);
        let answers = stage.exchange(from, syn);
        let echoed = answers[0].options.timestamps.expect("the answer has them");
        assert_eq!(echoed.tsecr, 77);
        echoed.tsval
    };
    for number in 0..300 {
        let first = tsval(stranger(number), 1000);
        let second = tsval(stranger(number), 1001);
        // The two TSvals differ by at most 2: the exchanges are microseconds apart, and a SYN
        // cookie encodes ECN in the lowest bit of its TSval.
        assert!(
            second.wrapping_sub(first).wrapping_add(2) < 5,
            "{first} {second}"
        );
        seen.push(first);
    }
    let bits: u32 = seen
        .windows(2)
        .map(|two| (two[0] ^ two[1]).count_ones())
        .sum();
    let each = f64::from(bits) / (seen.len() - 1) as f64;
    assert!((15.0..17.0).contains(&each), "{each} of 32 bits differ");
}

/// After a full burst of received frames, the host delays a due timer, because the port (a NIC
/// queue) may still have frames that arrived before the timer was due. The delay is limited: the
/// timer runs even if every burst is full.
#[test]
fn frames_in_the_port_are_processed_before_due_timers() {
    for acknowledged in [true, false] {
        let mut stage = Stage::listening();
        let client = stranger(1);
        let answers = stage.exchange(client, segment(TcpFlags::SYN, 7, 0));
        let theirs = answers[0].seq.to_u32();
        stage.now += Duration::from_millis(1002);
        let mut again = 0;
        for step in 0..40 {
            for _ in 0..BURST_MAX {
                stage.send(stranger(2), segment(TcpFlags::RST, 7, 0), &[]);
            }
            if step == 0 && acknowledged {
                stage.send(
                    client,
                    segment(TcpFlags::ACK, 8, theirs.wrapping_add(1)),
                    &[],
                );
            }
            stage.now += Duration::from_micros(5);
            stage.core.host.step(stage.now);
            again += stage.answers(client).len();
        }
        assert_eq!(again, usize::from(!acknowledged));
    }
}

/// If a host has not run for a while, its timers are late. The host holds late timers back for at
/// most 10 ms, because the kernel may not have delivered the peers' answers yet.
#[test]
fn late_timers_wait_for_the_kernel_to_bring_answers() {
    for answered in [true, false] {
        let mut stage = Stage::listening();
        let client = stranger(1);
        let answers = stage.exchange(client, segment(TcpFlags::SYN, 7, 0));
        let theirs = answers[0].seq.to_u32();
        stage.now += Duration::from_millis(1100);
        stage.core.host.step(stage.now);
        let until = stage
            .core
            .host
            .next_timeout()
            .expect("SYN,ACK is to be sent again");
        assert_eq!(until, stage.now + Duration::from_millis(10));
        stage.now += Duration::from_millis(9);
        if answered {
            stage.send(
                client,
                segment(TcpFlags::ACK, 8, theirs.wrapping_add(1)),
                &[],
            );
        }
        stage.core.host.step(stage.now);
        assert_eq!(stage.answers(client), []);
        stage.now = until;
        stage.core.host.step(until);
        assert_eq!(stage.answers(client).len(), usize::from(!answered));
    }
}

/// If a segment to a listener's port has no flow (connection of the host), the kernel may have the
/// connection. The kernel gets the frame once, with a valid checksum, and the host sends no RST.
#[test]
fn the_kernel_gets_segments_without_a_flow_for_a_listeners_port() {
    let mut stage = Stage::listening();
    stage.core.host.enable_hand_back();
    let ack = segment(TcpFlags::ACK, 7, 9);
    for text in [&b"of the kernel's"[..], b"connection"] {
        stage.send(stranger(1), ack, text);
    }
    stage.run();
    assert_eq!(stage.answers(stranger(1)), []);
    assert_eq!(stage.requests(), [HostRequest::Strays]);
    let strays = stage.core.host.take_strays();
    let texts = strays.iter().map(|stray| {
        let packet = parse_frame(&stray.frame).expect("a packet");
        assert_eq!(stray.key.peer.addr, packet.src);
        let whole = tcp_checksum_ok(packet.src, packet.dst, packet.payload, false);
        assert!(
            whole,
            "the TCP checksum of a frame for the kernel is not complete"
        );
        parse_tcp(packet.payload).expect("a segment").payload
    });
    assert_eq!(
        texts.collect::<Vec<_>>(),
        [&b"of the kernel's"[..], b"connection"]
    );
    assert!(stage.core.host.take_strays().is_empty());
    // The kernel never gets a SYN, because it would accept a connection that the service may have
    // refused.
    for flags in [TcpFlags::ACK, TcpFlags::SYN] {
        stage.send(stranger(1), segment(flags, 7, 9), &[]);
    }
    stage.run();
    assert_eq!(stage.core.host.take_strays().len(), 1);
    assert_eq!(stage.answers(stranger(1)).len(), 1, "the service's SYN,ACK");
    // If a segment is for a port without a listener, the host answers it with a RST, because the
    // demux (the XDP program) has already looked for a socket in the kernel.
    let mut elsewhere = segment(TcpFlags::ACK, 7, 9);
    elsewhere.dst_port += 1;
    assert_eq!(stage.exchange(stranger(2), elsewhere).len(), 1);
    assert!(stage.core.host.take_strays().is_empty());
}

/// A corrupt frame has the 4-tuple of a segment that the kernel gets, and arrives in the same
/// burst. The kernel does not get the corrupt frame, because the copy would have a valid checksum.
#[test]
fn the_kernel_gets_no_corrupt_segment() {
    let mut stage = Stage::listening();
    stage.core.host.enable_hand_back();
    let ack = segment(TcpFlags::ACK, 7, 9);
    let mut corrupt = stage.frame(stranger(1), ack, b"of the kernel's");
    *corrupt.last_mut().expect("a byte") ^= 1;
    stage.core.receives(&corrupt);
    stage.send(stranger(1), ack, b"connection");
    stage.run();
    let strays = stage.core.host.take_strays();
    let frames: Vec<Vec<u8>> = strays.into_iter().map(|stray| stray.frame).collect();
    assert_eq!(frames, [stage.frame(stranger(1), ack, b"connection")]);
}

/// The host keeps at most 256 frames for the kernel, until the daemon takes them by `take_strays`.
/// The host itself answers further segments with a RST.
#[test]
fn segments_beyond_the_queue_for_the_kernel_are_reset() {
    let mut stage = Stage::listening();
    stage.core.host.enable_hand_back();
    let ack = segment(TcpFlags::ACK, 7, 9);
    let resets = (0..1000).map(|number| stage.exchange(stranger(number), ack).len());
    assert_eq!(resets.sum::<usize>(), 1000 - 256);
    assert_eq!(stage.core.host.take_strays().len(), 256);
}
