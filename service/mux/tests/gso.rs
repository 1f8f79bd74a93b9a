//! Tests of GSO frames that programs send through their mux ports: the segments that other stacks
//! and the NIC get, and the frames that the mux refuses. A GSO frame has the headers of one TCP
//! segment and the payload of several segments.
//!
//! A mux port is a pair of packet rings through which a program with a TCP/IP stack of its own
//! shares the NIC. The mux port gets the packets to the 3-tuples (protocol, local address, local
//! port) that the mux port has claimed.

use std::cell::Cell;

use tidelane_mux::*;
use tidelane_packet_io::{
    Burst, Capabilities, GSO_SEGMENT_MIN, GsoParameters, GsoPayload, LinkFull, MemBurst, MemConfig,
    MemPort, PacketIo, TxChecksum,
};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IcmpErrorKind, IpAddress, SegmentHeader, SeqNumber, TcpFlags,
    TcpOptions, Timestamps, checksum, emit_tcp, parse_frame, parse_icmp_error, parse_icmpv6_error,
    write_partial_checksum, write_tcp_checksum,
};

use crate::frames::{LOCAL, LOCAL_MAC, PEER, PEER_MAC, TestFrame, receive, send};

mod frames;

/// Length in bytes of the packet ring of each direction.
const RING_LEN: u32 = 512 * 1024;
/// TCP port that the first mux port has claimed.
const FIRST: u16 = 1000;
/// IPv6 address of the NIC and of all mux ports.
const LOCAL_V6: IpAddress = IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// IPv6 address of the peer.
const PEER_V6: IpAddress = IpAddress([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
/// Payload bytes of the largest IPv4 segment with TCP timestamps, if the MTU is 1500.
const MSS: u16 = 1448;

/// Returns the payload bytes of the largest segment to `dst` with TCP timestamps, if the MTU is
/// 1500.
fn mss_to(dst: IpAddress) -> u16 {
    if dst.is_v4() { MSS } else { MSS - 20 }
}

/// A NIC that records the GSO frames that it has to send.
struct Nic {
    /// Carries all frames except GSO frames.
    port: MemPort,
    /// Largest GSO frame in bytes, or zero for a NIC without GSO.
    gso_len_max: u32,
    /// Headers of the next GSO frame: at most 14 bytes for Ethernet, 40 for IPv6 and 60 for TCP.
    headers: [u8; 114],
    /// True if the NIC has no room for GSO frames.
    is_full: Cell<bool>,
    /// The GSO frames that the NIC got so far, each with its parameters.
    sent: Vec<(Vec<u8>, GsoParameters)>,
}

impl PacketIo for Nic {
    type Burst = MemBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_gso_len_max: self.gso_len_max,
            ..self.port.capabilities()
        }
    }

    fn new_burst(&self) -> MemBurst {
        self.port.new_burst()
    }

    fn rx_burst(&mut self, burst: &mut MemBurst, max: usize) -> usize {
        self.port.rx_burst(burst, max)
    }

    fn rx_release(&mut self, burst: &mut MemBurst) {
        self.port.rx_release(burst);
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.port.tx_frame()
    }

    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        self.port.tx_commit(len, checksum);
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        &mut self.headers
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        if self.is_full.get() {
            return Err(LinkFull);
        }
        let headers_len = usize::from(gso.headers_len);
        let mut frame = self.headers[..headers_len].to_vec();
        frame.resize(headers_len + payload.len(), 0);
        payload.copy_to(&mut frame[headers_len..]);
        self.sent.push((frame, gso));
        Ok(())
    }

    fn tx_flush(&mut self) {
        self.port.tx_flush();
    }
}

/// A mux with two ports. The first port has claimed TCP port [`FIRST`], and the second port has
/// claimed TCP port [`FIRST`] + 1, both at [`LOCAL`] and at [`LOCAL_V6`].
struct Net {
    mux: Mux<Nic, MemPort, ServiceEnd>,
    /// The far end of the NIC's link.
    peer: MemPort,
    /// The programs' ends of the two ports.
    programs: [ProgramEnd; 2],
    /// Numbers of the two ports.
    ids: [PortId; 2],
}

impl Net {
    /// Makes a mux. `gso_len_max` is the largest GSO frame of the NIC in bytes, or zero for a NIC
    /// without GSO.
    fn new(gso_len_max: u32) -> Self {
        Self::with_nic(gso_len_max, 4096)
    }

    /// Makes a mux as [`new`](Self::new) does. The NIC has room for `nic_frames` frames, not
    /// counting GSO frames.
    fn with_nic(gso_len_max: u32, nic_frames: u32) -> Self {
        let config = MemConfig {
            partial_checksums: false,
            frames: 4096,
            ..MemConfig::default()
        };
        let (peer, port) = MemPort::pair(MemConfig {
            frames: nic_frames,
            ..config
        });
        let nic = Nic {
            port,
            gso_len_max,
            headers: [0; 114],
            is_full: Cell::new(false),
            sent: Vec::new(),
        };
        let (_host, mux_host) = MemPort::pair(config);
        let mut mux = Mux::new(nic, mux_host, LOCAL_MAC, vec![LOCAL, LOCAL_V6], 2);
        let opened = [0, 1].map(|number| {
            let (service, program) =
                PortRegions::heap(number.into(), RING_LEN).expect("there is memory");
            let (id, _) = mux.open(ServiceEnd::new(&service, None)).expect("room");
            for addr in [LOCAL, LOCAL_V6] {
                let local = Endpoint::new(addr, FIRST + number);
                let tuple = Tuple { protocol: 6, local };
                assert_eq!(mux.ports_mut().claim(tuple, id), Ok(()));
            }
            (id, ProgramEnd::new(&program, 1514, false))
        });
        let [(first, first_end), (second, second_end)] = opened;
        Self {
            mux,
            peer,
            programs: [first_end, second_end],
            ids: [first, second],
        }
    }

    /// Sends a GSO frame of the first mux port, and runs the mux.
    fn send(&mut self, frame: &[u8], headers_len: usize, segment_size: u16) {
        self.queue(frame, headers_len, segment_size);
        self.run();
    }

    /// Publishes the queued frames of the first mux port, and runs the mux.
    fn run(&mut self) {
        self.programs[0].tx_flush();
        while self.mux.step() {}
    }

    /// Queues a GSO frame of the first mux port.
    fn queue(&mut self, frame: &[u8], headers_len: usize, segment_size: u16) {
        let (headers, payload) = frame.split_at(headers_len);
        let program = &mut self.programs[0];
        program.tx_gso_headers()[..headers_len].copy_from_slice(headers);
        let (before_wrap, after_wrap) = payload.split_at(payload.len() / 3);
        let gso = GsoParameters {
            headers_len: headers_len as u16,
            segment_size,
            // The mux does not read these two fields.
            tcp_start: 0,
            is_v6: false,
        };
        let payload = GsoPayload::Private([before_wrap, after_wrap]);
        assert_eq!(program.tx_gso_send(payload, gso), Ok(()));
    }

    fn counters(&self) -> PortCounters {
        let counters = self.mux.ports().port_counters(self.ids[0]);
        counters.expect("the port is open").clone()
    }
}

/// A stream of segments from the first mux port.
#[derive(Clone, Copy)]
struct Stream {
    src: IpAddress,
    dst: IpAddress,
    dst_port: u16,
    /// TCP flags of the stream. CWR is only in the first segment, and PSH and FIN are only in the
    /// last segment.
    flags: TcpFlags,
}

impl Stream {
    fn to(dst: IpAddress) -> Self {
        Self {
            src: if dst.is_v4() { LOCAL } else { LOCAL_V6 },
            dst,
            dst_port: 9,
            flags: TcpFlags::ACK
                .union(TcpFlags::PSH)
                .union(TcpFlags::FIN)
                .union(TcpFlags::CWR),
        }
    }

    /// Returns a frame with `payload`, and the length of the frame's headers. `before` is the
    /// number of payload bytes that the stream has before the frame, and `segments` is the number
    /// of segments before the frame.
    fn frame(self, payload: &[u8], before: usize, segments: u16) -> (Vec<u8>, usize) {
        let template = HeaderTemplate::new(LOCAL_MAC, PEER_MAC, self.src, self.dst).unwrap();
        let header = SegmentHeader {
            src_port: FIRST,
            dst_port: self.dst_port,
            seq: SeqNumber(u32::MAX - 5000).add(before as u32),
            ack: SeqNumber(77),
            flags: self.flags,
            wnd: 501,
            urgent: 0,
            options: TcpOptions::from_timestamps(Some(Timestamps { tsval: 5, tsecr: 6 })),
        };
        let tcp_len = (header.len() + payload.len()) as u16;
        let headers_len = template.headers_len() + header.len();
        let mut frame = vec![0; headers_len];
        let ip_id = u16::MAX.wrapping_add(segments);
        let start = template.write(&mut frame, tcp_len, Ecn::Ect0, ip_id);
        emit_tcp(&mut frame[start..], &header);
        let pseudo = template.pseudo_header(tcp_len);
        write_tcp_checksum(&mut frame[start..], pseudo, checksum::sum(payload));
        frame.extend_from_slice(payload);
        (frame, headers_len)
    }

    /// Returns the segments in which a stack without GSO would send `payload`.
    fn segments(self, payload: &[u8], segment_size: u16) -> Vec<Vec<u8>> {
        let size = usize::from(segment_size);
        let count = payload.len().div_ceil(size);
        let segments = payload.chunks(size).enumerate().map(|(at, part)| {
            let mut segment = self;
            if at > 0 {
                segment.flags.remove(TcpFlags::CWR);
            }
            if at + 1 < count {
                segment.flags.remove(TcpFlags::PSH.union(TcpFlags::FIN));
            }
            segment.frame(part, at * size, at as u16).0
        });
        segments.collect()
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn gso_segments_equal_those_of_a_stack_without_gso() {
    let mut sent = 0;
    let mut net = Net::new(0);
    for dst in [PEER, PEER_V6] {
        let mss = mss_to(dst);
        for (len, size) in [(1449, mss), (1428 * 40, mss), (65_000, 1400), (5000, 512)] {
            let (stream, payload) = (Stream::to(dst), payload(len));
            let (frame, headers_len) = stream.frame(&payload, 0, 0);
            net.send(&frame, headers_len, size);
            let expected = stream.segments(&payload, size);
            sent += expected.len() as u64;
            assert!(receive(&mut net.peer) == expected, "{dst:?} {len} {size}");
        }
    }
    let counters = net.counters();
    assert_eq!((counters.sent, counters.lost), (sent, 0));
    assert_eq!(counters.gso_frames, 8);
    assert!(counters.refused.is_empty());
}

#[test]
fn a_nic_with_gso_gets_the_whole_frame() {
    let mut net = Net::new(65_549);
    for dst in [PEER, PEER_V6] {
        let (stream, payload) = (Stream::to(dst), payload(30_000));
        let (mut frame, headers_len) = stream.frame(&payload, 0, 0);
        net.send(&frame, headers_len, mss_to(dst));
        assert!(receive(&mut net.peer).is_empty());
        let (got, gso) = net.mux.nic().sent.last().expect("a frame").clone();
        let template = HeaderTemplate::new(LOCAL_MAC, PEER_MAC, stream.src, dst).unwrap();
        let tcp_start = template.headers_len();
        let pseudo = template.pseudo_header((frame.len() - tcp_start) as u16);
        write_partial_checksum(&mut frame[tcp_start..], pseudo);
        assert!(got == frame);
        let expected = GsoParameters {
            headers_len: headers_len as u16,
            segment_size: mss_to(dst),
            tcp_start: tcp_start as u16,
            is_v6: dst == PEER_V6,
        };
        assert_eq!(gso, expected);
    }
    assert_eq!(net.counters().sent, 21 + 22);
    // The frame is longer than this NIC's largest GSO frame, so the mux splits the frame.
    let (stream, payload) = (Stream::to(PEER), payload(10_000));
    let (frame, headers_len) = stream.frame(&payload, 0, 0);
    let mut net = Net::new(5000);
    net.send(&frame, headers_len, MSS);
    assert!(receive(&mut net.peer) == stream.segments(&payload, MSS));
}

#[test]
fn a_gso_frame_with_segments_longer_than_the_mtu_is_answered() {
    for gso_len_max in [0, 65_549] {
        let mut net = Net::new(gso_len_max);
        for dst in [PEER, PEER_V6] {
            let (stream, payload) = (Stream::to(dst), payload(20_000));
            let (frame, headers_len) = stream.frame(&payload, 0, 0);
            net.mux.ports_mut().set_mtu(1499);
            net.send(&frame, headers_len, mss_to(dst));
            assert!(receive(&mut net.peer).is_empty() && net.mux.nic().sent.is_empty());
            let [answer] = &receive(&mut net.programs[0])[..] else {
                panic!("the port has one answer");
            };
            let packet = parse_frame(answer).expect("a packet");
            let error = match dst.is_v4() {
                true => parse_icmp_error(packet.payload),
                false => parse_icmpv6_error(&packet),
            };
            let kind = error.expect("an error").kind;
            assert_eq!(kind, IcmpErrorKind::FragmentationNeeded { mtu: 1499 });
        }
        assert_eq!(net.counters().refused[&SendRefusal::TooLong], 2);
        assert_eq!(net.counters().sent, 0);
    }
}

/// The MTU becomes smaller after the mux has sent some segments of a GSO frame, while the next
/// segment waits for the NIC. The mux refuses the rest of the frame, and then sends all segments of
/// the next frame of the turn.
#[test]
fn a_refused_gso_frame_leaves_the_next_frame_whole() {
    let mut net = Net::with_nic(0, 4);
    let payload = payload(10_000);
    let local = Stream {
        dst_port: FIRST + 1,
        ..Stream::to(LOCAL)
    };
    for stream in [Stream::to(PEER), local] {
        let (frame, headers_len) = stream.frame(&payload, 0, 0);
        net.queue(&frame, headers_len, MSS);
    }
    net.run();
    assert_eq!(receive(&mut net.peer).len(), 4);
    net.mux.ports_mut().set_mtu(1400);
    net.run();
    assert!(receive(&mut net.peer).is_empty());
    assert!(receive(&mut net.programs[1]) == local.segments(&payload, MSS));
    let refused = net.counters().refused;
    assert_eq!(refused.get(&SendRefusal::TooLong), Some(&1));
}

#[test]
fn another_port_gets_segments() {
    let mut net = Net::new(65_549);
    let stream = Stream {
        dst_port: FIRST + 1,
        ..Stream::to(LOCAL)
    };
    let payload = payload(20_000);
    let (frame, headers_len) = stream.frame(&payload, 0, 0);
    net.send(&frame, headers_len, MSS);
    assert!(receive(&mut net.programs[1]) == stream.segments(&payload, MSS));
    assert!(net.mux.nic().sent.is_empty());
}

/// The mux refuses GSO frames that it cannot split. In the last case, the mux could split the
/// frame, but refuses the source address.
#[test]
fn frames_that_cannot_be_split_are_refused() {
    let (stream, payload) = (Stream::to(PEER), payload(4000));
    let (genuine, headers_len) = stream.frame(&payload, 0, 0);
    let with_flags = |flags| {
        let stream = Stream { flags, ..stream };
        stream.frame(&payload, 0, 0).0
    };
    let padded = [&genuine[..], &[0; 4]].concat();
    let foreign = Stream {
        src: PEER,
        ..stream
    };
    let cut = SendRefusal::Segmentation;
    let cases = [
        (with_flags(TcpFlags::SYN), MSS, cut),
        (with_flags(TcpFlags::RST), MSS, cut),
        (with_flags(TcpFlags::ACK.union(TcpFlags::URG)), MSS, cut),
        (genuine.clone(), GSO_SEGMENT_MIN - 1, cut),
        (genuine.clone(), 1, cut),
        // All payload fits into one segment, so the frame is no GSO frame.
        (genuine.clone(), 4000, cut),
        // A full segment would be one byte longer than the largest frame of the link.
        (genuine.clone(), 1514 - headers_len as u16 + 1, cut),
        (padded, MSS, cut),
        (
            foreign.frame(&payload, 0, 0).0,
            MSS,
            SendRefusal::SourceAddress,
        ),
    ];
    for (gso_len_max, (frame, segment_size, refusal)) in [0, 65_549]
        .into_iter()
        .flat_map(|len| cases.clone().map(|case| (len, case)))
    {
        let mut net = Net::new(gso_len_max);
        net.send(&frame, headers_len, segment_size);
        assert!(receive(&mut net.peer).is_empty() && net.mux.nic().sent.is_empty());
        let counters = net.counters();
        assert_eq!(counters.sent, 0);
        assert_eq!(
            counters.refused.get(&refusal),
            Some(&1),
            "{refusal:?} {segment_size}"
        );
    }
}

/// One bit of the headers of a GSO frame is wrong. Each frame that the NIC gets still has a valid
/// IP header, the local MAC and IP addresses as its source, and the claimed source port.
#[test]
fn damaged_headers_cause_no_invalid_segment() {
    let stream = Stream::to(PEER);
    let payload = payload(3000);
    let (genuine, headers_len) = stream.frame(&payload, 0, 0);
    let (mut refused, mut passed) = (0, 0);
    for bit in 0..headers_len * 8 {
        let mut frame = genuine.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        for gso_len_max in [0, 65_549] {
            let mut net = Net::new(gso_len_max);
            net.send(&frame, headers_len, MSS);
            let mut out = receive(&mut net.peer);
            out.extend(net.mux.nic().sent.iter().map(|(frame, _)| frame.clone()));
            if out.is_empty() {
                refused += 1;
            } else {
                passed += 1;
            }
            for frame in out {
                let packet = parse_frame(&frame).expect("valid headers");
                assert_eq!(
                    (packet.src_mac, packet.src),
                    (LOCAL_MAC, LOCAL),
                    "bit {bit}"
                );
                assert_eq!(packet.payload[..2], FIRST.to_be_bytes(), "bit {bit}");
            }
        }
    }
    // For example, the mux refuses a frame with another source address or length, and passes a
    // frame with another sequence number.
    assert!(
        refused > 200 && passed > 200,
        "{refused} refused, {passed} passed"
    );
}

/// A turn is one burst of frames that the mux takes from a mux port. The turn ends after 32 frames
/// of up to 2 KiB. A GSO frame counts as one frame, and as one more frame for each whole 2 KiB of
/// its length. The GSO frames of this test count as 30 frames each, so the second GSO frame ends
/// the turn.
#[test]
fn gso_frames_get_no_larger_share() {
    let mut net = Net::new(65_549);
    let (frame, headers_len) = Stream::to(PEER).frame(&payload(60_000), 0, 0);
    let [greedy, modest] = &mut net.programs;
    let mut queued = 0;
    loop {
        greedy.tx_gso_headers()[..headers_len].copy_from_slice(&frame[..headers_len]);
        let gso = GsoParameters {
            headers_len: headers_len as u16,
            segment_size: MSS,
            tcp_start: 0,
            is_v6: false,
        };
        let payload = GsoPayload::Private([&frame[headers_len..], &[]]);
        if greedy.tx_gso_send(payload, gso).is_err() {
            break;
        }
        queued += 1;
    }
    greedy.tx_flush();
    assert!(queued >= 4, "{queued}");
    let single = TestFrame::outgoing(FIRST + 1).bytes();
    let answer = TestFrame::incoming(FIRST + 1).bytes();
    assert!(send(modest, &single) && send(&mut net.peer, &answer));
    net.mux.step();
    assert_eq!(receive(&mut net.peer), [single]);
    assert_eq!(receive(&mut net.programs[1]), [answer]);
    assert!(net.mux.nic().sent.len() <= 2, "frames of one turn");
    while net.mux.step() {}
    assert_eq!(net.mux.nic().sent.len(), queued);
}

/// Except in the first run, the NIC has room for fewer frames than a GSO frame has segments. Each
/// run sends the same frames in the same order.
#[test]
fn segments_wait_for_a_full_nic_in_order() {
    let (frame, headers_len) = Stream::to(PEER).frame(&payload(60_000), 0, 0);
    let single = TestFrame::outgoing(FIRST).bytes();
    let sent_through = |nic_frames: u32| {
        let mut net = Net::with_nic(0, nic_frames);
        let program = &mut net.programs[0];
        for _ in 0..2 {
            assert!(send(program, &single));
            program.tx_gso_headers()[..headers_len].copy_from_slice(&frame[..headers_len]);
            let gso = GsoParameters {
                headers_len: headers_len as u16,
                segment_size: MSS,
                tcp_start: 0,
                is_v6: false,
            };
            let payload = GsoPayload::Private([&frame[headers_len..], &[]]);
            assert_eq!(program.tx_gso_send(payload, gso), Ok(()));
        }
        program.tx_flush();
        let mut out = Vec::new();
        while net.mux.step() || net.mux.ports().has_work() {
            out.extend(receive(&mut net.peer));
        }
        out.extend(receive(&mut net.peer));
        let counters = net.mux.ports().port_counters(net.ids[0]).expect("open");
        assert_eq!((counters.sent, counters.lost), (out.len() as u64, 0));
        assert_eq!(counters.gso_frames, 2);
        out
    };
    let whole = sent_through(4096);
    assert!(whole.len() > 80, "{} frames", whole.len());
    for nic_frames in [1, 5, 8, 33] {
        assert_eq!(sent_through(nic_frames), whole, "{nic_frames} frames");
    }
}

/// While the NIC has no room for a GSO frame, the mux sends the frame's segments.
#[test]
fn a_gso_frame_without_room_is_sent_as_segments() {
    let (frame, headers_len) = Stream::to(PEER).frame(&payload(60_000), 0, 0);
    let sent_through = |mut net: Net| {
        let program = &mut net.programs[0];
        program.tx_gso_headers()[..headers_len].copy_from_slice(&frame[..headers_len]);
        let gso = GsoParameters {
            headers_len: headers_len as u16,
            segment_size: MSS,
            tcp_start: 0,
            is_v6: false,
        };
        let payload = GsoPayload::Private([&frame[headers_len..], &[]]);
        assert_eq!(program.tx_gso_send(payload, gso), Ok(()));
        program.tx_flush();
        let mut out = Vec::new();
        while net.mux.step() || net.mux.ports().has_work() {
            out.extend(receive(&mut net.peer));
            // After the first segments, the NIC has room for GSO frames again. The mux sends the
            // rest of the frame as segments nevertheless.
            net.mux.nic().is_full.set(out.is_empty());
        }
        out.extend(receive(&mut net.peer));
        let counters = net.mux.ports().port_counters(net.ids[0]).expect("open");
        assert_eq!((counters.sent, counters.lost), (out.len() as u64, 0));
        assert_eq!((counters.gso_frames, net.mux.nic().sent.len()), (1, 0));
        out
    };
    let segments = sent_through(Net::new(0));
    for nic_frames in [8, 4096] {
        let net = Net::with_nic(65_549, nic_frames);
        net.mux.nic().is_full.set(true);
        assert_eq!(sent_through(net), segments, "{nic_frames} frames");
    }
}

/// The service's end of a packet ring reports the segment size of each frame in a burst. The size
/// is 0 for a frame that is no GSO frame.
#[test]
fn a_burst_reports_the_segment_size_of_gso_frames() {
    let (service, program) = PortRegions::heap(0, RING_LEN).expect("there is memory");
    let (mut end, mut program) = (
        ServiceEnd::new(&service, None),
        ProgramEnd::new(&program, 1514, false),
    );
    let single = TestFrame::outgoing(FIRST).bytes();
    let (frame, headers_len) = Stream::to(PEER).frame(&payload(3000), 0, 0);
    for _ in 0..3 {
        assert!(send(&mut program, &single));
        program.tx_gso_headers()[..headers_len].copy_from_slice(&frame[..headers_len]);
        let gso = GsoParameters {
            headers_len: headers_len as u16,
            segment_size: MSS,
            tcp_start: 0,
            is_v6: false,
        };
        let payload = GsoPayload::Private([&frame[headers_len..], &[]]);
        assert_eq!(program.tx_gso_send(payload, gso), Ok(()));
        program.tx_flush();
    }
    let mut burst = end.new_burst();
    assert_eq!(end.rx_burst(&mut burst, 32), 6);
    for at in 0..6 {
        let is_gso = at % 2 == 1;
        assert_eq!(burst.segment_size(at), if is_gso { MSS } else { 0 });
        let expected = if is_gso { &frame } else { &single };
        assert!(burst.frame(at) == Some(expected));
    }
    end.rx_release(&mut burst);
}
