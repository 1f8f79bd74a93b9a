//! Property tests: parse(emit(x)) = x, checksums equal a naive sum, and no input causes a panic.

extern crate std;

use std::{vec, vec::Vec};

use proptest::prelude::*;

use crate::{checksum::Sum, *};

/// Computes the sum as RFC 1071 defines it: big-endian words, each carry folded immediately.
fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Generates bytes of which many or all are 0 or 0xff. These values provoke errors in carries.
fn lumpy_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), Just(0u8), Just(0xffu8)];
    prop_oneof![
        prop::collection::vec(byte, 0..max),
        (any::<bool>(), 0..max).prop_map(|(ones, len)| vec![if ones { 0xff } else { 0 }; len]),
    ]
}

/// Generates the options of a SYN, or timestamps and up to three SACK blocks.
fn options() -> impl Strategy<Value = TcpOptions> {
    let timestamps = any::<(u32, u32)>().prop_map(|(tsval, tsecr)| Timestamps { tsval, tsecr });
    let block = any::<(u32, u32)>().prop_map(|(l, r)| (SeqNumber(l), SeqNumber(r)));
    let syn = (
        any::<Option<u16>>(),
        prop::option::of(0u8..=14),
        any::<bool>(),
        prop::option::of(timestamps.clone()),
    )
        .prop_map(|(mss, wscale, sack_permitted, timestamps)| TcpOptions {
            mss,
            wscale,
            sack_permitted,
            timestamps,
            sack: SackBlocks::EMPTY,
        });
    let other = (
        prop::option::of(timestamps),
        prop::collection::vec(block, 0..4),
    )
        .prop_map(|(timestamps, sack)| TcpOptions {
            timestamps,
            sack: sack.into_iter().collect(),
            ..TcpOptions::NONE
        });
    prop_oneof![syn, other]
}

fn header() -> impl Strategy<Value = SegmentHeader> {
    (any::<(u16, u16, u32, u32, u8, u16, u16)>(), options()).prop_map(|(fields, options)| {
        let (src_port, dst_port, seq, ack, flags, wnd, urgent) = fields;
        SegmentHeader {
            src_port,
            dst_port,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: TcpFlags(flags),
            wnd,
            urgent,
            options,
        }
    })
}

proptest! {
    #[test]
    fn checksum_equals_the_naive_one(bytes in lumpy_bytes(600), cut in any::<usize>()) {
        let sum = checksum::sum(&bytes);
        prop_assert_eq!(sum.fold(), naive_sum(&bytes));
        let cut = (cut % (bytes.len() + 1)) & !1;
        let (head, tail) = bytes.split_at(cut);
        prop_assert_eq!(checksum::sum(head).plus(checksum::sum(tail)).fold(), sum.fold());
        prop_assert_eq!(Sum::of_u16(sum.fold()).fold(), sum.fold());
        // Data that contains its own checksum is valid.
        prop_assert!(Sum::of_u16(sum.checksum()).plus(sum).is_valid());
    }

    #[test]
    fn copying_sums_and_copies(bytes in lumpy_bytes(300), spare in 0usize..3) {
        let mut copy = vec![0x55; bytes.len() + spare];
        let sum = checksum::copy_and_sum(&mut copy, &bytes);
        prop_assert_eq!(sum.fold(), naive_sum(&bytes));
        prop_assert_eq!(&copy[..bytes.len()], &bytes[..]);
        prop_assert!(copy[bytes.len()..].iter().all(|byte| *byte == 0x55));
    }

    #[test]
    fn pseudo_headers_equal_the_naive_ones(src: [u8; 16], dst: [u8; 16], len in 0u32..1 << 20) {
        let mut v6 = [&src[..], &dst[..], &len.to_be_bytes()].concat();
        v6.extend([0, 0, 0, 6]);
        let (src6, dst6) = (IpAddress(src), IpAddress(dst));
        prop_assert_eq!(checksum::pseudo_header(src6, dst6, 6, len).fold(), naive_sum(&v6));
        let (src4, dst4) = ([src[0], src[1], src[2], src[3]], [dst[0], dst[1], dst[2], dst[3]]);
        let len = len as u16;
        let v4 = [&src4[..], &dst4[..], &[0, 6], &len.to_be_bytes()].concat();
        let (src4, dst4) = (IpAddress::from_v4(src4), IpAddress::from_v4(dst4));
        let sum = checksum::pseudo_header(src4, dst4, 6, len.into());
        prop_assert_eq!(sum.fold(), naive_sum(&v4));
    }

    #[test]
    fn emitted_options_are_parsed_unchanged(options in options()) {
        let mut buf = [0xee; OPTIONS_LEN_MAX];
        let len = options.emit(&mut buf);
        prop_assert_eq!(len, options.len());
        prop_assert_eq!(len % 4, 0);
        prop_assert_eq!(TcpOptions::parse(&buf[..len]), options);
        prop_assert!(buf[len..].iter().all(|byte| *byte == 0xee));
    }

    #[test]
    fn emitted_frames_are_parsed_unchanged(
        header in header(),
        payload in lumpy_bytes(1400),
        macs: ([u8; 6], [u8; 6]),
        addresses: ([u8; 4], [u8; 4]),
        tos in 0u8..4,
        ip_id: u16,
        padding in 0usize..20,
    ) {
        let (src, dst) = (IpAddress::from_v4(addresses.0), IpAddress::from_v4(addresses.1));
        let (src_mac, dst_mac) = (MacAddress(macs.0), MacAddress(macs.1));
        let mut template =
            HeaderTemplate::new(MacAddress([9; 6]), MacAddress::BROADCAST, src, dst).unwrap();
        template.set_link(src_mac, dst_mac);
        prop_assert_eq!(template.dst_mac(), dst_mac);

        let mut frame = [0; 2048];
        let tcp_len = (header.len() + payload.len()) as u16;
        let ecn = Ecn::from_tos(tos);
        let tcp_at = template.write(&mut frame, tcp_len, ecn, ip_id);
        let payload_at = tcp_at + emit_tcp(&mut frame[tcp_at..], &header);
        let sum = checksum::copy_and_sum(&mut frame[payload_at..], &payload);
        let pseudo = template.pseudo_header(tcp_len);
        write_tcp_checksum(&mut frame[tcp_at..payload_at], pseudo, sum);
        let end = payload_at + payload.len();

        let packet = parse_frame(&frame[..end + padding]).unwrap();
        prop_assert_eq!((packet.src, packet.dst), (src, dst));
        prop_assert_eq!((packet.src_mac, packet.dst_mac), (src_mac, dst_mac));
        prop_assert_eq!((packet.ecn, packet.ttl, packet.df), (ecn, 64, true));
        prop_assert!(tcp_checksum_ok(src, dst, packet.payload, false));
        let segment = parse_tcp(packet.payload).unwrap();
        prop_assert_eq!(segment.header(), header);
        prop_assert_eq!(segment.payload, &payload[..]);

        write_partial_checksum(&mut frame[tcp_at..], pseudo);
        let transport = &frame[tcp_at..end];
        prop_assert!(tcp_checksum_ok(src, dst, transport, true));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = parse_frame(&bytes);
        let _ = parse_ipv4(&bytes);
        let _ = parse_tcp(&bytes);
        let _ = parse_icmp_error(&bytes);
        if let Ok(packet) = parse_ipv6(&bytes) {
            let _ = parse_icmpv6_error(&packet);
        }
        let options = TcpOptions::parse(&bytes);
        let mut buf = [0; OPTIONS_LEN_MAX];
        let len = options.emit(&mut buf);
        prop_assert!(len <= OPTIONS_LEN_MAX);
        let address = IpAddress::UNSPECIFIED_V4;
        let _ = tcp_checksum_ok(address, address, &bytes, true);
    }

    /// Parses bytes that are often valid kinds and lengths of options. These bytes reach more of
    /// the parser than uniformly random bytes. The options that were found are emitted, and the
    /// parser finds the MSS, the window shift and the timestamps again.
    #[test]
    fn option_soup_never_panics(
        soup in prop::collection::vec(prop_oneof![0u8..12, Just(34u8)], 0..40),
    ) {
        let options = TcpOptions::parse(&soup);
        let mut buf = [0; OPTIONS_LEN_MAX];
        let len = options.emit(&mut buf);
        let again = TcpOptions::parse(&buf[..len]);
        prop_assert_eq!((again.mss, again.wscale), (options.mss, options.wscale));
        prop_assert_eq!(again.timestamps, options.timestamps);
    }
}
