//! Tests of the parser of fragments, of the headers of reassembled packets, and of the ICMP error
//! for an incomplete packet.

extern crate std;

use std::{vec, vec::Vec};

use crate::*;

const SRC: [u8; 4] = [10, 0, 0, 2];
const DST: [u8; 4] = [10, 0, 0, 1];
const MORE: u16 = 0x2000;

/// Returns a frame with an IPv4 packet. `word` has the flags and the offset, and `options` is the
/// number of 32-bit words of options.
fn v4(word: u16, options: usize, payload: &[u8]) -> Vec<u8> {
    let header_len = 20 + 4 * options;
    let mut ip = vec![0x45 + options as u8, 2];
    ip.extend(((header_len + payload.len()) as u16).to_be_bytes());
    ip.extend([0xab, 0xcd]);
    ip.extend(word.to_be_bytes());
    ip.extend([61, protocol::TCP, 0, 0]);
    ip.extend(SRC);
    ip.extend(DST);
    ip.resize(header_len, 1);
    let sum = checksum::sum(&ip).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend(ip);
    frame.extend(payload);
    frame
}

/// Returns a frame with an IPv6 packet that has a fragment header after extension headers of 8
/// bytes each. `extensions` has their next-header numbers. `word` has the offset and the
/// more-fragments flag.
fn v6(word: u16, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0x10, 0, 0]);
    let behind = 8 * extensions.len() + 8 + payload.len();
    frame.extend((behind as u16).to_be_bytes());
    frame.extend([*extensions.first().unwrap_or(&44), 61]);
    for last in [2, 1] {
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    for at in 0..extensions.len() {
        let next = *extensions.get(at + 1).unwrap_or(&44);
        frame.extend([next, 0, 1, 0, 1, 0, 1, 0]);
    }
    frame.extend([protocol::TCP, 0]);
    frame.extend(word.to_be_bytes());
    frame.extend([0xde, 0xad, 0xbe, 0xef]);
    frame.extend(payload);
    frame
}

#[test]
fn fields_of_a_fragment() {
    for options in [0, 10] {
        let frame = v4(MORE | 3, options, &[7; 24]);
        assert_eq!(parse_frame(&frame), Err(DropReason::Fragment));
        let fragment = parse_fragment(&frame).unwrap();
        let datagram = PacketId {
            id: 0xabcd,
            protocol: protocol::TCP,
            src: IpAddress::from_v4(SRC),
            dst: IpAddress::from_v4(DST),
        };
        assert_eq!(fragment.packet_id, datagram);
        assert_eq!(
            (fragment.offset, fragment.end(), fragment.more),
            (24, 48, true)
        );
        assert_eq!(
            (fragment.ecn, fragment.ttl, fragment.next),
            (Ecn::Ect0, 61, protocol::TCP)
        );
        assert_eq!(
            (fragment.payload, fragment.header.len()),
            (&[7; 24][..], 20 + 4 * options)
        );
        assert_eq!(fragment.src_mac, MacAddress([2, 0, 0, 0, 0, 2]));
    }
    for extensions in [&[][..], &[0], &[0, 60, 43]] {
        // The length of the last fragment need not be a multiple of eight, and the reserved bits
        // are ignored.
        let mut frame = v6(40 | 6, extensions, &[7; 5]);
        if extensions.last() == Some(&43) {
            // The parser rejects a routing header whose Segments Left field is not zero.
            let left = frame.len() - 5 - 8 - 8 + 3;
            frame[left] = 0;
        }
        assert_eq!(parse_frame(&frame), Err(DropReason::Fragment));
        let fragment = parse_fragment(&frame).unwrap();
        assert_eq!(
            (fragment.packet_id.id, fragment.packet_id.protocol),
            (0xdead_beef, 0)
        );
        assert_eq!(
            (fragment.offset, fragment.end(), fragment.more),
            (40, 45, false)
        );
        assert_eq!((fragment.ecn, fragment.next), (Ecn::Ect1, protocol::TCP));
        assert_eq!(fragment.header.len(), 40 + 8 * extensions.len() + 8);
        assert_eq!(fragment.payload, [7; 5]);
    }
}

#[test]
fn impossible_fragments_are_refused() {
    let bad = Err(DropReason::BadFragment);
    let refused = |frame: Vec<u8>| parse_fragment(&frame).map(|_| ());
    assert_eq!(refused(v4(0, 0, &[7; 24])), bad);
    assert_eq!(refused(v4(MORE, 0, &[7; 23])), bad);
    assert_eq!(refused(v4(MORE | 1, 0, &[])), bad);
    assert_eq!(refused(v4(3, 0, &[])), bad);
    assert_eq!(refused(v4(3, 0, &[7; 23])), Ok(()));
    assert_eq!(refused(v6(0, &[], &[7; 24])), bad);
    assert_eq!(refused(v6(1, &[], &[7; 25])), bad);
    assert_eq!(refused(v6(8, &[], &[])), bad);
    // The first fragment must contain all headers (RFC 7112 §5).
    assert_eq!(refused(v6(1, &[], &[7; 16])), bad);
    assert_eq!(refused(v6(1, &[], &[7; 24])), Ok(()));
    // A packet without a fragment header is not a fragment.
    let mut none = v6(1, &[], &[7; 24]);
    none[14 + 6] = protocol::TCP;
    assert_eq!(refused(none), bad);
}

/// The parser refuses the "ping of death": a fragment that ends beyond 65,535 bytes.
#[test]
fn no_fragment_reaches_beyond_the_longest_packet() {
    // The largest offset is 65,528. The length field of IPv4 includes the IPv4 header. The length
    // field of IPv6 does not include the IPv6 header, but includes extension headers.
    let v4_end =
        |offset: u16, options, len| parse_fragment(&v4(offset / 8, options, &vec![7; len])).is_ok();
    assert!(v4_end(65_512, 0, 3) && !v4_end(65_512, 0, 4));
    assert!(v4_end(65_472, 10, 3) && !v4_end(65_472, 10, 4));
    assert!(!v4_end(65_528, 0, 1));
    let v6_end = |offset: u16, extensions: &[u8], len| {
        parse_fragment(&v6(offset, extensions, &vec![7; len])).is_ok()
    };
    assert!(v6_end(65_528, &[], 7) && !v6_end(65_528, &[], 8));
    assert!(v6_end(65_520, &[0], 7) && !v6_end(65_520, &[0], 8));
}

#[test]
fn cuts_and_damage_are_refused() {
    for frame in [v4(MORE, 3, &[7; 24]), v6(1, &[0, 60], &[7; 24])] {
        for len in 0..frame.len() {
            assert!(parse_fragment(&frame[..len]).is_err(), "{len}");
        }
    }
    let frame = v4(MORE, 3, &[7; 24]);
    for byte in 14..14 + 32 {
        let mut damaged = frame.clone();
        damaged[byte] ^= 0x10;
        assert!(parse_fragment(&damaged).is_err(), "{byte}");
    }
}

#[test]
fn a_reassembled_packet_has_the_headers_of_the_first_fragment() {
    for frame in [v4(MORE, 3, &[7; 24]), v6(1, &[0, 60], &[7; 24])] {
        let first = parse_fragment(&frame).unwrap();
        let (headers, len) = first.reassembled_headers().emit(Ecn::Ce, 24);
        let whole = [&headers[..len], first.payload].concat();
        let packet = parse_frame(&whole).unwrap();
        assert_eq!(
            (packet.src, packet.dst),
            (first.packet_id.src, first.packet_id.dst)
        );
        assert_eq!(
            (packet.src_mac, packet.dst_mac),
            (first.src_mac, first.dst_mac)
        );
        assert_eq!((packet.ecn, packet.ttl), (Ecn::Ce, 61));
        assert_eq!(
            (packet.protocol, packet.payload),
            (protocol::TCP, first.payload)
        );
    }
}

#[test]
fn the_sender_gets_an_error_for_an_incomplete_packet() {
    let mut out = [0; ICMP_ERROR_LEN_MAX];
    let long = [7; 1400];
    for (frame, most) in [
        (v4(MORE, 3, &long), 576),
        (v6(1, &[0], &long), 1280),
        (v4(MORE, 0, &[7; 24]), 20 + 8 + 44),
    ] {
        let first = parse_fragment(&frame).unwrap();
        let len = emit_time_exceeded(
            &mut out,
            &first.reassembled_headers(),
            &frame[14..],
            (64, 0x1234),
        );
        let len = len.unwrap();
        assert_eq!(len, 14 + most);
        let packet = parse_frame(&out[..len]).unwrap();
        assert_eq!(
            (packet.src, packet.dst),
            (first.packet_id.dst, first.packet_id.src)
        );
        assert_eq!(
            (packet.src_mac, packet.dst_mac),
            (first.dst_mac, first.src_mac)
        );
        assert_eq!(packet.payload[..8][1], 1);
        assert!(frame[14..].starts_with(&packet.payload[8..]));
        // The ICMPv6 error quotes a fragment header, which the parser of errors does not accept.
        if packet.dst.is_v4() {
            assert_eq!(out[18..20], [0x12, 0x34]);
            let error = parse_icmp_error(packet.payload).unwrap();
            assert_eq!(error.kind, IcmpErrorKind::TimeExceeded);
            assert_eq!(error.key.local.addr, first.packet_id.src);
        } else {
            assert_eq!(packet.payload[0], 3);
            assert_eq!(parse_icmpv6_error(&packet), Err(DropReason::Fragment));
        }
        assert_eq!(
            emit_time_exceeded(
                &mut out[1..],
                &first.reassembled_headers(),
                &frame[14..],
                (64, 0x1234)
            ),
            None
        );
    }
}
