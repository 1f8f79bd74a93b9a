//! Tests of packets between mux ports and sockets on the service, and of packets from mux ports to
//! the NIC. The host is the stack of one core of the service. A mux port is shared memory over
//! which a program with a TCP/IP stack of its own exchanges packets with the host.

use std::sync::{Arc, atomic::AtomicU32};

use tidelane_abi::control_event;
use tidelane_mux::{PortId, SendRate, Tuple};
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, PacketIo, Tapped, TxChecksum};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::{PortRegions, core_of};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, MacAddress, SegmentHeader, SeqNumber, TcpFlags, checksum,
    emit_tcp, parse_frame, parse_tcp, write_tcp_checksum,
};

use crate::{
    limits::{Guest, connect},
    rig::{Core, OUR_MAC},
    stage::{LOCAL, PORT, Stage, THEIR_MAC, listen, segment, stranger},
};

const NOW: Instant = Instant::from_secs(1);
/// TCP port that the program with a stack of its own has claimed: the host gives the program the
/// packets to this port.
pub const CLAIMED: u16 = 7000;

/// A program with a mux port.
pub struct Program {
    /// The program's ends of the mux port's packet rings, one for each core.
    ends: Vec<ProgramEnd>,
    /// Number of the mux port.
    pub id: PortId,
}

impl Program {
    /// Opens a mux port of a service with these cores, and claims TCP port [`CLAIMED`].
    pub fn open(cores: &mut [&mut Core]) -> Self {
        let id = PortId(3);
        let tuple = Tuple {
            protocol: 6,
            local: Endpoint::new(LOCAL, CLAIMED),
        };
        let ends = cores.iter_mut().map(|core| {
            let (service, program) = PortRegions::heap(id.0, 64 * 1024).expect("there is memory");
            let ports = core.host.mux_ports_mut();
            let end = Tapped::of_program(ServiceEnd::new(&service, None));
            assert!(ports.open_at(id, end));
            assert_eq!(ports.claim(tuple, id), Ok(()));
            ProgramEnd::new(&program, 1514, false)
        });
        Self {
            ends: ends.collect(),
            id,
        }
    }

    /// Sends a segment to the host's own address through the rings of `core`.
    pub fn send(&mut self, core: usize, header: &SegmentHeader) {
        assert!(self.send_frame(core, &frame(OUR_MAC, header)), "no room");
    }

    /// Sends a frame through the rings of `core`. Returns false if there is no room.
    fn send_frame(&mut self, core: usize, frame: &[u8]) -> bool {
        let end = &mut self.ends[core];
        let Some(room) = end.tx_frame() else {
            return false;
        };
        room[..frame.len()].copy_from_slice(frame);
        end.tx_commit(frame.len(), TxChecksum::Done);
        end.tx_flush();
        true
    }

    /// Returns the segments that have arrived through the rings of `core`.
    fn received(&mut self, core: usize) -> Vec<SegmentHeader> {
        let end = &mut self.ends[core];
        let mut burst = end.new_burst();
        end.rx_burst(&mut burst, BURST_MAX);
        let segments = burst.iter().map(|frame| {
            let packet = parse_frame(frame).expect("a packet");
            assert_eq!((packet.src, packet.dst), (LOCAL, LOCAL));
            assert_eq!((packet.src_mac, packet.dst_mac), (OUR_MAC, OUR_MAC));
            parse_tcp(packet.payload).expect("a segment").header()
        });
        let segments = segments.collect();
        end.rx_release(&mut burst);
        segments
    }
}

/// Returns a frame between two sockets of the host's own address.
fn frame(from: MacAddress, header: &SegmentHeader) -> Vec<u8> {
    let template = HeaderTemplate::new(from, OUR_MAC, LOCAL, LOCAL)
        .expect("both addresses have one IP version");
    let (start, len) = (template.headers_len(), header.len());
    let mut frame = vec![0; start + len];
    template.write(&mut frame, len as u16, Ecn::NotEct, 0);
    let tcp = &mut frame[start..];
    emit_tcp(tcp, header);
    write_tcp_checksum(tcp, template.pseudo_header(len as u16), checksum::Sum::ZERO);
    frame
}

/// Returns a header of a segment from [`CLAIMED`] to the listener on the service.
pub fn from_port(flags: TcpFlags, seq: u32, ack: u32) -> SegmentHeader {
    SegmentHeader {
        src_port: CLAIMED,
        ..segment(flags, seq, ack)
    }
}

#[test]
fn a_port_connects_to_a_listener_on_the_service() {
    let mut stage = Stage::new();
    let _program = listen(&mut stage.core.host, 1 << 20);
    let mut port = Program::open(&mut [&mut stage.core]);
    port.send(0, &from_port(TcpFlags::SYN, 7, 0));
    stage.run();
    let answers = port.received(0);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].flags, TcpFlags::SYN.union(TcpFlags::ACK));
    assert_eq!(answers[0].ack, SeqNumber(8));
    let ack = answers[0].seq.to_u32().wrapping_add(1);
    port.send(0, &from_port(TcpFlags::ACK, 8, ack));
    stage.run();
    port.send(0, &from_port(TcpFlags::ACK.union(TcpFlags::FIN), 8, ack));
    stage.run();
    // The ACK may be delayed.
    stage.now += Duration::from_millis(100);
    stage.run();
    stage.now += Duration::from_millis(100);
    stage.run();
    let answers = port.received(0);
    assert_eq!(answers.last().map(|answer| answer.ack), Some(SeqNumber(9)));
    assert!(stage.core.sent().is_empty(), "a frame went to the NIC");
}

#[test]
fn a_port_without_a_listener_gets_a_reset() {
    let mut stage = Stage::new();
    let mut port = Program::open(&mut [&mut stage.core]);
    port.send(0, &from_port(TcpFlags::SYN, 7, 0));
    stage.run();
    let answers = port.received(0);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].flags, TcpFlags::RST.union(TcpFlags::ACK));
    assert_eq!(answers[0].ack, SeqNumber(8));
    assert!(stage.core.sent().is_empty());
}

/// A frame from the wire is forged if its source is the host's own address. The host drops the
/// frame, even if a mux port has claimed the source.
#[test]
fn the_wire_cannot_speak_for_a_port() {
    let mut stage = Stage::new();
    let _program = listen(&mut stage.core.host, 1 << 20);
    let mut port = Program::open(&mut [&mut stage.core]);
    let forged = frame(
        MacAddress([2, 0, 0, 0, 0, 66]),
        &from_port(TcpFlags::SYN, 7, 0),
    );
    stage.core.receives(&forged);
    stage
        .core
        .receives(&frame(OUR_MAC, &from_port(TcpFlags::SYN, 7, 0)));
    stage.run();
    assert!(port.received(0).is_empty() && stage.core.sent().is_empty());
    assert_eq!(stage.core.counter("drop_martian_source"), 2);
}

#[test]
fn the_wire_cannot_speak_for_a_port_on_another_core() {
    let rings = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let mut cores = Core::several(&rings);
    let owner = core_of(CLAIMED, PORT, 2) as usize;
    cores[1 - owner].receives(&frame(OUR_MAC, &from_port(TcpFlags::SYN, 7, 0)));
    for core in [1 - owner, owner] {
        assert!(cores[core].answers(NOW).is_empty());
    }
    assert_eq!(cores[owner].counter("drop_martian_source"), 1);
}

/// A mux port may send through any core. The core of the flow answers through the packet rings that
/// the mux port has on this core.
#[test]
fn frames_of_a_port_reach_the_core_of_their_flow() {
    let rings = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let mut cores = Core::several(&rings);
    let owner = core_of(CLAIMED, PORT, 2) as usize;
    let _program = listen(&mut cores[owner].host, 1 << 20);
    let [first, second] = &mut cores[..] else {
        panic!("two cores");
    };
    let mut port = Program::open(&mut [first, second]);
    port.send(1 - owner, &from_port(TcpFlags::SYN, 7, 0));
    for core in [1 - owner, owner] {
        assert!(cores[core].answers(NOW).is_empty());
    }
    assert!(port.received(1 - owner).is_empty());
    let answers = port.received(owner);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].flags, TcpFlags::SYN.union(TcpFlags::ACK));
}

#[test]
fn a_program_of_the_service_connects_to_a_port() {
    let mut stage = Stage::new();
    let mut guest = Guest::new(&mut stage, 1000);
    let ports: Vec<u16> = (40_000..40_100).collect();
    stage.core.host.add_ports(stage.now, LOCAL, &ports);
    let mut port = Program::open(&mut [&mut stage.core]);
    assert!(guest.ask(connect(LOCAL, CLAIMED)));
    stage.run();
    let syn = port.received(0).pop().expect("a SYN");
    assert_eq!((syn.flags, syn.dst_port), (TcpFlags::SYN, CLAIMED));
    assert!(ports.contains(&syn.src_port));
    let answer = SegmentHeader {
        src_port: CLAIMED,
        dst_port: syn.src_port,
        ..segment(
            TcpFlags::SYN.union(TcpFlags::ACK),
            99,
            syn.seq.to_u32().wrapping_add(1),
        )
    };
    port.send(0, &answer);
    stage.run();
    let kinds: Vec<u32> = guest.events().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [control_event::CONNECT_STARTED]);
    let ack = port.received(0).pop().expect("an ACK");
    assert_eq!((ack.flags, ack.ack), (TcpFlags::ACK, SeqNumber(100)));
    assert!(stage.core.sent().is_empty());
}

/// Returns a segment of the mux port to a peer on the link.
fn frame_out() -> Vec<u8> {
    let template = HeaderTemplate::new(OUR_MAC, THEIR_MAC, LOCAL, stranger(1));
    let template = template.expect("both addresses have one IP version");
    let header = from_port(TcpFlags::ACK, 7, 7);
    let (start, len) = (template.headers_len(), header.len());
    let mut frame = vec![0; start + len];
    template.write(&mut frame, len as u16, Ecn::NotEct, 0);
    let tcp = &mut frame[start..];
    emit_tcp(tcp, &header);
    write_tcp_checksum(tcp, template.pseudo_header(len as u16), checksum::Sum::ZERO);
    frame
}

/// Returns a stage whose NIC has room for a few frames.
fn small_nic() -> Stage {
    Stage::with_core(Core::with_port(MemConfig {
        frames: 4,
        ..MemConfig::default()
    }))
}

/// A mux port sends more packets in each step than a small NIC has room for. The engine
/// nevertheless sends its ten resets.
#[test]
fn the_engine_and_a_port_that_floods_share_a_small_nic() {
    let mut stage = small_nic();
    let program = listen(&mut stage.core.host, 1 << 20);
    for port in 5001..=5010 {
        stage.connect(port, b"text");
    }
    let mut port = Program::open(&mut [&mut stage.core]);
    stage.core.host.remove_program(stage.now, program.0);
    let (mut resets, mut of_port) = (0, 0);
    for _ in 0..20 {
        while port.send_frame(0, &frame_out()) {}
        stage.run();
        for frame in stage.core.sent() {
            let packet = parse_frame(&frame).expect("a packet");
            let segment = parse_tcp(packet.payload).expect("a segment");
            resets += u32::from(segment.flags.contains(TcpFlags::RST));
            of_port += u32::from(segment.src_port == CLAIMED);
        }
    }
    assert_eq!(resets, 10);
    assert!(of_port >= 30, "{of_port} packets of the port");
    let counters = stage.core.host.mux_ports().port_counters(port.id);
    assert_eq!(counters.map(|counters| counters.lost), Some(0));
}

/// If the NIC sends nothing, the packets of a mux port wait for at most 100 ms. The mux then drops
/// the packets for the NIC, and the mux port again reaches the service.
#[test]
fn a_nic_that_stands_still_separates_no_port_from_the_service() {
    let mut stage = small_nic();
    let _program = listen(&mut stage.core.host, 1 << 20);
    let mut port = Program::open(&mut [&mut stage.core]);
    for _ in 0..6 {
        assert!(port.send_frame(0, &frame_out()));
    }
    port.send(0, &from_port(TcpFlags::SYN, 7, 0));
    let counters = |stage: &Stage| {
        let counters = stage.core.host.mux_ports().port_counters(PortId(3));
        counters.map(|counters| (counters.sent, counters.lost))
    };
    for _ in 0..5 {
        stage.run();
    }
    assert_eq!(
        (counters(&stage), port.received(0).len()),
        (Some((4, 0)), 0)
    );
    stage.now += Duration::from_millis(101);
    stage.run();
    let answers = port.received(0);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].flags, TcpFlags::SYN.union(TcpFlags::ACK));
    assert_eq!(counters(&stage), Some((7, 2)));
    // The NIC sends again.
    assert_eq!(stage.core.sent().len(), 4);
    assert!(port.send_frame(0, &frame_out()));
    stage.run();
    assert_eq!(stage.core.sent(), [frame_out()]);
    // When packets wait for the NIC again, the 100 ms begin anew.
    for _ in 0..6 {
        assert!(port.send_frame(0, &frame_out()));
    }
    for _ in 0..5 {
        stage.run();
        stage.now += Duration::from_millis(19);
    }
    assert_eq!(counters(&stage), Some((12, 2)));
    assert_eq!(stage.core.sent().len(), 4);
    stage.run();
    assert_eq!(stage.core.sent().len(), 2);
    assert_eq!(counters(&stage), Some((14, 2)));
}

/// A program connects to a 3-tuple (protocol, address, port) that a mux port has claimed. If the
/// mux port ends, the connect fails. The kernel, which then has the 3-tuple, would answer with a
/// RST, too.
#[test]
fn a_port_that_has_ended_resets_its_peers() {
    let mut stage = Stage::new();
    let mut guest = Guest::new(&mut stage, 1000);
    let ports: Vec<u16> = (40_000..40_100).collect();
    stage.core.host.add_ports(stage.now, LOCAL, &ports);
    let port = Program::open(&mut [&mut stage.core]);
    assert!(guest.ask(connect(LOCAL, CLAIMED)));
    stage.run();
    assert_eq!(stage.core.counter("attempt_fails"), 0);
    // The mux port ends before it answers the SYN. The retransmitted SYN finds no port.
    assert!(stage.core.host.mux_ports_mut().close(port.id).is_some());
    for _ in 0..200 {
        stage.now += Duration::from_millis(10);
        stage.run();
    }
    assert_eq!(stage.core.counter("attempt_fails"), 1);
}

/// While a mux port waits because of its rate limit, the core has no work for the port. The core's
/// next timeout is the time at which the port may send again.
#[test]
fn a_core_sleeps_while_a_port_waits_for_its_rate() {
    let mut stage = Stage::new();
    let mut port = Program::open(&mut [&mut stage.core]);
    let rate = SendRate {
        packets: Some(100),
        bytes: None,
    };
    stage.core.host.mux_ports_mut().set_rate(port.id, rate);
    for _ in 0..3 {
        port.send(0, &from_port(TcpFlags::SYN, 7, 0));
    }
    let mut steps = 0;
    let mut times = Vec::new();
    let end = stage.now + Duration::from_millis(100);
    while stage.now < end {
        while stage.core.host.step(stage.now) || stage.core.host.has_work() {
            steps += 1;
        }
        let resets = port.received(0).len();
        times.extend(std::iter::repeat_n(stage.now, resets));
        let due = stage.core.host.next_timeout().unwrap_or(end);
        stage.now = due.max(stage.now + Duration::from_nanos(1)).min(end);
    }
    assert_eq!(times.len(), 3, "not one RST for each SYN");
    let gaps = [times[1] - times[0], times[2] - times[1]];
    for gap in gaps {
        let millis = gap.0 / 1_000_000;
        assert!((9..=12).contains(&millis), "{gaps:?}");
    }
    assert!(steps < 30, "{steps} steps");
}
