//! The fuzz target of the IP reassembler: fragments in any order, of many lengths, from several
//! senders. Memory must stay bounded, and each byte of a reassembled packet must come from a
//! fragment that covers the byte's position.

use tidelane_fragments::{BYTES_MAX, INCOMPLETE_PACKETS_MAX, Reassembler, TIMEOUT};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, Fragment, IpAddress, MacAddress, PacketId, parse_fragment, parse_frame, protocol,
};

use crate::bytes::Bytes;

/// Largest payload of a fragment in bytes.
const PAYLOAD_MAX: usize = 2048;
/// Largest number of fragments taken from one input.
const STEPS_MAX: u32 = 512;

/// Returns a payload whose bytes encode their position in the packet. A nonzero `lie` changes the
/// bytes, as in a forged fragment.
fn payload(start: usize, len: usize, lie: u8) -> Vec<u8> {
    (start..start + len)
        .map(|at| (at % 251) as u8 ^ lie)
        .collect()
}

/// Returns the identity of packet `which`: the header fields that are equal in all fragments of the
/// packet.
fn packet_id(which: u8) -> PacketId {
    let address = |last| {
        if which & 1 == 0 {
            IpAddress::from_v4([10, 0, 0, last])
        } else {
            IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
        }
    };
    PacketId {
        id: u32::from(which >> 3),
        protocol: if which & 1 == 0 { protocol::TCP } else { 0 },
        src: address(2 + (which >> 1 & 3)),
        dst: address(1),
    }
}

/// Fuzz target: parses the input as a frame with a fragment. Then reassembles a sequence of
/// fragments that the input describes.
pub fn fragments(data: &[u8]) {
    if let Ok(fragment) = parse_fragment(data) {
        assert!(!fragment.payload.is_empty() && fragment.end() <= 65_535);
        assert!(fragment.header.len() + fragment.payload.len() <= data.len());
    }
    let mut bytes = Bytes::new(data);
    let mut all = Reassembler::default();
    let mut now = Instant::ZERO;
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        now += Duration::from_millis(u64::from(bytes.u8()) * 16);
        while all.expire(now).is_some() {}
        step(&mut all, now, &mut bytes);
        assert!(all.bytes() <= BYTES_MAX && all.incomplete_packets() <= INCOMPLETE_PACKETS_MAX);
        assert!(all.next_timeout().is_none_or(|at| at > now));
    }
    while all.expire(now + TIMEOUT).is_some() {}
    assert_eq!((all.incomplete_packets(), all.bytes()), (0, 0));
    let counters = all.counters();
    assert!(counters.oks + counters.fails <= counters.reqds);
}

/// Passes one fragment, which the input describes, to the reassembler. Checks the reassembled frame
/// if the fragment completes a packet.
fn step(all: &mut Reassembler, now: Instant, bytes: &mut Bytes<'_>) {
    let (which, place) = (bytes.u8(), bytes.u16());
    let (len, flags) = (usize::from(bytes.u16()) % PAYLOAD_MAX, bytes.u8());
    let more = flags & 1 == 0;
    let len = if more { (len / 8 + 1) * 8 } else { len + 1 };
    // Most fragments have a small offset, so that they overlap other fragments.
    let offset = place & if flags & 2 == 0 { 0x07f8 } else { 0xfff8 };
    // Skip a fragment that would exceed the longest IPv4 packet: 65,535 bytes, with a header of 20
    // bytes.
    if usize::from(offset) + len > 65_515 {
        return;
    }
    let lie = if flags & 0x1c == 0 { 1 } else { 0 };
    let payload = payload(offset.into(), len, lie);
    let fragment = Fragment {
        src_mac: MacAddress([2; 6]),
        dst_mac: MacAddress([4; 6]),
        packet_id: packet_id(which),
        offset,
        more,
        ecn: if flags & 0xe0 == 0 {
            Ecn::Ce
        } else {
            Ecn::Ect0
        },
        ttl: 64,
        next: protocol::TCP,
        header: &[0; 20],
        payload: &payload,
    };
    let Ok(Some(frame)) = all.push(now, &fragment) else {
        return;
    };
    let packet = parse_frame(&frame).expect("the reassembled frame is valid");
    assert_eq!(packet.src, fragment.packet_id.src);
    assert_ne!(packet.ecn, Ecn::NotEct);
    for (at, byte) in packet.payload.iter().enumerate() {
        assert!(
            byte ^ (at % 251) as u8 <= 1,
            "no fragment has this byte at this position"
        );
    }
}
