//! Tests of the IPv6 parsers, with frames that were captured between two Linux hosts on a veth pair
//! without offloads.

extern crate std;

use std::{vec, vec::Vec};

use crate::{
    tests::{bytes, checked},
    *,
};

/// SYN, SYN-ACK, data and FIN of one connection. The checksums are complete.
const SYN: &str = "d6b9b3a268a8b6f4449c1cf086dd600447bb00280640fd77000000000000000000000000\
                   0002fd770000000000000000000000000001a4e81f90945f0f8400000000a002fd208f1b\
                   0000020405a00402080abdcb9aba000000000103030a";
const SYN_ACK: &str = "b6f4449c1cf0d6b9b3a268a886dd600bf09800280640fd77000000000000000000000000\
                       0001fd7700000000000000000000000000021f90a4e8a189c084945f0f85a012fb0476e8\
                       0000020405a00402080ad728e106bdcb9aba0103030a";
const DATA: &str = "d6b9b3a268a8b6f4449c1cf086dd600447bb00240640fd77000000000000000000000000\
                    0002fd770000000000000000000000000001a4e81f90945f0f85a189c08580180040c18b\
                    00000101080abdcb9abad728e10670696e67";
const FIN: &str = "b6f4449c1cf0d6b9b3a268a886dd600bf09800200640fd77000000000000000000000000\
                   0001fd7700000000000000000000000000021f90a4e8a189c085945f0f8a8011003f9f37\
                   00000101080ad728e1cebdcb9b1e";
/// ICMPv6 "no route to destination" from a router. The error quotes a SYN.
const UNREACHABLE: &str = "b6f4449c1cf0d6b9b3a268a886dd6004717400583a40fd77000000000000000000000000\
                           0001fd770000000000000000000000000002010022f20000000060017a4d00280640fd77\
                           0000000000000000000000000002fd770009000000000000000000000005c7d000513700\
                           dda200000000a002fd20a06f0000020405a00402080a0ffec2be000000000103030a";

fn address(last: u8, net: u8) -> IpAddress {
    IpAddress([0xfd, 0x77, 0, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

#[test]
fn linux_segments_are_understood_and_reproduced() {
    for hex in [SYN, SYN_ACK, DATA, FIN] {
        let original = bytes(hex);
        let (packet, segment) = checked(&original);
        let mut template =
            HeaderTemplate::new(packet.src_mac, packet.dst_mac, packet.src, packet.dst).unwrap();
        template.set_flow_label(u32::from_be_bytes(*original[14..].first_chunk().unwrap()));
        assert!(template.is_v6() && template.headers_len() == FRAME_HEADERS_LEN_V6);
        let mut frame = vec![0xaa; original.len()];
        let tcp_len = (frame.len() - template.headers_len()) as u16;
        let ip_end = template.write(&mut frame, tcp_len, packet.ecn, 0x1234);
        let tcp_end = ip_end + emit_tcp(&mut frame[ip_end..], &segment.header());
        let payload = checksum::copy_and_sum(&mut frame[tcp_end..], segment.payload);
        let pseudo = template.pseudo_header(tcp_len);
        write_tcp_checksum(&mut frame[ip_end..tcp_end], pseudo, payload);
        assert_eq!(frame, original);
    }
    let data = bytes(DATA);
    let (packet, segment) = checked(&data);
    assert_eq!((packet.src, packet.dst), (address(2, 0), address(1, 0)));
    assert_eq!((packet.ttl, packet.df, packet.ecn), (64, true, Ecn::NotEct));
    assert_eq!(segment.payload, b"ping");
}

#[test]
fn templates_carry_ecn_and_no_mixed_versions() {
    let mac = MacAddress([2; 6]);
    let v4 = IpAddress::from_v4([10, 0, 0, 1]);
    assert_eq!(HeaderTemplate::new(mac, mac, address(1, 0), v4), None);
    assert_eq!(HeaderTemplate::new(mac, mac, v4, address(1, 0)), None);
    let mut template = HeaderTemplate::new(mac, mac, address(1, 0), address(2, 0)).unwrap();
    template.set_flow_label(0xfff_ffff);
    for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
        let mut frame = [0; FRAME_HEADERS_LEN_MAX + 20];
        template.write(&mut frame, 20, ecn, 0);
        let packet = parse_frame(&frame).unwrap();
        assert_eq!((packet.ecn, packet.payload.len()), (ecn, 20));
        let word = u32::from_be_bytes(*frame[14..].first_chunk().unwrap());
        assert_eq!(word, 0x600f_ffff | (ecn as u32) << 20);
    }
}

#[test]
fn truncation_and_damage_are_refused() {
    let data = bytes(DATA);
    for len in 14..data.len() {
        assert_eq!(parse_frame(&data[..len]), Err(DropReason::Truncated));
    }
    // Bytes 14 to 17 (version, traffic class and flow label) and byte 21 (hop limit) stay intact,
    // because no checksum covers these fields.
    for byte in (18..21).chain(22..data.len()) {
        for bit in 0..8 {
            let mut damaged = data.clone();
            damaged[byte] ^= 1 << bit;
            let accepted = parse_frame(&damaged).is_ok_and(|packet| {
                packet.protocol == protocol::TCP
                    && tcp_checksum_ok(packet.src, packet.dst, packet.payload, false)
            });
            assert!(!accepted, "byte {byte} bit {bit}");
        }
    }
    let mut version = data;
    version[14] = 0x50;
    assert_eq!(parse_frame(&version), Err(DropReason::BadIpHeader));
}

/// Inserts extension headers before the TCP header of [`DATA`]. Each element of `headers` is a
/// next-header number and the bytes of the header.
fn extended(headers: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let data = bytes(DATA);
    let mut chain = Vec::new();
    let mut next = protocol::TCP;
    for (number, header) in headers.iter().rev() {
        let mut header = header.clone();
        header[0] = next;
        chain.splice(0..0, header);
        next = *number;
    }
    let len = (data.len() - 54 + chain.len()) as u16;
    let mut frame = [&data[..54], &chain[..], &data[54..]].concat();
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame[20] = next;
    frame
}

#[test]
fn extension_headers_are_followed() {
    let pad = |len: u8| {
        let mut header = vec![0; 8 + usize::from(len) * 8];
        header[1] = len;
        header
    };
    let mut finished_route = pad(2);
    finished_route[2] = 4;
    let atomic = vec![0, 0, 0, 0, 1, 2, 3, 4];
    let chain = [
        (0, pad(0)),
        (60, pad(3)),
        (43, finished_route),
        (44, atomic),
        (60, pad(1)),
    ];
    let frame = extended(&chain);
    let (packet, segment) = checked(&frame);
    assert_eq!(
        (packet.protocol, segment.payload),
        (protocol::TCP, &b"ping"[..])
    );

    let mut route = pad(2);
    route[3] = 1;
    let refusals = [
        (extended(&[(43, route)]), DropReason::BadIpHeader),
        (
            extended(&[(44, vec![0, 0, 0, 1, 0, 0, 0, 9])]),
            DropReason::Fragment,
        ),
        (
            extended(&[(44, vec![0, 0, 0, 8, 0, 0, 0, 9])]),
            DropReason::Fragment,
        ),
        (extended(&vec![(60, pad(0)); 9]), DropReason::BadIpHeader),
        (
            extended(&[(0, vec![0, 200, 0, 0, 0, 0, 0, 0])]),
            DropReason::Truncated,
        ),
    ];
    for (frame, reason) in refusals {
        assert_eq!(parse_frame(&frame), Err(reason));
    }
}

#[test]
fn rfc8200_section_4_2_only_options_that_may_be_skipped_are_accepted() {
    let header = |options: [u8; 6]| [&[0, 0], &options[..]].concat();
    let parsed = |number, options| parse_frame(&extended(&[(number, header(options))])).is_ok();
    for number in [0, 60] {
        // PadN, Router Alert between paddings, and an unknown option that may be skipped.
        for options in [
            [1, 4, 9, 9, 9, 9],
            [0, 5, 2, 0, 0, 0],
            [0x3e, 4, 0, 0, 0, 0],
        ] {
            assert!(parsed(number, options), "{number}: {options:?}");
        }
        // Options whose type demands that the receiver discard the packet.
        for kind in [0x40, 0x80, 0xc2, 0xfe] {
            assert!(!parsed(number, [kind, 4, 0, 0, 0, 0]), "{number}: {kind}");
            assert!(!parsed(number, [1, 1, 0, kind, 1, 0]), "{number}: {kind}");
        }
        // Options that extend beyond their header.
        for options in [[1, 5, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]] {
            assert!(!parsed(number, options), "{number}: {options:?}");
        }
    }
}

#[test]
fn an_ipv4_mapped_address_on_the_wire_is_unspecified() {
    let mut frame = bytes(DATA);
    frame[22..38].copy_from_slice(&IpAddress::from_v4([10, 0, 0, 1]).0);
    assert_eq!(parse_frame(&frame).unwrap().src, IpAddress::UNSPECIFIED_V6);
}

#[test]
fn icmp_errors_identify_the_local_flow() {
    let frame = bytes(UNREACHABLE);
    let packet = parse_frame(&frame).unwrap();
    let expected = IcmpError {
        kind: IcmpErrorKind::NetUnreachable,
        key: FlowKey::new(
            Endpoint::new(address(2, 0), 0xc7d0),
            Endpoint::new(address(5, 9), 81),
        ),
        seq: SeqNumber(0x3700_dda2),
    };
    assert_eq!(parse_icmpv6_error(&packet), Ok(expected));
    for len in 0..8 + 40 + 8 {
        let payload = &packet.payload[..len];
        assert!(parse_icmpv6_error(&Packet { payload, ..packet }).is_err());
    }
    let src = address(3, 0);
    let damaged = parse_icmpv6_error(&Packet { src, ..packet });
    assert_eq!(damaged, Err(DropReason::BadChecksum));
}

#[test]
fn error_kinds() {
    let frame = bytes(UNREACHABLE);
    let packet = parse_frame(&frame).unwrap();
    let kind = |kind: u8, code: u8, mtu: u32| {
        let mut icmp = packet.payload.to_vec();
        icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
        icmp[4..8].copy_from_slice(&mtu.to_be_bytes());
        let len = icmp.len() as u32;
        let pseudo = checksum::pseudo_header(packet.src, packet.dst, protocol::ICMPV6, len);
        let sum = pseudo.plus(checksum::sum(&icmp)).checksum();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        parse_icmpv6_error(&Packet {
            payload: &icmp,
            ..packet
        })
        .map(|error| error.kind)
    };
    use IcmpErrorKind::*;
    assert_eq!(kind(1, 0, 0), Ok(NetUnreachable));
    assert_eq!(kind(1, 1, 0), Ok(Prohibited));
    assert_eq!(kind(1, 3, 0), Ok(HostUnreachable));
    assert_eq!(kind(1, 4, 0), Ok(PortUnreachable));
    assert_eq!(kind(2, 0, 1280), Ok(FragmentationNeeded { mtu: 1280 }));
    assert_eq!(kind(2, 0, 1 << 20), Ok(FragmentationNeeded { mtu: 65_535 }));
    assert_eq!(kind(3, 0, 0), Ok(TimeExceeded));
    assert_eq!(kind(4, 1, 0), Ok(ProtocolUnreachable));
    assert_eq!(kind(4, 0, 0), Ok(ParameterProblem));
    assert_eq!(kind(1, 9, 0), Ok(Other { kind: 1, code: 9 }));
    assert_eq!(kind(128, 0, 0), Err(DropReason::BadIcmp));
    assert_eq!(kind(135, 0, 0), Err(DropReason::BadIcmp));
}
