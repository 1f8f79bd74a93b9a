//! Tests of the parsers and emitters. The constants are frames that were captured between two Linux
//! hosts on a veth pair. Some tests change these frames to malformed input. Further tests cover
//! addresses, sequence numbers, hashes, and the names of drop reasons.

extern crate std;

use std::{collections::BTreeSet, format, string::ToString, vec, vec::Vec};

use crate::*;

/// SYN, SYN-ACK, data and FIN of one connection, captured without checksum offload. The checksums
/// of the four frames are complete.
const SYN: &str = "d62d9b9040ff96d05da5ad6f08004500003ccb10400040065b0f0a4d00010a4d00028e861f90\
                   15a68bef00000000a002faf0f3920000020405b40402080aa5bf4f71000000000103030a";
const SYN_ACK: &str = "96d05da5ad6fd62d9b9040ff08004500003c00004000400626200a4d00020a4d00011f908e86\
                       ad47bf6715a68bf0a012fe88e7270000020405b40402080a7fc91c49a5bf4f710103030a";
const DATA: &str = "d62d9b9040ff96d05da5ad6f080045000038cb12400040065b110a4d00010a4d00028e861f90\
                    15a68bf0ad47bf688018003f356400000101080aa5bf4f717fc91c4970696e67";
const FIN: &str = "d62d9b9040ff96d05da5ad6f080045000034cb14400040065b130a4d00010a4d00028e861f90\
                   15a68bf4ad47bf718011003f143300000101080aa5bf4f717fc91c49";
/// RST of another connection, captured without checksum offload.
const RST: &str = "96d05da5ad6fd62d9b9040ff08004500002800004000400626340a4d00020a4d00010051b406\
                   000000005caae77650140000a2bb0000";
/// A data segment that was captured with checksum offload. Its checksum field holds only the sum of
/// the pseudo-header.
const PARTIAL: &str = "aa3db38568bd8a39abc44f540800450000388b7a400040069aa90a4d00010a4d0002\
                       85521f90bb6fa3681fdfce398018003f14c700000101080acdee4607734414f670696e67";
/// ICMP "host unreachable" from a router. The error quotes a SYN.
const UNREACHABLE: &str = "96d05da5ad6fd62d9b9040ff080045c0005803350000400162140a4d00020a4d0001\
                           030111ce000000004500003c589240004006cd890a4d00010a4e000586ec0051\
                           7283c8b600000000a002faf0ba520000020405b40402080a58db62c600000000\
                           0103030a";

/// Decodes a string of hexadecimal digits.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .map(|c| (c as char).to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Parses a frame that must contain a TCP segment with a valid checksum.
pub fn checked(frame: &[u8]) -> (Packet<'_>, Segment<'_>) {
    let packet = parse_frame(frame).unwrap();
    assert_eq!(packet.protocol, protocol::TCP);
    assert!(tcp_checksum_ok(
        packet.src,
        packet.dst,
        packet.payload,
        false
    ));
    (packet, parse_tcp(packet.payload).unwrap())
}

/// Returns a frame with the addresses of `packet`, the fields and the payload of `segment`, and the
/// IPv4 identification `ip_id`. The result equals a captured frame if the captured frame has this
/// identification, and if its options have the layout of the emitter.
fn emitted(packet: &Packet<'_>, segment: &Segment<'_>, ip_id: u16) -> Vec<u8> {
    let template =
        HeaderTemplate::new(packet.src_mac, packet.dst_mac, packet.src, packet.dst).unwrap();
    let mut frame =
        vec![0xaa; FRAME_HEADERS_LEN_V4 + segment.header().len() + segment.payload.len()];
    let tcp_len = (frame.len() - FRAME_HEADERS_LEN_V4) as u16;
    let ip_end = template.write(&mut frame, tcp_len, packet.ecn, ip_id);
    let tcp_end = ip_end + emit_tcp(&mut frame[ip_end..], &segment.header());
    let payload = checksum::copy_and_sum(&mut frame[tcp_end..], segment.payload);
    let pseudo = template.pseudo_header(tcp_len);
    write_tcp_checksum(&mut frame[ip_end..tcp_end], pseudo, payload);
    frame
}

#[test]
fn linux_segments_are_understood() {
    let frame = bytes(SYN);
    let (packet, syn) = checked(&frame);
    assert_eq!(packet.src_mac.to_string(), "96:d0:5d:a5:ad:6f");
    assert_eq!(packet.dst_mac.to_string(), "d6:2d:9b:90:40:ff");
    assert_eq!(packet.src.to_string(), "10.77.0.1");
    assert_eq!(packet.dst, IpAddress::from_v4([10, 77, 0, 2]));
    assert_eq!((packet.ttl, packet.df, packet.ecn), (64, true, Ecn::NotEct));
    assert_eq!((syn.src_port, syn.dst_port), (36486, 8080));
    assert_eq!(
        (syn.seq, syn.flags, syn.wnd),
        (SeqNumber(0x15a6_8bef), TcpFlags::SYN, 64240)
    );
    assert_eq!((syn.len(), syn.payload.len()), (1, 0));
    let expected = TcpOptions {
        mss: Some(1460),
        wscale: Some(10),
        sack_permitted: true,
        timestamps: Some(Timestamps {
            tsval: 0xa5bf_4f71,
            tsecr: 0,
        }),
        sack: SackBlocks::EMPTY,
    };
    assert_eq!(syn.options, expected);

    let frame = bytes(DATA);
    let (_, data) = checked(&frame);
    assert_eq!((data.payload, data.len()), (&b"ping"[..], 4));
    assert_eq!(data.flags, TcpFlags::PSH | TcpFlags::ACK);
    assert_eq!(
        data.options,
        TcpOptions::timestamps(0xa5bf_4f71, 0x7fc9_1c49)
    );

    let frame = bytes(FIN);
    assert_eq!(checked(&frame).1.len(), 1);
    let frame = bytes(RST);
    let (_, rst) = checked(&frame);
    assert_eq!(
        (rst.options, rst.ack),
        (TcpOptions::NONE, SeqNumber(0x5caa_e776))
    );
}

#[test]
fn linux_segments_are_reproduced_byte_for_byte() {
    for (hex, ip_id) in [
        (SYN, 0xcb10),
        (SYN_ACK, 0),
        (DATA, 0xcb12),
        (FIN, 0xcb14),
        (RST, 0),
    ] {
        let frame = bytes(hex);
        let (packet, segment) = checked(&frame);
        assert_eq!(emitted(&packet, &segment, ip_id), frame);
    }
}

#[test]
fn link_padding_is_cut_off() {
    let mut frame = bytes(RST);
    frame.resize(60, 0);
    let (packet, rst) = checked(&frame);
    assert_eq!((packet.payload.len(), rst.payload.len()), (20, 0));
}

#[test]
fn every_flipped_bit_of_ip_or_tcp_is_noticed() {
    let frame = bytes(DATA);
    for bit in ETHERNET_HEADER_LEN * 8..frame.len() * 8 {
        let mut damaged = frame.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let ok =
            parse_frame(&damaged).is_ok_and(|p| tcp_checksum_ok(p.src, p.dst, p.payload, false));
        assert!(!ok, "bit {bit}");
    }
}

#[test]
fn a_partial_tcp_checksum_is_accepted_only_if_allowed() {
    let frame = bytes(PARTIAL);
    let packet = parse_frame(&frame).unwrap();
    assert!(tcp_checksum_ok(
        packet.src,
        packet.dst,
        packet.payload,
        true
    ));
    assert!(!tcp_checksum_ok(
        packet.src,
        packet.dst,
        packet.payload,
        false
    ));

    let mut frame = bytes(DATA);
    let (packet, _) = checked(&frame);
    let (src, dst) = (packet.src, packet.dst);
    let pseudo = checksum::pseudo_header(src, dst, protocol::TCP, packet.payload.len() as u32);
    write_partial_checksum(&mut frame[FRAME_HEADERS_LEN_V4..], pseudo);
    assert!(tcp_checksum_ok(
        src,
        dst,
        &frame[FRAME_HEADERS_LEN_V4..],
        true
    ));
    assert!(!tcp_checksum_ok(
        src,
        dst,
        &frame[FRAME_HEADERS_LEN_V4..],
        false
    ));
    frame[FRAME_HEADERS_LEN_V4 + 17] ^= 1;
    assert!(!tcp_checksum_ok(
        src,
        dst,
        &frame[FRAME_HEADERS_LEN_V4..],
        true
    ));
    // A complete checksum is also valid if partial checksums are allowed. A truncated header is
    // never valid.
    assert!(tcp_checksum_ok(
        src,
        dst,
        &bytes(DATA)[FRAME_HEADERS_LEN_V4..],
        true
    ));
    assert!(!tcp_checksum_ok(src, dst, &[0; 12], true));
}

#[test]
fn truncation_at_every_length_is_refused() {
    for hex in [SYN, SYN_ACK, DATA, FIN, RST, UNREACHABLE] {
        let frame = bytes(hex);
        for len in 0..frame.len() {
            assert_eq!(
                parse_frame(&frame[..len]),
                Err(DropReason::Truncated),
                "{len}"
            );
        }
    }
    let frame = bytes(SYN);
    let transport = &frame[FRAME_HEADERS_LEN_V4..];
    for len in 0..transport.len() {
        assert!(parse_tcp(&transport[..len]).is_err(), "{len}");
    }
}

/// Returns the frame `hex` with `value` in byte `at` of the IPv4 header, and with a correct header
/// checksum.
fn with_ip_byte(hex: &str, at: usize, value: u8) -> Vec<u8> {
    let mut frame = bytes(hex);
    frame[ETHERNET_HEADER_LEN + at] = value;
    frame[ETHERNET_HEADER_LEN + 10..ETHERNET_HEADER_LEN + 12].fill(0);
    let sum = checksum::sum(&frame[ETHERNET_HEADER_LEN..FRAME_HEADERS_LEN_V4]).checksum();
    frame[ETHERNET_HEADER_LEN + 10..ETHERNET_HEADER_LEN + 12].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn refusals_have_their_reason() {
    let reason = |frame: &[u8]| parse_frame(frame).unwrap_err();
    assert_eq!(reason(&with_ip_byte(SYN, 0, 0x65)), DropReason::BadIpHeader);
    assert_eq!(reason(&with_ip_byte(SYN, 0, 0x44)), DropReason::BadIpHeader);
    assert_eq!(reason(&with_ip_byte(SYN, 3, 19)), DropReason::BadIpHeader);
    assert_eq!(reason(&with_ip_byte(SYN, 2, 1)), DropReason::Truncated);
    assert_eq!(reason(&with_ip_byte(SYN, 6, 0x20)), DropReason::Fragment);
    assert_eq!(reason(&with_ip_byte(SYN, 7, 1)), DropReason::Fragment);
    assert!(!parse_frame(&with_ip_byte(SYN, 6, 0)).unwrap().df);
    assert_eq!(parse_frame(&with_ip_byte(SYN, 1, 3)).unwrap().ecn, Ecn::Ce);

    let mut frame = bytes(SYN);
    frame[ETHERNET_HEADER_LEN + 8] = 63;
    assert_eq!(reason(&frame), DropReason::BadIpChecksum);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(reason(&frame), DropReason::BadIpHeader);
    frame[12..14].copy_from_slice(&[0x81, 0x00]);
    assert_eq!(reason(&frame), DropReason::UnsupportedEthertype);

    let mut transport = bytes(SYN)[FRAME_HEADERS_LEN_V4..].to_vec();
    transport[12] = 0x40;
    assert_eq!(parse_tcp(&transport), Err(DropReason::BadTcpHeader));
    transport[12] = 0xb0;
    assert_eq!(parse_tcp(&transport), Err(DropReason::BadTcpHeader));
}

/// Returns the frame [`DATA`] with the given IPv4 options. The length of the options must be a
/// multiple of four bytes.
fn with_ip_options(options: &[u8]) -> Vec<u8> {
    let mut frame = bytes(DATA);
    let behind = FRAME_HEADERS_LEN_V4..FRAME_HEADERS_LEN_V4;
    frame.splice(behind, options.iter().copied());
    let ip = &mut frame[ETHERNET_HEADER_LEN..];
    ip[0] += options.len() as u8 / 4;
    ip[3] += options.len() as u8;
    ip[10..12].fill(0);
    let sum = checksum::sum(&ip[..20 + options.len()]).checksum();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn ip_options_are_skipped() {
    for options in [
        &[1, 1, 1, 0][..],
        // Router alert and record route.
        &[148, 4, 0, 0],
        &[7, 7, 4, 0, 0, 0, 0, 0],
        // The parser ignores bytes after the end of the option list.
        &[0, 131, 7, 4],
    ] {
        let frame = with_ip_options(options);
        assert_eq!(checked(&frame).1.payload, b"ping", "{options:?}");
    }
}

#[test]
fn rfc7126_section_4_a_source_route_is_refused() {
    for kind in [131, 137] {
        for options in [
            [kind, 7, 4, 10, 0, 0, 9, 0],
            [1, kind, 7, 4, 10, 0, 0, 9],
            [148, 4, 0, 0, kind, 3, 4, 0],
        ] {
            let frame = with_ip_options(&options);
            assert_eq!(parse_frame(&frame), Err(DropReason::SourceRoute));
        }
    }
}

#[test]
fn ip_options_of_impossible_lengths_are_refused() {
    for options in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 4, 0], [1, 1, 1, 148]] {
        let frame = with_ip_options(&options);
        let refused = Err(DropReason::BadIpHeader);
        assert_eq!(parse_frame(&frame), refused, "{options:?}");
    }
}

#[test]
fn malformed_options_end_or_are_skipped() {
    let mss = TcpOptions {
        mss: Some(1460),
        ..TcpOptions::NONE
    };
    for (options, expected) in [
        // An option length that is 0, 1, missing, or beyond the end of the options ends the
        // parsing. The options before this option are valid.
        (&[2, 4, 5, 0xb4, 3, 0, 9, 9][..], mss),
        (&[2, 4, 5, 0xb4, 3, 1, 9, 9], mss),
        (&[2, 4, 5, 0xb4, 3, 9, 9, 9], mss),
        (&[2, 4, 5, 0xb4, 1, 1, 1, 3], mss),
        // Known kinds with a wrong length are skipped, and the options after them are parsed.
        (&[3, 2, 8, 3, 0, 5, 5, 0, 0, 0, 2, 4, 5, 0xb4], mss),
        // Unknown kinds are skipped. An option after the end of the list is ignored.
        (&[253, 2, 2, 4, 5, 0xb4, 0, 0, 3, 3, 7, 0], mss),
        // A window shift that is too large counts as the largest shift (RFC 7323 §2.3).
        (
            &[3, 3, 200],
            TcpOptions {
                wscale: Some(14),
                ..TcpOptions::NONE
            },
        ),
    ] {
        assert_eq!(TcpOptions::parse(options), expected, "{options:?}");
    }
}

#[test]
fn sack_blocks_share_the_room_with_timestamps() {
    let block = |n: u32| (SeqNumber(n * 100), SeqNumber(n * 100 + 50));
    let sack: SackBlocks = (0..9).map(block).collect();
    assert_eq!((sack.len(), sack.is_empty()), (SACK_BLOCKS_MAX, false));
    let mut options = TcpOptions {
        sack,
        ..TcpOptions::NONE
    };
    let mut buf = [0; OPTIONS_LEN_MAX];
    assert_eq!(options.emit(&mut buf), 36);
    assert_eq!(TcpOptions::parse(&buf[..36]), options);

    options.timestamps = Some(Timestamps { tsval: 1, tsecr: 2 });
    assert_eq!((options.len(), options.emit(&mut buf)), (40, 40));
    assert_eq!(buf[..4], [1, 1, 8, 10]);
    assert_eq!(buf[12..16], [1, 1, 5, 26]);
    let parsed = TcpOptions::parse(&buf);
    assert_eq!(parsed.sack.as_slice(), &sack.as_slice()[..3]);
}

#[test]
fn icmp_error_names_our_flow() {
    let frame = bytes(UNREACHABLE);
    let packet = parse_frame(&frame).unwrap();
    assert_eq!(packet.protocol, protocol::ICMP);
    let local = Endpoint::v4([10, 77, 0, 1], 34540);
    let peer = Endpoint::v4([10, 78, 0, 5], 81);
    let key = FlowKey { local, peer };
    let expected = IcmpError {
        kind: IcmpErrorKind::HostUnreachable,
        key,
        seq: SeqNumber(0x7283_c8b6),
    };
    assert_eq!(parse_icmp_error(packet.payload), Ok(expected));

    let mut icmp = packet.payload.to_vec();
    icmp[9] ^= 1;
    assert_eq!(parse_icmp_error(&icmp), Err(DropReason::BadChecksum));
    for len in 0..packet.payload.len() {
        assert!(parse_icmp_error(&packet.payload[..len]).is_err());
    }
}

/// Returns an ICMP message that quotes the same segment as [`UNREACHABLE`]. The quote has the
/// minimum length of RFC 792: the IPv4 header and eight bytes. `edit` may change the message before
/// its checksum is computed.
fn icmp(kind: u8, code: u8, mtu: u16, edit: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut icmp = bytes(UNREACHABLE)[FRAME_HEADERS_LEN_V4..FRAME_HEADERS_LEN_V4 + 8 + 28].to_vec();
    icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
    icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
    edit(&mut icmp);
    let sum = checksum::sum(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    icmp
}

#[test]
fn an_error_about_a_too_long_packet_has_the_mtu() {
    let v6 = |last| IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let v4 = |last| IpAddress::from_v4([10, 0, 0, last]);
    for (src, dst, most) in [(v4(1), v4(2), 576), (v6(1), v6(2), 1280)] {
        let (src_mac, dst_mac) = (
            MacAddress([2, 0, 0, 0, 0, 1]),
            MacAddress([2, 0, 0, 0, 0, 2]),
        );
        let template = HeaderTemplate::new(src_mac, dst_mac, src, dst).unwrap();
        let tcp_len = TCP_HEADER_LEN + 1400;
        let mut frame = vec![0; template.headers_len() + tcp_len];
        let start = template.write(&mut frame, tcp_len as u16, Ecn::NotEct, 1);
        let header = SegmentHeader {
            src_port: 1000,
            dst_port: 9,
            seq: SeqNumber(5),
            ack: SeqNumber(6),
            flags: TcpFlags::ACK,
            wnd: 100,
            urgent: 0,
            options: TcpOptions::NONE,
        };
        emit_tcp(&mut frame[start..], &header);
        let headers = FrameHeaders {
            src_mac,
            dst_mac,
            src,
            dst,
            ttl: 64,
            next: protocol::TCP,
        };
        let mut out = [0; ICMP_ERROR_LEN_MAX];
        let len = emit_packet_too_big(&mut out, &headers, &frame[14..], 1300, (64, 0)).unwrap();
        assert_eq!(len, 14 + most);
        let error = parse_frame(&out[..len]).unwrap();
        assert_eq!((error.src_mac, error.dst_mac), (dst_mac, src_mac));
        assert_eq!((error.src, error.dst), (dst, src));
        let parsed = match src.is_v4() {
            true => parse_icmp_error(error.payload),
            false => parse_icmpv6_error(&error),
        };
        let parsed = parsed.unwrap();
        assert_eq!(
            parsed.kind,
            IcmpErrorKind::FragmentationNeeded { mtu: 1300 }
        );
        assert_eq!(parsed.key.local, Endpoint::new(src, 1000));
        assert_eq!(parsed.seq, SeqNumber(5));
    }
}

#[test]
fn icmp_kinds() {
    for (kind, code, expected) in [
        (3, 0, IcmpErrorKind::NetUnreachable),
        (3, 2, IcmpErrorKind::ProtocolUnreachable),
        (3, 3, IcmpErrorKind::PortUnreachable),
        (3, 4, IcmpErrorKind::FragmentationNeeded { mtu: 1300 }),
        (3, 5, IcmpErrorKind::Other { kind: 3, code: 5 }),
        (3, 13, IcmpErrorKind::Prohibited),
        (11, 0, IcmpErrorKind::TimeExceeded),
        (12, 0, IcmpErrorKind::ParameterProblem),
    ] {
        assert_eq!(
            parse_icmp_error(&icmp(kind, code, 1300, |_| ()))
                .unwrap()
                .kind,
            expected
        );
    }
    for (message, reason) in [
        (icmp(8, 0, 0, |_| ()), DropReason::BadIcmp),
        // Source quench is obsolete (RFC 9293 MUST-55, RFC 6633).
        (icmp(4, 0, 0, |_| ()), DropReason::BadIcmp),
        (
            icmp(3, 3, 0, |i| i[8 + 9] = 17),
            DropReason::UnsupportedProtocol,
        ),
        (icmp(3, 3, 0, |i| i[8 + 7] = 1), DropReason::BadIcmp),
        (icmp(3, 3, 0, |i| i[8] = 0x44), DropReason::BadIcmp),
        (icmp(3, 3, 0, |i| i[8] = 0x4f), DropReason::Truncated),
    ] {
        assert_eq!(parse_icmp_error(&message), Err(reason));
    }
}

#[test]
fn sequence_space_wraps() {
    let start = SeqNumber(u32::MAX - 1);
    let end = start.add(4);
    assert_eq!((end, end.sub(4)), (SeqNumber(2), start));
    assert!(start.before(end) && end.after(start) && !end.before(start));
    assert!(start.at_or_before(start) && start.at_or_after(start) && !start.before(start));
    assert_eq!(
        (end.distance_from(start), start.distance_from(end)),
        (4, u32::MAX - 3)
    );
    assert!(SeqNumber(1).in_window(start, 4) && !SeqNumber(2).in_window(start, 4));
    assert!(!start.in_window(start, 0));
    assert_eq!((start.later_of(end), start.earlier_of(end)), (end, start));
}

#[test]
fn addresses() {
    let v6 = IpAddress([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!((v6.as_v4(), v6.is_v4()), (None, false));
    assert_eq!(Endpoint::new(v6, 443).to_string(), "[2001:db8::1]:443");
    assert_eq!(Endpoint::v4([10, 0, 0, 1], 80).to_string(), "10.0.0.1:80");
    for address in [v6, IpAddress::from_v4([192, 0, 2, 7])] {
        assert_eq!(IpAddress::from(core::net::IpAddr::from(address)), address);
    }
    assert!(
        IpAddress::UNSPECIFIED_V4.is_unspecified() && IpAddress::UNSPECIFIED_V6.is_unspecified()
    );
    assert!(IpAddress::from_v4([127, 9, 9, 9]).is_loopback() && !v6.is_loopback());
    assert!(IpAddress::from_v4([239, 1, 1, 1]).is_multicast_or_broadcast());
    assert!(IpAddress::from_v4([255; 4]).is_multicast_or_broadcast());
    assert!(!v6.is_multicast_or_broadcast());
    assert!(IpAddress::from_v4([0, 0, 0, 5]).is_this_network_v4() && !v6.is_this_network_v4());
    let mut prefix = [0; 16];
    prefix[..2].copy_from_slice(&[0x20, 1]);
    assert_eq!(v6.masked(16), IpAddress(prefix));
    assert_eq!((v6.masked(0).0, v6.masked(128)), ([0; 16], v6));
    assert!(MacAddress::BROADCAST.is_multicast());
    let key = FlowKey::new(Endpoint::v4([10, 0, 0, 1], 80), Endpoint::new(v6, 443));
    assert_eq!(key.to_string(), "10.0.0.1:80 <-> [2001:db8::1]:443");
    assert_eq!(key.reversed().reversed(), key);
}

/// Clients often have adjacent ports and addresses. Both the low and the high bits of their hashes
/// must fill buckets evenly, even if the seed is not random.
#[test]
fn hash_spreads_neighbouring_keys() {
    for seed in [
        [0, 0],
        [1, 2],
        [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
    ] {
        for shift in [0, 32, 54] {
            let mut buckets = [0u32; 1024];
            for n in 0..64 * 1024u32 {
                let [.., c, d] = (n / 8192).to_be_bytes();
                let peer = Endpoint::v4([10, 0, c, d], 32768 + (n % 8192) as u16);
                let key = FlowKey::new(Endpoint::v4([10, 0, 0, 1], 80), peer);
                buckets[(key.hash64(seed) >> shift) as usize % 1024] += 1;
            }
            // For an even hash, the sum has a chi-squared distribution with 1023 degrees of
            // freedom: mean 1023, standard deviation 45.
            let chi: f64 = buckets
                .iter()
                .map(|n| (f64::from(*n) - 64.0).powi(2) / 64.0)
                .sum();
            assert!(
                (700.0..1350.0).contains(&chi),
                "seed {seed:x?} shift {shift}: {chi}"
            );
        }
    }
}

#[test]
fn hash_depends_on_every_bit_and_the_seed() {
    let key = FlowKey::new(
        Endpoint::v4([10, 0, 0, 1], 80),
        Endpoint::v4([10, 0, 0, 2], 9),
    );
    let seed = [7, 9];
    let mut seen = BTreeSet::from([key.hash64(seed), key.hash64([7, 8]), key.hash64([6, 9])]);
    seen.insert(key.reversed().hash64(seed));
    for bit in 0..128 {
        let mut flipped = key;
        flipped.local.addr.0[bit / 8] ^= 1 << (bit % 8);
        seen.insert(flipped.hash64(seed));
        flipped = key;
        flipped.peer.addr.0[bit / 8] ^= 1 << (bit % 8);
        seen.insert(flipped.hash64(seed));
    }
    for bit in 0..16 {
        let mut flipped = key;
        flipped.local.port ^= 1 << bit;
        seen.insert(flipped.hash64(seed));
        flipped = key;
        flipped.peer.port ^= 1 << bit;
        seen.insert(flipped.hash64(seed));
    }
    assert_eq!(seen.len(), 4 + 256 + 32);
}

#[test]
fn drop_reasons_have_distinct_snake_case_names() {
    let names: BTreeSet<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), DropReason::COUNT);
    for (index, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(
            (reason.index(), DropReason::from_index(index)),
            (index, Some(*reason))
        );
        assert!(
            reason
                .name()
                .bytes()
                .all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        );
        let flat = reason.name().replace('_', "");
        assert_eq!(flat, format!("{reason:?}").to_lowercase());
    }
    assert_eq!(DropReason::from_index(DropReason::COUNT), None);
}

#[test]
fn flags_read_like_tcpdump() {
    let mut flags = TcpFlags::SYN | TcpFlags::ACK;
    assert_eq!(format!("{flags} {flags:?}"), "S. [S.]");
    flags |= TcpFlags::ECE;
    flags.remove(TcpFlags::SYN);
    assert!(flags.contains(TcpFlags::ACK | TcpFlags::ECE));
    assert!(!flags.contains(TcpFlags::ACK | TcpFlags::SYN));
    assert!(flags.intersects(TcpFlags::ACK | TcpFlags::SYN));
    assert_eq!(format!("{:?}", TcpFlags(0xff)), "[FSRP.UEW]");
}

#[test]
fn traffic_class_and_hop_limit_are_in_the_ip_header_beside_ecn() {
    let v4 = [
        IpAddress::from_v4([10, 0, 0, 1]),
        IpAddress::from_v4([10, 0, 0, 2]),
    ];
    let v6 = [1, 2].map(|last| {
        let mut address = [0xfd; 16];
        address[15] = last;
        IpAddress(address)
    });
    for [src, dst] in [v4, v6] {
        let mac = MacAddress::default();
        let mut template = HeaderTemplate::new(mac, mac, src, dst).unwrap();
        template.set_flow_label(0xa_bcde);
        for (class, hop_limit, ecn) in [
            (0xb8, 5, Ecn::Ect0),
            (0xff, 0, Ecn::NotEct),
            (4, 255, Ecn::Ce),
        ] {
            template.set_fields(IpFields {
                traffic_class: class,
                hop_limit,
            });
            let mut frame = std::vec![0; template.headers_len() + 20];
            template.write(&mut frame, 20, ecn, 7);
            let sent = if template.is_v6() {
                assert_eq!(frame[15] & 15, 0xa, "flow label");
                (frame[14] << 4 | frame[15] >> 4, frame[21])
            } else {
                (frame[15], frame[22])
            };
            assert_eq!(sent, (class & 0xfc | ecn as u8, hop_limit.max(1)));
            // The parser also checks the lengths and, for IPv4, the checksum.
            let packet = parse_frame(&frame).unwrap();
            assert_eq!((packet.src, packet.dst), (src, dst));
            assert_eq!((packet.ttl, packet.ecn), (hop_limit.max(1), ecn));
        }
    }
}

#[test]
fn rfc1191_section_3_a_template_may_be_without_df() {
    let mac = MacAddress::default();
    let ends = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddress::from_v4);
    let mut template = HeaderTemplate::new(mac, mac, ends[0], ends[1]).unwrap();
    for allowed in [false, true, false] {
        template.set_may_fragment(allowed);
        let mut frame = std::vec![0; template.headers_len() + 20];
        template.write(&mut frame, 20, Ecn::NotEct, 7);
        assert_eq!(parse_frame(&frame).unwrap().df, !allowed);
    }
    let ends = [1, 2].map(|last| IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]));
    let mut template = HeaderTemplate::new(mac, mac, ends[0], ends[1]).unwrap();
    let before = template;
    template.set_may_fragment(true);
    assert_eq!(template, before);
}
