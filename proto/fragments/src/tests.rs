//! Unit tests of reassembly: order, overlap, timeouts, limits and ECN.

use tidelane_wire::{
    Ecn, FRAME_HEADERS_LEN_V4, IpAddress, MacAddress, parse_fragment, parse_frame, protocol,
};

use super::*;

const US: [u8; 4] = [10, 0, 0, 1];
const NOW: Instant = Instant::from_secs(5);

/// A fragment of packet `id` from host `host`, with its payload at byte `offset`.
#[derive(Clone, Copy)]
struct Part<'a> {
    host: u8,
    id: u16,
    offset: usize,
    more: bool,
    ecn: Ecn,
    payload: &'a [u8],
}

impl<'a> Part<'a> {
    fn new(id: u16, offset: usize, more: bool, payload: &'a [u8]) -> Self {
        Self {
            host: 2,
            id,
            offset,
            more,
            ecn: Ecn::NotEct,
            payload,
        }
    }

    fn fragment(self) -> Fragment<'a> {
        Fragment {
            src_mac: MacAddress([2, 0, 0, 0, 0, self.host]),
            dst_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            packet_id: PacketId {
                id: self.id.into(),
                protocol: protocol::TCP,
                src: IpAddress::from_v4([10, 0, 0, self.host]),
                dst: IpAddress::from_v4(US),
            },
            offset: self.offset as u16,
            more: self.more,
            ecn: self.ecn,
            ttl: 9,
            next: protocol::TCP,
            header: &[0x45; 20],
            payload: self.payload,
        }
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn push(all: &mut Reassembler, part: Part<'_>) -> Result<Option<Vec<u8>>, DropReason> {
    all.push(NOW, &part.fragment())
}

/// Splits `payload` into fragments of `len` bytes each. The last fragment may be shorter.
fn parts(id: u16, payload: &[u8], len: usize) -> Vec<Part<'_>> {
    let last = (payload.len() - 1) / len;
    let part = |(at, bytes)| Part::new(id, at * len, at < last, bytes);
    payload.chunks(len).enumerate().map(part).collect()
}

#[test]
fn rfc1122_section_3_3_2_fragments_become_one_packet() {
    let whole = payload(1480);
    let mut all = Reassembler::default();
    let parts = parts(7, &whole, 552);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let [one, two, three] = order.map(|at| push(&mut all, parts[at]));
        assert_eq!((one, two), (Ok(None), Ok(None)));
        let frame = three.unwrap().expect("the whole");
        let packet = parse_frame(&frame).unwrap();
        assert_eq!(packet.payload, whole);
        assert_eq!(packet.src, IpAddress::from_v4([10, 0, 0, 2]));
        assert_eq!(packet.dst, IpAddress::from_v4(US));
        assert_eq!(packet.src_mac, MacAddress([2, 0, 0, 0, 0, 2]));
        assert_eq!(
            (packet.ttl, packet.protocol, packet.df),
            (9, protocol::TCP, false)
        );
        assert_eq!((all.incomplete_packets(), all.bytes()), (0, 0));
    }
    let counters = all.counters();
    assert_eq!((counters.reqds, counters.oks, counters.fails), (12, 4, 0));
}

/// Only the length field of the IP header limits the size of a packet (RFC 1122 §3.3.2).
#[test]
fn rfc1122_section_3_3_2_the_longest_packet_is_reassembled() {
    let whole = payload(65_515);
    let mut all = Reassembler::default();
    let parts = parts(7, &whole, 552);
    assert!(parts.len() < FRAGMENTS_MAX);
    let (last, others) = parts.split_last().unwrap();
    for part in others {
        assert_eq!(push(&mut all, *part), Ok(None));
    }
    let frame = push(&mut all, *last).unwrap().expect("the whole");
    assert_eq!(frame.len(), FRAME_HEADERS_LEN_V4 + whole.len());
    assert_eq!(parse_frame(&frame).unwrap().payload, whole);
}

#[test]
fn packets_do_not_mix() {
    let whole = payload(1000);
    let mut all = Reassembler::default();
    for (host, id) in [(2, 1), (2, 2), (3, 1)] {
        let part = Part {
            host,
            ..Part::new(id, 0, true, &whole[..800])
        };
        assert_eq!(push(&mut all, part), Ok(None));
    }
    let mut udp = Part::new(1, 800, false, &whole[800..]).fragment();
    udp.packet_id.protocol = protocol::UDP;
    assert_eq!(all.push(NOW, &udp), Ok(None));
    assert_eq!(all.incomplete_packets(), 4);
    let last = Part::new(1, 800, false, &whole[800..]);
    assert!(push(&mut all, last).unwrap().is_some());
    assert_eq!(all.incomplete_packets(), 3);
}

/// The test of RFC 5722 §4 below covers overlaps that are not exact duplicates.
#[test]
fn only_an_exact_duplicate_is_ignored() {
    let whole = payload(2000);
    let mut all = Reassembler::default();
    let first = Part::new(1, 0, true, &whole[..800]);
    assert_eq!(push(&mut all, first), Ok(None));
    assert_eq!(push(&mut all, first), Err(DropReason::FragmentDuplicate));
    let last = Part::new(1, 1600, false, &whole[1600..]);
    assert_eq!(push(&mut all, last), Ok(None));
    assert_eq!(push(&mut all, last), Err(DropReason::FragmentDuplicate));
    let middle = Part::new(1, 800, true, &whole[800..1600]);
    assert!(push(&mut all, middle).unwrap().is_some());
}

#[test]
fn rfc5722_section_4_overlapping_fragments_invalidate_the_packet() {
    let whole = payload(2000);
    let changed: Vec<u8> = whole.iter().map(|byte| byte ^ 1).collect();
    let known = [(0, 800, true), (1600, 2000, false)];
    let overlapping = [
        (0, 800, true, &changed), // the same range with other bytes
        (0, 808, true, &whole),
        (0, 400, true, &whole), // within a known fragment
        (792, 1600, true, &whole),
        (800, 1608, true, &whole),
        (800, 2000, true, &whole), // ends like the last fragment, but has the more-fragments flag
        (1592, 2000, false, &whole),
        (2000, 2001, false, &longer_payload()),
        (800, 1600, false, &whole), // a last fragment with another end
    ];
    for (start, end, more, bytes) in overlapping {
        let mut all = Reassembler::default();
        for (start, end, more) in known {
            let part = Part::new(1, start, more, &whole[start..end]);
            assert_eq!(push(&mut all, part), Ok(None));
        }
        let bad = Part::new(1, start, more, &bytes[start..end]);
        let refused = Err(DropReason::FragmentOverlap);
        assert_eq!(push(&mut all, bad), refused, "{start}..{end}");
        // Later fragments of the packet are dropped, too, and the memory of its data is free.
        let middle = Part::new(1, 800, true, &whole[800..1600]);
        assert_eq!(push(&mut all, middle), refused);
        assert_eq!((all.bytes(), all.counters().fails), (QUEUE_COST, 1));
        assert_eq!(all.expire(NOW + TIMEOUT), None);
        assert_eq!((all.bytes(), all.counters().fails), (0, 1));
    }
}

fn longer_payload() -> Vec<u8> {
    payload(2001)
}

#[test]
fn a_last_fragment_before_known_data_invalidates_the_packet() {
    let whole = payload(2000);
    let mut all = Reassembler::default();
    assert_eq!(
        push(&mut all, Part::new(1, 800, true, &whole[..800])),
        Ok(None)
    );
    let last = Part::new(1, 0, false, &whole[..800]);
    assert_eq!(push(&mut all, last), Err(DropReason::FragmentOverlap));
}

#[test]
fn a_packet_times_out() {
    let whole = payload(1000);
    let mut all = Reassembler::default();
    assert_eq!(all.next_timeout(), None);
    assert_eq!(
        push(&mut all, Part::new(1, 0, true, &whole[..800])),
        Ok(None)
    );
    let later = NOW + Duration::from_secs(1);
    let headless = Part::new(2, 800, false, &whole[800..]).fragment();
    assert_eq!(all.push(later, &headless), Ok(None));
    assert_eq!(all.next_timeout(), Some(NOW + TIMEOUT));
    assert_eq!(all.expire(NOW + TIMEOUT - Duration::from_millis(1)), None);

    // The ICMP error can quote the first fragment.
    let TimedOutPacket { first } = all.expire(later + TIMEOUT).expect("the older one");
    let (headers, packet) = first.expect("its first fragment");
    assert_eq!(headers.src, IpAddress::from_v4([10, 0, 0, 2]));
    assert_eq!(packet[..20], [0x45; 20]);
    assert_eq!(packet[20..], whole[..800]);
    let TimedOutPacket { first } = all.expire(later + TIMEOUT).expect("the younger one");
    assert_eq!(first, None);
    assert_eq!(all.expire(later + TIMEOUT), None);
    assert_eq!((all.counters().fails, all.counters().timeouts), (2, 2));
    assert_eq!((all.incomplete_packets(), all.bytes()), (0, 0));
    // A fragment that arrives after the timeout starts a new packet.
    let late = Part::new(1, 800, false, &whole[800..]);
    assert_eq!(push(&mut all, late), Ok(None));
}

#[test]
fn an_incomplete_packet_is_dropped_before_its_identification_wraps() {
    let whole = payload(1600);
    let mut all = Reassembler::default();
    let first = Part::new(0, 0, true, &whole[..800]);
    assert_eq!(push(&mut all, first), Ok(None));
    for id in 1..=DISTANCE_MAX as u16 + 1 {
        assert_eq!(all.incomplete_packets(), 1);
        for part in parts(id, &whole, 800) {
            push(&mut all, part).unwrap();
        }
    }
    assert_eq!((all.incomplete_packets(), all.counters().fails), (0, 1));
    let last = Part::new(0, 800, false, &whole[800..]);
    assert_eq!(push(&mut all, last), Ok(None));
}

#[test]
fn memory_is_bounded_per_source_and_the_oldest_packet_makes_room() {
    let whole = payload(8000);
    let mut all = Reassembler::default();
    let begun = |host, id| Part {
        host,
        ..Part::new(id, 0, true, &whole)
    };
    for id in 0..200 {
        push(&mut all, begun(9, id)).unwrap();
        assert!(all.bytes() <= SOURCE_BYTES_MAX);
    }
    assert!(all.bytes() > SOURCE_BYTES_MAX - 10_000);
    // Many hosts send incomplete packets. Another host can still complete all of its packets.
    for id in 0..200 {
        push(&mut all, begun(10 + (id % 200) as u8, id)).unwrap();
        assert!(all.bytes() <= BYTES_MAX);
        assert_eq!(
            push(&mut all, Part::new(id, 0, true, &whole[..800])),
            Ok(None)
        );
        let last = Part::new(id, 800, false, &whole[800..1000]);
        assert!(push(&mut all, last).unwrap().is_some());
    }
    assert!(all.bytes() > BYTES_MAX - 10_000);
}

#[test]
fn a_duplicate_replaces_no_other_packet() {
    let whole = payload(8000);
    let mut all = Reassembler::default();
    let begun = |id| Part::new(id, 0, true, &whole);
    let mut id = 0;
    while all.bytes() + 8000 + QUEUE_COST + FRAGMENT_COST <= SOURCE_BYTES_MAX {
        push(&mut all, begun(id)).unwrap();
        id += 1;
    }
    let packets = all.incomplete_packets();
    let duplicate = Err(DropReason::FragmentDuplicate);
    assert_eq!(push(&mut all, begun(id - 1)), duplicate);
    assert_eq!(
        (all.incomplete_packets(), all.counters().fails),
        (packets, 0)
    );
}

#[test]
fn packets_and_fragments_are_bounded_in_number() {
    let whole = payload(8 * (FRAGMENTS_MAX + 1));
    let mut all = Reassembler::default();
    for (at, bytes) in whole.chunks(8).enumerate() {
        let taken = push(&mut all, Part::new(1, at * 8, true, bytes));
        let limit = Err(DropReason::FragmentLimit);
        assert_eq!(taken, if at < FRAGMENTS_MAX { Ok(None) } else { limit });
    }
    for id in 0..1000 {
        let part = Part {
            host: id as u8,
            ..Part::new(id, 8, true, &whole[..8])
        };
        assert_eq!(push(&mut all, part), Ok(None));
    }
    assert_eq!(all.incomplete_packets(), INCOMPLETE_PACKETS_MAX);
}

#[test]
fn rfc3168_section_5_3_ce_of_any_fragment_marks_the_packet() {
    let whole = payload(1600);
    let with = |ecns: [Ecn; 2]| {
        let mut all = Reassembler::default();
        let mut pieces = parts(1, &whole, 800);
        pieces
            .iter_mut()
            .zip(ecns)
            .for_each(|(part, ecn)| part.ecn = ecn);
        assert_eq!(push(&mut all, pieces[1]), Ok(None));
        let frame = push(&mut all, pieces[0])?.expect("the whole");
        Ok(parse_frame(&frame).expect("a packet").ecn)
    };
    assert_eq!(with([Ecn::Ect0, Ecn::Ce]), Ok(Ecn::Ce));
    assert_eq!(with([Ecn::Ect1, Ecn::Ect0]), Ok(Ecn::Ect1));
    assert_eq!(with([Ecn::NotEct, Ecn::Ce]), Err(DropReason::FragmentEcn));
}

#[test]
fn frames_are_parsed_and_emitted_alike() {
    // IPv6 fragments with a hop-by-hop header, parsed from frames.
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0x20, 0, 0, 0, 8 + 8 + 24, 0, 64]);
    for last in [2, 1] {
        frame.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend([44, 0, 1, 4, 0, 0, 0, 0]);
    frame.extend([protocol::TCP, 0, 0, 1, 1, 2, 3, 4]);
    frame.extend(payload(24));
    let mut last = frame.clone();
    last[14 + 5] = 8 + 8 + 3;
    last[14 + 40 + 8 + 3] = 24;
    last.truncate(14 + 40 + 16 + 3);
    let mut all = Reassembler::default();
    assert_eq!(all.push(NOW, &parse_fragment(&last).unwrap()), Ok(None));
    let whole = all.push(NOW, &parse_fragment(&frame).unwrap()).unwrap();
    let whole = whole.expect("the whole");
    let packet = parse_frame(&whole).unwrap();
    assert_eq!(
        (packet.protocol, packet.ecn, packet.ttl),
        (protocol::TCP, Ecn::Ect0, 64)
    );
    assert_eq!(packet.payload, [payload(24), payload(3)].concat());
    assert_eq!(packet.src.0[15], 2);
}
