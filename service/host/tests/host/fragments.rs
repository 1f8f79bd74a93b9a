//! Tests of fragmented segments, which the host answers like unfragmented segments. The host is the
//! stack of one core of the service.

use std::sync::{Arc, atomic::AtomicU32};

use tidelane_ring::core_of;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    FRAME_HEADERS_LEN_V4, IpAddress, TcpFlags, checksum, parse_frame, parse_tcp, protocol,
};

use crate::{
    frames::{self, OURS, PEER, TTL},
    rig::Core,
};

const NOW: Instant = Instant::from_secs(1);
/// Time for which the host keeps the fragments of an incomplete packet.
const WAIT: Duration = Duration::from_secs(60);

/// Returns the two fragments of a SYN to port 80. `id` is the identification of the IP packet.
fn fragments(to: [u8; 4], src_port: u16, id: u16) -> [Vec<u8>; 2] {
    let whole = frames::syn(PEER, to, TTL, src_port);
    let (headers, tcp) = whole.split_at(FRAME_HEADERS_LEN_V4);
    // `word` has the flags and the offset of the fragment (in units of 8 bytes).
    let cut = |word: u16, tcp: &[u8]| {
        let mut frame = [headers, tcp].concat();
        let ip = &mut frame[14..34];
        ip[2..4].copy_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[6..8].copy_from_slice(&word.to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum::sum(ip).checksum();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    [cut(0x2000, &tcp[..16]), cut(2, &tcp[16..])]
}

fn assert_is_reset(frames: &[Vec<u8>], port: u16) {
    let [frame] = frames else {
        panic!("one answer, not {frames:?}");
    };
    let packet = parse_frame(frame).expect("a packet");
    let segment = parse_tcp(packet.payload).expect("a segment");
    assert_eq!(
        (packet.dst, segment.dst_port),
        (IpAddress::from_v4(PEER), port)
    );
    assert!(segment.flags.contains(TcpFlags::RST));
}

#[test]
fn rfc1122_section_3_3_2_a_segment_in_fragments_is_a_segment() {
    let mut core = Core::new();
    for (id, order) in [(1, [0, 1]), (2, [1, 0])] {
        let parts = fragments(OURS, 4000 + id, id);
        core.receives(&parts[order[0]]);
        assert_eq!(core.answers(NOW).len(), 0);
        core.receives(&parts[order[0]]);
        core.receives(&parts[order[1]]);
        assert_is_reset(&core.answers(NOW), 4000 + id);
    }
    assert_eq!(
        (core.counter("reasm_reqds"), core.counter("reasm_oks")),
        (6, 2)
    );
    assert_eq!(core.counter("drop_fragment_duplicate"), 2);
    assert_eq!(core.counter("drop_no_listener"), 2);
    assert_eq!(core.host.next_timeout(), None);
}

#[test]
fn rfc1122_section_3_3_2_a_reassembly_timeout_is_reported_to_the_sender() {
    let mut core = Core::new();
    let [first, last] = fragments(OURS, 4000, 1);
    core.receives(&first);
    core.receives(&fragments(OURS, 4000, 2)[1]);
    assert_eq!(core.answers(NOW).len(), 0);
    assert_eq!(core.host.next_timeout(), Some(NOW + WAIT));
    assert_eq!(core.answers(NOW + WAIT - Duration::from_millis(1)).len(), 0);
    // The packet with identification 2 has no first fragment, so the host sends no ICMP error for
    // this packet.
    let answers = core.answers(NOW + WAIT);
    assert_eq!(answers.len(), 1);
    let packet = parse_frame(&answers[0]).expect("a packet");
    assert_eq!(
        (packet.protocol, packet.dst),
        (protocol::ICMP, IpAddress::from_v4(PEER))
    );
    assert_eq!(packet.payload[..2], [11, 1]);
    assert!(checksum::sum(packet.payload).is_valid());
    assert_eq!(packet.payload[8..], first[14..]);
    assert_eq!(
        (core.counter("reasm_timeout"), core.counter("reasm_fails")),
        (2, 2)
    );
    assert_eq!(core.counter("out_time_excds"), 1);
    // A late fragment begins a new packet.
    core.receives(&last);
    assert_eq!(core.answers(NOW + WAIT).len(), 0);
    assert_eq!(core.counter("reasm_oks"), 0);
}

#[test]
fn time_exceeded_errors_are_rate_limited() {
    let mut core = Core::new();
    for id in 0..20 {
        core.receives(&fragments(OURS, 4000, id)[0]);
    }
    assert_eq!(core.answers(NOW).len(), 0);
    assert_eq!(core.answers(NOW + WAIT).len(), 1);
    assert_eq!(core.counter("reasm_timeout"), 20);
}

#[test]
fn fragments_for_others_are_not_kept() {
    let mut core = Core::new();
    for part in fragments([10, 0, 0, 9], 4000, 1) {
        core.receives(&part);
    }
    assert_eq!(core.answers(NOW).len(), 0);
    assert_eq!(
        (core.counter("reasm_reqds"), core.counter("drop_not_ours")),
        (0, 2)
    );
    assert_eq!(core.host.next_timeout(), None);
}

/// RSS chooses the queue of a fragment by its IP addresses. On a veth, the queue is the transmit
/// queue of the sender. For any choice of queues, one core reassembles the fragments, and the core
/// of the flow answers.
#[test]
fn fragments_from_any_queues_are_reassembled() {
    const CORES: u32 = 3;
    let rings: Vec<Arc<AtomicU32>> = (0..CORES).map(|_| Arc::default()).collect();
    let mut cores = Core::several(&rings);
    let mut handed_on = 0;
    for id in 0..60 {
        let port = 5000 + id;
        let owner = core_of(port, 80, CORES) as usize;
        let parts = fragments(OURS, port, id);
        cores[usize::from(id) % 3].receives(&parts[0]);
        cores[usize::from(id / 3) % 3].receives(&parts[1]);
        // The core of the queue passes a fragment to the reassembling core. The reassembling core
        // passes the packet to the core of the flow.
        let mut answers: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
        let mut rounds = 0;
        while rounds == 0 || cores.iter().any(|core| core.host.has_work()) {
            for (core, answers) in cores.iter_mut().zip(&mut answers) {
                answers.extend(core.answers(NOW));
            }
            rounds += 1;
            assert!(rounds < 5);
        }
        assert_is_reset(&answers[owner], port);
        assert_eq!(answers.iter().map(Vec::len).sum::<usize>(), 1);
        handed_on += usize::from(rounds > 2);
    }
    let oks = cores.iter().map(|core| core.counter("reasm_oks"));
    let oks: Vec<u64> = oks.collect();
    assert_eq!(oks.iter().sum::<u64>(), 60);
    assert!(oks.iter().all(|count| *count > 5), "{oks:?}");
    assert!(handed_on > 0);
}
