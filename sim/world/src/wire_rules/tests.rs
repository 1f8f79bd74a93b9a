//! Tests of the wire rules, which check the TCP segments that a host sends. The peer of the host is
//! fictitious.

use tidelane_wire::{
    ETHERNET_HEADER_LEN, IpAddress, SegmentHeader, TcpOptions, checksum, emit_tcp,
};

use super::*;

const HOST: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];

/// Builds a frame with a segment from `from` to the other end.
fn frame(from: [u8; 4], header: SegmentHeader, payload: &[u8]) -> Vec<u8> {
    let to = if from == HOST { PEER } else { HOST };
    let mut tcp = vec![0; 60];
    let header_len = emit_tcp(&mut tcp, &header);
    tcp.truncate(header_len);
    tcp.extend(payload);
    let addresses = [from, to].map(tidelane_wire::IpAddress::from_v4);
    let pseudo =
        checksum::pseudo_header(addresses[0], addresses[1], protocol::TCP, tcp.len() as u32);
    let sum = pseudo.plus(checksum::sum(&tcp)).checksum();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let len = (20 + tcp.len() as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(from);
    ip.extend(to);
    let sum = checksum::sum(&ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0; ETHERNET_HEADER_LEN];
    frame[12] = 8;
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

fn header(from: [u8; 4], seq: u32, ack: u32, flags: TcpFlags) -> SegmentHeader {
    let (src_port, dst_port) = if from == HOST { (5000, 80) } else { (80, 5000) };
    SegmentHeader {
        src_port,
        dst_port,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        wnd: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
    }
}

/// Converts a frame with an IPv4 packet to IPv6.
fn over_v6(frame: &[u8]) -> Vec<u8> {
    let mut tcp = frame[ETHERNET_HEADER_LEN + 20..].to_vec();
    let [from, to] = [frame[29], frame[33]].map(|last| IpAddress([last; 16]));
    tcp[16..18].fill(0);
    let pseudo = checksum::pseudo_header(from, to, protocol::TCP, tcp.len() as u32);
    let sum = pseudo.plus(checksum::sum(&tcp)).checksum();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = vec![0; 12];
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    bytes.extend((tcp.len() as u16).to_be_bytes());
    bytes.extend([protocol::TCP, 64]);
    bytes.extend(from.0);
    bytes.extend(to.0);
    bytes.extend(tcp);
    bytes
}

const SYN_ACK: TcpFlags = TcpFlags::SYN.union(TcpFlags::ACK);

/// Returns wire rules that have seen the SYN of host 0 (ISS 100) and the SYN-ACK of the peer (ISS
/// 900). The peer's window is 1,000 bytes, and the peer's MSS is 600 bytes.
fn established() -> WireRules {
    let mut rules = WireRules::default();
    let syn = header(HOST, 100, 0, TcpFlags::SYN);
    rules
        .sent(Instant::ZERO, 0, &frame(HOST, syn, &[]))
        .expect("a SYN");
    let mut syn_ack = header(PEER, 900, 101, SYN_ACK);
    syn_ack.options.mss = Some(600);
    rules.delivered(0, &frame(PEER, syn_ack, &[]));
    rules
}

/// Checks a segment of host 0 with `len` bytes of payload. The error is the broken rule's name.
fn send(rules: &mut WireRules, seq: u32, ack: u32, len: usize) -> Result<(), &'static str> {
    let header = header(HOST, seq, ack, TcpFlags::ACK);
    let frame = frame(HOST, header, &vec![7; len]);
    let sent = rules.sent(Instant::ZERO, 0, &frame);
    sent.map_err(|violation| violation.rule)
}

#[test]
fn segments_in_order_pass_and_new_bytes_are_counted() {
    let mut rules = established();
    assert_eq!(send(&mut rules, 101, 901, 0), Ok(()));
    assert_eq!(send(&mut rules, 101, 901, 600), Ok(()));
    assert_eq!(send(&mut rules, 101, 901, 600), Ok(()));
    assert_eq!(send(&mut rules, 701, 901, 400), Ok(()));
    let advances: Vec<u32> = rules.advances.iter().map(|advance| advance.bytes).collect();
    assert_eq!(advances, [600, 400]);
}

#[test]
fn each_violation_names_its_rule() {
    let mss = "a segment is at most the peer's MSS";
    assert_eq!(send(&mut established(), 101, 901, 601), Err(mss));
    let mut rules = established();
    assert_eq!(send(&mut rules, 101, 901, 600), Ok(()));
    let window = "nothing is sent beyond the window";
    assert_eq!(send(&mut rules, 701, 901, 402), Err(window));
    let ack = "an ACK is for what was received";
    assert_eq!(send(&mut established(), 101, 902, 0), Err(ack));
    let gap = "sequence space has no gaps";
    assert_eq!(send(&mut established(), 102, 901, 10), Err(gap));
    // The rule also holds after the peer's FIN.
    let mut rules = established();
    let fin = header(PEER, 901, 101, TcpFlags::FIN | TcpFlags::ACK);
    rules.delivered(0, &frame(PEER, fin, &[]));
    assert_eq!(send(&mut rules, 102, 902, 10), Err(gap));
}

#[test]
fn the_rules_hold_over_ipv6() {
    let mut rules = WireRules::default();
    let syn = header(HOST, 100, 0, TcpFlags::SYN);
    let sent = rules.sent(Instant::ZERO, 0, &over_v6(&frame(HOST, syn, &[])));
    assert_eq!(sent, Ok(()));
    let mut syn_ack = header(PEER, 900, 101, SYN_ACK);
    syn_ack.options.mss = Some(600);
    rules.delivered(0, &over_v6(&frame(PEER, syn_ack, &[])));
    let mut send = |seq, ack, len| {
        let frame = frame(HOST, header(HOST, seq, ack, TcpFlags::ACK), &vec![7; len]);
        let sent = rules.sent(Instant::ZERO, 0, &over_v6(&frame));
        sent.map_err(|violation| violation.rule)
    };
    assert_eq!(send(101, 901, 600), Ok(()));
    let mss = "a segment is at most the peer's MSS";
    assert_eq!(send(101, 901, 601), Err(mss));
    let ack = "an ACK is for what was received";
    assert_eq!(send(701, 902, 0), Err(ack));
    assert_eq!(rules.segments, 4);
}

#[test]
fn a_gap_is_not_acknowledged_and_a_sack_block_is_not_invented() {
    let mut rules = established();
    let beyond = header(PEER, 911, 101, TcpFlags::ACK);
    rules.delivered(0, &frame(PEER, beyond, &[1; 10]));
    let ack = "an ACK is for what was received";
    assert_eq!(send(&mut rules, 101, 921, 0), Err(ack));
    let mut with_sack = header(HOST, 101, 901, TcpFlags::ACK);
    with_sack.options.sack.push(SeqNumber(911), SeqNumber(921));
    let good = rules.sent(Instant::ZERO, 0, &frame(HOST, with_sack, &[]));
    assert_eq!(good, Ok(()));
    with_sack.options.sack.push(SeqNumber(930), SeqNumber(940));
    let bad = rules.sent(Instant::ZERO, 0, &frame(HOST, with_sack, &[]));
    let rule = "a SACK block is of what was received";
    assert_eq!(bad.map_err(|violation| violation.rule), Err(rule));
}

#[test]
fn a_window_does_not_move_back() {
    let mut rules = established();
    assert_eq!(send(&mut rules, 101, 901, 0), Ok(()));
    let mut narrow = header(HOST, 101, 901, TcpFlags::ACK);
    narrow.wnd = 999;
    let refused = rules.sent(Instant::ZERO, 0, &frame(HOST, narrow, &[]));
    let rule = "a window does not shrink";
    assert_eq!(refused.map_err(|violation| violation.rule), Err(rule));
}

/// A retransmitted SYN-ACK repeats the unscaled initial window, which is not the current window.
#[test]
fn a_syn_ack_that_is_sent_again_does_not_move_the_window_back() {
    let mut rules = WireRules::default();
    let mut syn = header(PEER, 900, 0, TcpFlags::SYN);
    syn.options.wscale = Some(4);
    rules.delivered(0, &frame(PEER, syn, &[]));
    let mut syn_ack = header(HOST, 100, 901, SYN_ACK);
    syn_ack.options.wscale = Some(4);
    let again = frame(HOST, syn_ack, &[]);
    let scaled = frame(HOST, header(HOST, 101, 901, TcpFlags::ACK), &[]);
    for sent in [&again, &scaled, &again] {
        assert_eq!(rules.sent(Instant::ZERO, 0, sent), Ok(()));
    }
    // The rule for the scaled window still applies after the retransmission of the SYN-ACK.
    let mut narrow = header(HOST, 101, 901, TcpFlags::ACK);
    narrow.wnd = 500;
    let refused = rules.sent(Instant::ZERO, 0, &frame(HOST, narrow, &[]));
    let rule = "a window does not shrink";
    assert_eq!(refused.map_err(|violation| violation.rule), Err(rule));
}

#[test]
fn a_corrupted_frame_was_never_received() {
    let mut rules = established();
    let mut bytes = frame(PEER, header(PEER, 901, 101, TcpFlags::ACK), &[1; 10]);
    *bytes.last_mut().expect("bytes") ^= 4;
    rules.delivered(0, &bytes);
    let ack = "an ACK is for what was received";
    assert_eq!(send(&mut rules, 101, 911, 0), Err(ack));
}

#[test]
fn a_stream_may_exceed_the_sequence_space() {
    const LEN: u32 = 60_000;
    let payload = [0; LEN as usize];
    let segment = |seq: u32, ack: u32, payload| Segment {
        src_port: 80,
        dst_port: 5000,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags: TcpFlags::ACK,
        wnd: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
        payload,
    };
    let mut incarnation = Incarnation::new(&Segment {
        flags: TcpFlags::SYN,
        ..segment(900, 0, &[])
    });
    incarnation.record(
        &Segment {
            flags: TcpFlags::SYN,
            ..segment(900, 0, &[])
        },
        None,
    );
    let mut seq = 901u32;
    for _ in 0..200_000 {
        incarnation.record(&segment(seq, 101, &payload), None);
        let ahead = segment(101, seq.wrapping_add(LEN + 1), &[]);
        assert!(incarnation.allows(&ahead).is_err());
        seq = seq.wrapping_add(LEN);
        assert!(incarnation.allows(&segment(101, seq, &[])).is_ok());
    }
    // A segment half of the sequence space away does not move the end of the received range.
    incarnation.record(&segment(seq.wrapping_add(1 << 31), 101, &payload), None);
    assert_eq!(
        incarnation.received.first_end(),
        1 + 200_000 * u64::from(LEN)
    );
}
