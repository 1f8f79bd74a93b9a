//! Tests of the demux, the XDP program that redirects the packets of claimed 3-tuples (local
//! address, protocol, local port) to the service (the process `tidelaned`). The tests run the
//! program on the bytes of frames, without an interface.

mod beside_kernel;
mod fragments;
mod heartbeats;
mod ipv6;

use super::*;
use crate::bpf::IMPAIR_OBJECT;

const XDP_PASS: u32 = 2;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const HOST: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
/// Link address that the tests give the demux. The frames of [`ethernet`] go to this address.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Source link address that marks the frames that the service hands back to the kernel.
const HAND_BACK_SOURCE: [u8; 6] = [2, 7, 7, 7, 7, 7];

fn mapped(addr: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(addr).to_ipv6_mapped().octets()
}

/// Returns an IPv4 header with `options` words (of 4 bytes) of no-operation options.
fn ipv4(proto: u8, source: [u8; 4], dest: [u8; 4], options: usize) -> Vec<u8> {
    let mut header = vec![
        0x45 + options as u8,
        0,
        0,
        60,
        0,
        1,
        0x40,
        0,
        64,
        proto,
        0,
        0,
    ];
    header.extend(source);
    header.extend(dest);
    header.resize(20 + 4 * options, 1);
    header
}

fn ethernet(packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 {
        [0x86, 0xdd]
    } else {
        [8, 0]
    };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(ethertype);
    frame.extend(packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn transport(proto: u8, source_port: u16, dest_port: u16, options: usize) -> Vec<u8> {
    let mut packet = ipv4(proto, PEER, HOST, options);
    packet.extend(source_port.to_be_bytes());
    packet.extend(dest_port.to_be_bytes());
    packet.resize(packet.len() + 16, 0);
    packet
}

/// Returns an ICMP message from a router. The message quotes the packet `quoted`.
fn icmp_error(kind: u8, quoted: &[u8]) -> Vec<u8> {
    let mut packet = ipv4(ICMP, [10, 0, 0, 9], HOST, 0);
    packet.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend(quoted);
    packet
}

/// Returns the start of a segment from port 80 of `HOST`, with `options` words of IPv4 options.
fn quoted(options: usize) -> Vec<u8> {
    let mut packet = ipv4(TCP, HOST, PEER, options);
    packet.extend([0, 80, 0x9c, 0x40, 1, 2, 3, 4]);
    packet
}

/// The demux without AF_XDP sockets.
struct Testbed {
    object: Object,
    counters: PerCpuCounters<COUNTERS>,
}

impl Testbed {
    fn without_claims() -> Option<Self> {
        if check_permission().is_err() {
            eprintln!("SKIPPED: the demux on frames needs CAP_BPF and CAP_NET_ADMIN (run as root)");
            return None;
        }
        let mut object = Object::load(DEMUX_OBJECT, PROGRAM, &[], &[]).unwrap();
        let mut link_address = object.array_entry("LINK_ADDRESS").unwrap();
        link_address.set(&link_address_of(OWN_MAC)).unwrap();
        let counters = object.counters("COUNTERS").unwrap();
        Some(Self { object, counters })
    }

    /// Makes a demux with claims of TCP port 80 and UDP port 53 of `HOST` and of `ipv6::HOST`.
    fn new() -> Option<Self> {
        let mut testbed = Self::without_claims()?;
        let mut claims = testbed
            .object
            .hash_map::<KEY_LEN, CLAIM_LEN>("CLAIMS")
            .unwrap();
        for (proto, port) in [(TCP, 80), (UDP, 53)] {
            for addr in [mapped(HOST), ipv6::HOST] {
                let claim = Claim { addr, proto, port };
                claims.insert(&claim.key(), &[0; CLAIM_LEN]).unwrap();
            }
        }
        Some(testbed)
    }

    /// Returns the increase of the counters by one frame. No queue has an AF_XDP socket, so every
    /// frame passes to the kernel. A frame for the service increments `no_socket`.
    fn seen(&mut self, frame: &[u8]) -> DemuxCounters {
        let before = self.counters.sum().unwrap();
        assert_eq!(self.object.run(frame), XDP_PASS);
        let after = self.counters.sum().unwrap();
        DemuxCounters::from_array(std::array::from_fn(|n| after[n] - before[n]))
    }
}

#[test]
fn a_claim_beyond_the_limit_has_an_error_of_its_own() {
    if check_permission().is_err() {
        eprintln!("SKIPPED: a map of claims needs CAP_BPF (run as root)");
        return;
    }
    let mut object = Object::load(DEMUX_OBJECT, PROGRAM, &[("CLAIMS", 1)], &[]).unwrap();
    let mut claims = object.hash_map::<KEY_LEN, CLAIM_LEN>("CLAIMS").unwrap();
    claims.insert(&[1; KEY_LEN], &[0; CLAIM_LEN]).unwrap();
    let error = claims.insert(&[2; KEY_LEN], &[0; CLAIM_LEN]).unwrap_err();
    assert!(matches!(error, SteeringError::System { .. }), "{error}");
    let error = claim_failed(error);
    assert!(matches!(error, SteeringError::TooManyClaims), "{error}");
}

#[test]
fn only_claimed_tuples_are_the_services() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let claimed = DemuxCounters {
        no_socket: 1,
        ..DemuxCounters::default()
    };
    let unclaimed = DemuxCounters {
        unclaimed: 1,
        ..DemuxCounters::default()
    };
    assert_eq!(
        testbed.seen(&ethernet(&transport(TCP, 4000, 80, 0))),
        claimed
    );
    assert_eq!(
        testbed.seen(&ethernet(&transport(TCP, 4000, 80, 10))),
        claimed
    );
    assert_eq!(
        testbed.seen(&ethernet(&transport(UDP, 4000, 53, 0))),
        claimed
    );
    assert_eq!(
        testbed.seen(&ethernet(&transport(UDP, 4000, 80, 0))),
        unclaimed
    );
    assert_eq!(
        testbed.seen(&ethernet(&transport(TCP, 80, 4000, 0))),
        unclaimed
    );
    let mut other_host = transport(TCP, 4000, 80, 0);
    other_host[19] = 77;
    assert_eq!(testbed.seen(&ethernet(&other_host)), unclaimed);
}

#[test]
fn icmp_errors_follow_the_packet_they_quote() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let claimed = DemuxCounters {
        no_socket: 1,
        ..DemuxCounters::default()
    };
    let kernels = DemuxCounters {
        icmp: 1,
        ..DemuxCounters::default()
    };
    for kind in [3, 11, 12] {
        assert_eq!(
            testbed.seen(&ethernet(&icmp_error(kind, &quoted(0)))),
            claimed
        );
        assert_eq!(
            testbed.seen(&ethernet(&icmp_error(kind, &quoted(3)))),
            claimed
        );
    }
    // Echo reply, redirect and echo request are not errors, even if they quote a claimed packet.
    for kind in [0, 5, 8] {
        assert_eq!(
            testbed.seen(&ethernet(&icmp_error(kind, &quoted(0)))),
            kernels
        );
    }
    let mut other_port = quoted(0);
    other_port[21] = 81;
    assert_eq!(
        testbed.seen(&ethernet(&icmp_error(3, &other_port))),
        kernels
    );
    let mut later_fragment = quoted(0);
    later_fragment[7] = 9;
    assert_eq!(
        testbed.seen(&ethernet(&icmp_error(3, &later_fragment))),
        kernels
    );
    let mut short = quoted(0);
    short[0] = 0x44;
    assert_eq!(testbed.seen(&ethernet(&icmp_error(3, &short))), kernels);
}

#[test]
fn frames_with_unsupported_headers_go_to_the_kernel() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let other = DemuxCounters {
        other_ip: 1,
        ..DemuxCounters::default()
    };
    let not_ip = DemuxCounters {
        not_ip: 1,
        ..DemuxCounters::default()
    };
    let good = transport(TCP, 4000, 80, 0);

    let mut sctp = good.clone();
    sctp[9] = 132;
    assert_eq!(testbed.seen(&ethernet(&sctp)), other);
    let mut short_header = good.clone();
    short_header[0] = 0x43;
    assert_eq!(testbed.seen(&ethernet(&short_header)), other);
    let mut broadcast = ethernet(&good);
    broadcast[..6].fill(0xff);
    assert_eq!(testbed.seen(&broadcast), not_ip);
    let mut vlan = ethernet(&good);
    vlan[12..14].copy_from_slice(&[0x81, 0]);
    assert_eq!(testbed.seen(&vlan), not_ip);
}

/// A VLAN tag with VLAN id 0 carries only a priority, and the kernel handles the frame as untagged.
/// The demux therefore removes the tag.
#[test]
fn a_priority_tag_is_stripped() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let tagged = |port, control: u16| {
        let mut frame = ethernet(&transport(TCP, 4000, port, 10));
        let [high, low] = control.to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
        frame
    };
    for priority in [0, 5 << 13] {
        assert_eq!(testbed.seen(&tagged(80, priority)).no_socket, 1);
        assert_eq!(testbed.seen(&tagged(81, priority)).unclaimed, 1);
        for vlan in [1, 5, 4095] {
            assert_eq!(testbed.seen(&tagged(80, priority | vlan)).not_ip, 1);
        }
    }
    // The demux removes one tag only.
    let mut twice = tagged(80, 0);
    twice.splice(12..12, [0x81, 0, 0, 0]);
    assert_eq!(testbed.seen(&twice).not_ip, 1);
    let cut = &tagged(80, 0)[..16];
    assert_eq!(testbed.seen(cut).not_ip, 1);
}

#[test]
fn no_truncated_frame_is_misread() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let tcp = ethernet(&transport(TCP, 4000, 80, 10));
    let error = ethernet(&icmp_error(3, &quoted(10)));
    for (frame, ports_end) in [(tcp, 14 + 60 + 4), (error, 14 + 20 + 8 + 60 + 4)] {
        // BPF_PROG_TEST_RUN, which runs the program, needs at least an Ethernet header.
        for len in 14..frame.len() {
            let claimed = testbed.seen(&frame[..len]).no_socket == 1;
            assert_eq!(claimed, len >= ports_end, "cut to {len} bytes");
        }
    }
}

/// Compares the sections of the programs and of the license with the output of `build.rs`. Without
/// clang-14, `build.rs` copies the checked-in objects, so that the test cannot fail.
#[test]
fn the_checked_in_objects_equal_the_output_of_clang() {
    let objects = [
        (
            &include_bytes!("../../../../ebpf/demux/demux.bpf.o")[..],
            DEMUX_OBJECT,
            &["xdp", "xdp.frags", "license"][..],
        ),
        (
            &include_bytes!("../../../../ebpf/impair/impair.bpf.o")[..],
            IMPAIR_OBJECT,
            &["xdp", "license"][..],
        ),
    ];
    for (checked_in, built, sections) in objects {
        for section in sections {
            let ours = elf_section(checked_in, section);
            assert!(ours.is_some_and(|bytes| !bytes.is_empty()));
            let same = ours == elf_section(built, section);
            assert!(same, "a checked-in object is stale: run ebpf/build");
        }
    }
}

/// Returns the bytes of a section of a 64-bit little-endian ELF file.
fn elf_section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let number = |at: usize, len: usize| {
        file[at..at + len]
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (table, entry_len) = (number(40, 8), number(58, 2));
    let (entries, names_at) = (number(60, 2), number(62, 2));
    let section = |index: usize| {
        let at = table + index * entry_len;
        (number(at, 4), number(at + 24, 8), number(at + 32, 8))
    };
    let (_, names, _) = section(names_at);
    (0..entries).map(section).find_map(|(name_at, start, len)| {
        let rest = &file[names + name_at..];
        let found = rest.starts_with(name.as_bytes()) && rest[name.len()] == 0;
        found.then(|| &file[start..start + len])
    })
}

fn link_address_of(mac: [u8; 6]) -> [u8; LINK_ADDRESS_LEN] {
    let mut value = [0; LINK_ADDRESS_LEN];
    value[..6].copy_from_slice(&mac);
    value[8..14].copy_from_slice(&HAND_BACK_SOURCE);
    value
}

/// In generic mode, the demux also receives the frames that the service hands back to the kernel.
/// The demux recognizes these frames by their source address, and passes them to the kernel.
#[test]
fn frames_that_are_handed_back_are_the_kernels() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let returned = DemuxCounters {
        returned: 1,
        ..DemuxCounters::default()
    };
    for at in SOURCE {
        let mut frame = ethernet(&transport(TCP, 40_000, 80, 0));
        frame[SOURCE].copy_from_slice(&HAND_BACK_SOURCE);
        assert_eq!(testbed.seen(&frame), returned);
        frame[at] ^= 1;
        assert_eq!(testbed.seen(&frame).returned, 0, "byte {at}");
    }
}

#[test]
fn frames_to_another_link_address_are_the_kernels() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    for at in 0..6 {
        let mut frame = ethernet(&transport(TCP, 40_000, 80, 0));
        assert_eq!(testbed.seen(&frame).other_host, 0);
        frame[at] ^= 4;
        let seen = testbed.seen(&frame);
        let other_host = DemuxCounters {
            other_host: 1,
            ..DemuxCounters::default()
        };
        assert_eq!(seen, other_host, "byte {at}");
    }
}

#[test]
fn broadcast_and_multicast_frames_are_the_kernels() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        let mut frame = ethernet(&transport(TCP, 40_000, 80, 0));
        frame[..6].copy_from_slice(&mac);
        assert_eq!(testbed.seen(&frame).not_ip, 1);
    }
}

/// Returns a frame with a segment to the claimed port 80. The IPv4 header has these options.
fn with_ip_options(options: &[u8]) -> Vec<u8> {
    let words = options.len() / 4;
    let mut packet = transport(TCP, 40_000, 80, words);
    packet[20..20 + options.len()].copy_from_slice(options);
    ethernet(&packet)
}

#[test]
fn source_routes_are_the_kernels_and_other_options_the_services() {
    let Some(mut testbed) = Testbed::new() else {
        return;
    };
    let mut long = [1; 40];
    long[36..].copy_from_slice(&[131, 3, 4, 0]);
    let mut late = [1; 40];
    late[38] = 137;
    for options in [
        &[131, 3, 4, 0][..],
        &[137, 7, 4, 10, 0, 0, 9, 0],
        &[148, 4, 0, 0, 131, 3, 4, 0],
        &long,
        &late,
    ] {
        let seen = testbed.seen(&with_ip_options(options));
        assert_eq!((seen.other_ip, seen.no_socket), (1, 0), "{options:?}");
    }
    for options in [
        &[1, 1, 1, 1][..],
        &[148, 4, 0, 0],
        // Inside an option or after the end of the list, 131 and 137 are no source routes.
        &[7, 7, 4, 131, 137, 131, 131, 0],
        &[0, 131, 3, 4],
        // Malformed options: length 0, and a length beyond the end of the header.
        &[7, 0, 131, 3],
        &[7, 200, 131, 3],
    ] {
        let seen = testbed.seen(&with_ip_options(options));
        assert_eq!((seen.other_ip, seen.no_socket), (0, 1), "{options:?}");
    }
}

/// Returns a frame to the broadcast link address, with this packet.
fn to_group(packet: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(packet);
    frame[..6].fill(0xff);
    frame
}

/// A claim with the address `GROUP_V4` or `GROUP_V6` covers all groups: the service gets every
/// multicast or broadcast datagram to the UDP port of the claim. The kernel keeps all other
/// multicast and broadcast frames.
#[test]
fn datagrams_to_groups_need_a_claim_of_all_groups() {
    let Some(mut testbed) = Testbed::without_claims() else {
        return;
    };
    let mut claims = testbed
        .object
        .hash_map::<KEY_LEN, CLAIM_LEN>("CLAIMS")
        .unwrap();
    let mut claim = |addr| {
        let claim = Claim {
            addr,
            proto: UDP,
            port: 53,
        };
        claims.insert(&claim.key(), &[0; CLAIM_LEN]).unwrap();
    };
    let claimed = DemuxCounters {
        no_socket: 1,
        ..ipv6::NOTHING
    };
    let passed = DemuxCounters {
        not_ip: 1,
        ..ipv6::NOTHING
    };
    let to = |proto: u8, dest: [u8; 4], port: u16, options: usize| {
        let mut packet = ipv4(proto, PEER, dest, options);
        packet.extend(4000_u16.to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.resize(packet.len() + 16, 0);
        to_group(&packet)
    };
    let mut mdns_v6 = [0; 16];
    (mdns_v6[0], mdns_v6[1], mdns_v6[15]) = (0xff, 2, 0xfb);
    let to_v6 = |proto: u8, port: u16| to_group(&ipv6::transport(proto, mdns_v6, port, &[]));
    // A claim of the host's address is no claim of all groups.
    claim(mapped(HOST));
    claim(ipv6::HOST);
    let groups = [[255; 4], [224, 0, 0, 251], [10, 0, 0, 255]];
    for group in groups {
        assert_eq!(testbed.seen(&to(UDP, group, 53, 0)), passed);
    }
    assert_eq!(testbed.seen(&to_v6(UDP, 53)), passed);
    claim(Claim::GROUP_V4);
    claim(Claim::GROUP_V6);
    for group in groups {
        assert_eq!(testbed.seen(&to(UDP, group, 53, 0)), claimed);
        assert_eq!(testbed.seen(&to(UDP, group, 54, 0)), passed);
        assert_eq!(testbed.seen(&to(TCP, group, 53, 0)), passed);
        assert_eq!(testbed.seen(&to(UDP, group, 53, 1)), passed, "options");
        let mut fragment = to(UDP, group, 53, 0);
        fragment[14 + 6] = 0x20;
        assert_eq!(testbed.seen(&fragment), passed);
    }
    assert_eq!(testbed.seen(&to_v6(UDP, 53)), claimed);
    assert_eq!(testbed.seen(&to_v6(TCP, 53)), passed);
    assert_eq!(testbed.seen(&to_v6(UDP, 54)), passed);
    // ARP frames, and datagrams that the service has handed back, pass to the kernel.
    let mut arp = to(UDP, groups[0], 53, 0);
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(testbed.seen(&arp), passed);
    let mut returned = to(UDP, groups[0], 53, 0);
    returned[6..12].copy_from_slice(&HAND_BACK_SOURCE);
    let is_returned = DemuxCounters {
        returned: 1,
        ..ipv6::NOTHING
    };
    assert_eq!(testbed.seen(&returned), is_returned);
}
