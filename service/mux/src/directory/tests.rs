//! Tests of the directory: the checks and the destinations of packets that a mux port sends, and
//! the mux ports that receive packets. A mux port is a pair of packet rings through which a program
//! with a TCP/IP stack of its own shares the NIC. A mux port receives the packets to the 3-tuples
//! (protocol, local address, local port) that it has claimed.

use tidelane_wire::{
    Ecn, HeaderTemplate, SegmentHeader, SeqNumber, TcpFlags, TcpOptions, checksum, emit_tcp,
    udp_header, write_tcp_checksum,
};

use super::*;
use crate::claims::Tuple;

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const V4: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
const PEER_V4: IpAddress = IpAddress::from_v4([10, 0, 0, 2]);
const BROADCAST: IpAddress = IpAddress::from_v4([10, 0, 0, 255]);
const V6: IpAddress = v6(0xfd00, 1);
const PEER_V6: IpAddress = v6(0xfd00, 2);
const TCP: u8 = protocol::TCP;
const UDP: u8 = protocol::UDP;
/// The TCP and UDP port number that the mux port under test has claimed.
const PORT: u16 = 1000;
/// The mux port under test, and another mux port.
const OWN: PortId = PortId(0);
const OTHER: PortId = PortId(1);
/// Offsets in a frame without IP options: the IP header, the checksum of an IPv4 header, and the
/// transport header behind an IPv4 header and behind an IPv6 header.
const IP: usize = 14;
const IP_CHECKSUM: usize = IP + 10;
const TRANSPORT_V4: usize = IP + 20;
const TRANSPORT_V6: usize = IP + 40;

const fn v6(first: u16, last: u8) -> IpAddress {
    let [high, low] = first.to_be_bytes();
    IpAddress([high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

/// Returns a directory in which `OWN` has claimed port 1000, and `OTHER` has claimed port 2000. The
/// claims are for TCP and UDP at all addresses.
fn directory() -> Directory {
    let mut directory = Directory::new(MAC, vec![V4, V6]);
    directory.set_broadcasts(vec![BROADCAST]);
    for (owner, port) in [(OWN, PORT), (OTHER, 2000)] {
        for protocol in [TCP, UDP] {
            let local = Endpoint::new(IpAddress::UNSPECIFIED_V6, port);
            let claimed = directory.claims.claim(Tuple { protocol, local }, owner);
            claimed.expect("the 3-tuple is free");
        }
    }
    directory
}

/// Returns the frame of a packet with 13 bytes of payload.
fn frame(
    protocol: u8,
    (src, src_port): (IpAddress, u16),
    (dst, dst_port): (IpAddress, u16),
) -> Vec<u8> {
    let template = HeaderTemplate::with_protocol(protocol, MAC, PEER_MAC, src, dst);
    let template = template.expect("the addresses have one IP version");
    let (payload, header_len) = (*b"thirteen byte", if protocol == TCP { 20 } else { 8 });
    let len = header_len + payload.len() as u16;
    let mut frame = vec![0; template.headers_len() + usize::from(len)];
    let start = template.write(&mut frame, len, Ecn::NotEct, 7);
    let (header, behind) = frame[start..].split_at_mut(header_len.into());
    behind.copy_from_slice(&payload);
    let (pseudo, sum) = (template.pseudo_header(len), checksum::sum(&payload));
    if protocol == TCP {
        emit_tcp(
            header,
            &SegmentHeader {
                src_port,
                dst_port,
                seq: SeqNumber(1),
                ack: SeqNumber(2),
                flags: TcpFlags::ACK,
                wnd: 100,
                urgent: 0,
                options: TcpOptions::NONE,
            },
        );
        write_tcp_checksum(header, pseudo, sum);
    } else {
        header.copy_from_slice(&udp_header(src_port, dst_port, len, pseudo, sum));
    }
    frame
}

/// Returns the frame of a packet from the mux port under test to port 9 of `dst`.
fn sent(protocol: u8, dst: IpAddress) -> Vec<u8> {
    let src = if dst.is_v4() { V4 } else { V6 };
    frame(protocol, (src, PORT), (dst, 9))
}

/// Returns the IPv4 frame with four bytes of IP options in its IP header.
fn with_options(frame: &[u8], options: [u8; 4]) -> Vec<u8> {
    let mut frame = [&frame[..TRANSPORT_V4], &options, &frame[TRANSPORT_V4..]].concat();
    frame[IP] = 0x46;
    frame[IP + 3] += 4;
    with_ip_checksum(frame)
}

/// Returns the IPv4 frame with the right checksum of the IP header.
fn with_ip_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let end = (IP + usize::from(frame[IP] & 0xf) * 4).min(frame.len());
    if frame.len() >= TRANSPORT_V4 {
        frame[IP_CHECKSUM..IP_CHECKSUM + 2].fill(0);
        let sum = checksum::sum(&frame[IP..end.max(IP_CHECKSUM + 2)]).checksum();
        frame[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Returns the frame after a change of the byte at `at`.
fn changed(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    frame[at] ^= 1;
    frame
}

/// Returns the UDP frame with a checksum field of zero.
fn without_checksum(mut frame: Vec<u8>, transport: usize) -> Vec<u8> {
    frame[transport + 6..transport + 8].fill(0);
    frame
}

/// Returns the result of the check of a frame that the mux port under test sends.
fn check(frame: &[u8]) -> Result<Destination, SendRefusal> {
    directory().check_sent(OWN, frame)
}

const BAD_CHECKSUM: SendRefusal = SendRefusal::Malformed(DropReason::BadChecksum);

#[test]
fn genuine_packets_of_both_versions_reach_their_destination() {
    for (own, peer, group) in [
        (V4, PEER_V4, IpAddress::from_v4([239, 1, 2, 3])),
        (V6, PEER_V6, v6(0xff02, 1)),
    ] {
        for protocol in [TCP, UDP] {
            assert_eq!(check(&sent(protocol, peer)), Ok(Destination::Nic));
            let to = |port| check(&frame(protocol, (own, PORT), (own, port)));
            assert_eq!(to(2000), Ok(Destination::Port(OTHER)));
            assert_eq!(to(22), Ok(Destination::Host));
        }
        assert_eq!(check(&sent(TCP, group)), Err(SendRefusal::Destination));
        assert_eq!(check(&sent(UDP, group)), Ok(Destination::Nic));
        let to_other = check(&frame(UDP, (own, PORT), (group, 2000)));
        assert_eq!(to_other, Ok(Destination::NicAndPort(OTHER)));
    }
    for broadcast in [BROADCAST, IpAddress::from_v4([255; 4])] {
        assert_eq!(check(&sent(TCP, broadcast)), Err(SendRefusal::Destination));
        assert_eq!(check(&sent(UDP, broadcast)), Ok(Destination::Nic));
    }
}

#[test]
fn checksums_are_checked_and_zero_is_no_checksum_in_ipv4_only() {
    for (peer, transport) in [(PEER_V4, TRANSPORT_V4), (PEER_V6, TRANSPORT_V6)] {
        for protocol in [TCP, UDP] {
            let genuine = sent(protocol, peer);
            let last = genuine.len() - 1;
            assert_eq!(check(&changed(genuine, last)), Err(BAD_CHECKSUM));
        }
        let expected = if peer.is_v4() {
            Ok(Destination::Nic)
        } else {
            Err(BAD_CHECKSUM)
        };
        assert_eq!(
            check(&without_checksum(sent(UDP, peer), transport)),
            expected
        );
    }
}

#[test]
fn packets_with_ip_options_have_the_same_checks() {
    const NOP: [u8; 4] = [1, 1, 1, 0];
    let refusal = |frame: Vec<u8>| check(&with_options(&frame, NOP));
    for protocol in [TCP, UDP] {
        let genuine = sent(protocol, PEER_V4);
        let last = genuine.len() - 1;
        assert_eq!(refusal(genuine.clone()), Ok(Destination::Nic));
        assert_eq!(refusal(changed(genuine, last)), Err(BAD_CHECKSUM));
        let foreign = frame(protocol, (PEER_V4, PORT), (PEER_V4, 9));
        assert_eq!(refusal(foreign), Err(SendRefusal::SourceAddress));
        let of_other = frame(protocol, (V4, 2000), (PEER_V4, 9));
        assert_eq!(refusal(of_other), Err(SendRefusal::SourcePort));
        let nobody = sent(protocol, IpAddress::from_v4([127, 0, 0, 1]));
        assert_eq!(refusal(nobody), Err(SendRefusal::Destination));
    }
    let udp = without_checksum(sent(UDP, PEER_V4), TRANSPORT_V4);
    assert_eq!(refusal(udp), Ok(Destination::Nic));
    let with = |options| check(&with_options(&sent(TCP, PEER_V4), options));
    let malformed = |reason| Err(SendRefusal::Malformed(reason));
    assert_eq!(with([7, 1, 0, 0]), malformed(DropReason::BadIpHeader));
    assert_eq!(with([131, 3, 4, 0]), malformed(DropReason::SourceRoute));
    assert_eq!(with([137, 3, 4, 0]), malformed(DropReason::SourceRoute));
}

#[test]
fn addresses_that_are_no_peer_are_refused_with_their_reason() {
    let loopback_v6 = v6(0, 1);
    for protocol in [TCP, UDP] {
        for nobody in [
            IpAddress::UNSPECIFIED_V4,
            IpAddress::from_v4([0, 1, 2, 3]),
            IpAddress::from_v4([127, 255, 255, 255]),
            IpAddress::UNSPECIFIED_V6,
            loopback_v6,
        ] {
            let refused = check(&sent(protocol, nobody));
            assert_eq!(refused, Err(SendRefusal::Destination), "{nobody}");
        }
    }
    // An IPv4-mapped address in an IPv6 packet is neither an address of the interface nor a peer.
    let mapped = |at: usize, addr: IpAddress| {
        let mut frame = sent(TCP, PEER_V6);
        frame[at..at + 16].copy_from_slice(&addr.0);
        frame
    };
    let (src, dst) = (IP + 8, IP + 24);
    assert_eq!(check(&mapped(src, V4)), Err(SendRefusal::SourceAddress));
    assert_eq!(check(&mapped(dst, PEER_V4)), Err(SendRefusal::Destination));
    assert_eq!(directory().receiver(&mapped(dst, V4), false), None);
}

#[test]
fn lengths_fragments_and_other_protocols_are_malformed() {
    let malformed = |frame: Vec<u8>| match check(&frame) {
        Err(SendRefusal::Malformed(reason)) => reason,
        other => panic!("{other:?}"),
    };
    for (peer, transport) in [(PEER_V4, TRANSPORT_V4), (PEER_V6, TRANSPORT_V6)] {
        let mut longer = sent(UDP, peer);
        longer[transport + 5] += 1;
        assert_eq!(malformed(longer), DropReason::Truncated);
        for offset in [0x40, 0xf0] {
            let mut header = sent(TCP, peer);
            header[transport + 12] = offset;
            assert_eq!(malformed(header), DropReason::BadTcpHeader);
        }
    }
    for (at, bits) in [(6, 0x20), (7, 1)] {
        let mut fragment = sent(UDP, PEER_V4);
        fragment[IP + at] |= bits;
        assert_eq!(malformed(with_ip_checksum(fragment)), DropReason::Fragment);
    }
    for number in [protocol::ICMP, protocol::ICMPV6, 132] {
        let mut other = sent(UDP, PEER_V4);
        other[IP + 9] = number;
        let reason = malformed(with_ip_checksum(other));
        assert_eq!(reason, DropReason::UnsupportedProtocol);
    }
}

#[test]
fn received_packets_reach_the_owner_unless_their_source_is_local() {
    let directory = directory();
    for (own, peer) in [(V4, PEER_V4), (V6, PEER_V6)] {
        for protocol in [TCP, UDP] {
            let genuine = frame(protocol, (peer, 9), (own, PORT));
            let forged = frame(protocol, (own, 9), (own, PORT));
            assert_eq!(directory.receiver(&genuine, true), Some(OWN));
            assert_eq!(directory.receiver(&forged, true), None);
            assert_eq!(directory.receiver(&forged, false), Some(OWN));
            if own.is_v4() {
                let receiver = |frame| directory.receiver(&with_options(frame, [1; 4]), true);
                assert_eq!(receiver(&genuine), Some(OWN));
                assert_eq!(receiver(&forged), None);
            }
        }
    }
}

/// The directory has a separate code path for IPv4 packets without options. Each frame must have
/// the same result on the general path, which handles all packets.
#[test]
fn the_path_of_ipv4_packets_equals_the_general_path() {
    let directory = directory();
    let mut accepted = 0;
    let mut compare = |frame: &[u8]| {
        let result = directory.check_sent(OWN, frame);
        assert_eq!(result, directory.check_other(OWN, frame), "{frame:02x?}");
        accepted += usize::from(result.is_ok());
        for from_wire in [false, true] {
            let receiver = directory.receiver(frame, from_wire);
            let general = directory.receiver_of_other(frame, from_wire);
            assert_eq!(receiver, general, "{frame:02x?}");
        }
    };
    let groups = [BROADCAST, IpAddress::from_v4([224, 0, 0, 1])];
    for dst in [PEER_V4, V4, PEER_V6, V6].into_iter().chain(groups) {
        for protocol in [TCP, UDP] {
            for port in [9, PORT, 2000] {
                let src = if dst.is_v4() { V4 } else { V6 };
                let genuine = frame(protocol, (src, PORT), (dst, port));
                (0..genuine.len()).for_each(|len| compare(&genuine[..len]));
                for at in 0..genuine.len() {
                    for bit in 0..8 {
                        let mut changed = genuine.clone();
                        changed[at] ^= 1 << bit;
                        compare(&changed);
                        compare(&with_ip_checksum(changed));
                    }
                }
            }
        }
    }
    assert!(accepted > 1000, "{accepted}");
}
