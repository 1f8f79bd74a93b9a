//! Property tests: fragments of any size in any order give the original packet, and hostile
//! fragments give only data that was sent.

use proptest::prelude::*;
use tidelane_wire::{Ecn, IpAddress, MacAddress, parse_frame, protocol};

use super::*;

fn fragment(id: u32, host: u8, start: usize, more: bool, payload: &[u8]) -> Fragment<'_> {
    Fragment {
        src_mac: MacAddress([2; 6]),
        dst_mac: MacAddress([4; 6]),
        packet_id: PacketId {
            id,
            protocol: protocol::TCP,
            src: IpAddress::from_v4([10, 0, 0, host]),
            dst: IpAddress::from_v4([10, 0, 0, 1]),
        },
        offset: start as u16,
        more,
        ecn: Ecn::Ect0,
        ttl: 64,
        next: protocol::TCP,
        header: &[0; 20],
        payload,
    }
}

/// Generates a payload, the boundaries of its fragments as offsets in bytes, and the order in which
/// the fragments arrive. The order consists of indices of fragments. If an index occurs again, the
/// fragment is a duplicate.
fn fragmentation() -> impl Strategy<Value = (Vec<u8>, Vec<usize>, Vec<usize>)> {
    let payload = prop::collection::vec(any::<u8>(), 1..5000);
    (
        payload,
        prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    )
        .prop_flat_map(|(payload, cuts)| {
            let units = payload.len() / 8;
            let cuts = cuts.iter().map(|cut| cut.index(units + 1) * 8);
            let mut edges: Vec<usize> = cuts.chain([0, payload.len()]).collect();
            edges.sort_unstable();
            edges.dedup();
            let pieces: Vec<usize> = (0..edges.len() - 1).collect();
            let copies = prop::collection::vec(0..pieces.len(), 0..10);
            let order = copies
                .prop_flat_map(move |copies| Just([&pieces[..], &copies].concat()).prop_shuffle());
            (Just(payload), Just(edges), order)
        })
}

/// Generates fragments. The values of a fragment are: host, identification, start and length in
/// units of eight bytes, a flag that marks a last fragment, and the value of all payload bytes. The
/// payload of a last fragment is one byte shorter than its length says.
fn hostile() -> impl Strategy<Value = Vec<(u8, u32, usize, usize, bool, u8)>> {
    let any_part = (
        0u8..3,
        0u32..4,
        prop_oneof![0usize..6, 0usize..8190],
        1usize..4,
        any::<bool>(),
        0u8..2,
    );
    prop::collection::vec(any_part, 0..300)
}

/// Returns true if `whole` is a sequence of `parts`, each at its own offset.
fn consists_of(whole: &[u8], parts: &[(usize, Vec<u8>)]) -> bool {
    let mut reached = vec![false; whole.len() + 1];
    reached[0] = true;
    for at in 0..whole.len() {
        if !reached[at] {
            continue;
        }
        for (_, bytes) in parts.iter().filter(|(start, _)| *start == at) {
            if whole[at..].starts_with(bytes) {
                reached[at + bytes.len()] = true;
            }
        }
    }
    reached[whole.len()]
}

proptest! {
    #[test]
    fn fragments_in_any_order_are_reassembled_once((payload, edges, order) in fragmentation()) {
        let mut all = Reassembler::default();
        let mut missing = edges.len() - 1;
        let mut seen = vec![false; missing];
        for piece in order {
            let (start, end) = (edges[piece], edges[piece + 1]);
            let more = end < payload.len();
            let part = fragment(1, 2, start, more, &payload[start..end]);
            let taken = all.push(Instant::ZERO, &part);
            if missing == 0 {
                break;
            }
            if std::mem::replace(&mut seen[piece], true) {
                prop_assert_eq!(taken, Err(DropReason::FragmentDuplicate));
                continue;
            }
            missing -= 1;
            if missing > 0 {
                prop_assert_eq!(taken, Ok(None));
                continue;
            }
            let frame = taken.unwrap().expect("the last piece came");
            let packet = parse_frame(&frame).unwrap();
            prop_assert_eq!(packet.payload, &payload[..]);
            prop_assert_eq!(packet.ecn, Ecn::Ect0);
        }
        prop_assert_eq!(missing, 0);
    }

    #[test]
    fn hostile_fragments_give_nothing_that_was_not_sent(parts in hostile()) {
        let mut all = Reassembler::default();
        let mut sent = std::collections::BTreeMap::<(u8, u32), Vec<(usize, Vec<u8>)>>::new();
        let mut now = Instant::ZERO;
        for (host, id, start, units, last, byte) in parts {
            now += Duration::from_secs(1);
            while all.expire(now).is_some() {}
            let len = units * 8 - usize::from(last);
            let payload = vec![byte; len];
            let log = sent.entry((host, id)).or_default();
            log.push((start * 8, payload.clone()));
            let part = fragment(id, host, start * 8, !last, &payload);
            let taken = all.push(now, &part);
            prop_assert!(all.bytes() <= BYTES_MAX);
            prop_assert!(all.incomplete_packets() <= INCOMPLETE_PACKETS_MAX);
            prop_assert_eq!(all.incomplete_packets() == 0, all.bytes() == 0);
            if let Ok(Some(frame)) = taken {
                let packet = parse_frame(&frame).unwrap();
                prop_assert!(consists_of(packet.payload, log));
                log.clear();
            }
        }
        while all.expire(now + TIMEOUT).is_some() {}
        prop_assert_eq!((all.incomplete_packets(), all.bytes()), (0, 0));
    }
}
