//! Tests of captures, by which the operator records packets at the NIC or at a mux port. A mux port
//! is shared memory over which a program with a TCP/IP stack of its own exchanges packets with the
//! host, the stack of one core of the service.

use tidelane_host::{CaptureFilter, CapturePoint};
use tidelane_mux::PortId;
use tidelane_packet_io::{Captured, TapOptions};
use tidelane_wire::{TcpFlags, parse_frame, parse_tcp};

use crate::{
    mux_ports::{CLAIMED, Program, from_port},
    stage::{PORT, Stage, listen, segment, stranger},
};

const OPTIONS: TapOptions = TapOptions {
    snap_len: 1 << 16,
    buffer_len: 1 << 16,
    clock: || 0,
};

/// Returns the direction (1: inbound, 2: outbound) and the flags of each captured segment.
fn segments(captured: Option<Captured>) -> Vec<(u8, TcpFlags)> {
    let captured = captured.expect("an open capture");
    let mut blocks = captured.blocks.as_slice();
    let mut segments = Vec::new();
    while !blocks.is_empty() {
        // Offsets in an Enhanced Packet Block of pcapng: 4 is the block's length, 20 is the frame's
        // length, and 28 is the frame. The direction lies 12 bytes before the end of the block.
        let word = |at: usize| u32::from_le_bytes(blocks[at..at + 4].try_into().expect("a word"));
        let (len, frame_len) = (word(4) as usize, word(20) as usize);
        let packet = parse_frame(&blocks[28..28 + frame_len]).expect("a packet");
        let segment = parse_tcp(packet.payload).expect("a segment");
        segments.push((blocks[len - 12], segment.flags));
        blocks = &blocks[len..];
    }
    assert_eq!(captured.frames as usize, segments.len());
    segments
}

#[test]
fn a_capture_at_the_nic_has_the_selected_segments() {
    let mut stage = Stage::new();
    let _program = listen(&mut stage.core.host, 1 << 20);
    let host = &mut stage.core.host;
    let all = CaptureFilter::default();
    assert!(host.open_capture(1, CapturePoint::Nic, all, OPTIONS));
    let other = CaptureFilter {
        port: Some(PORT + 1),
        ..all
    };
    assert!(host.open_capture(2, CapturePoint::Nic, other, OPTIONS));
    let peer = CaptureFilter {
        protocol: Some(6),
        address: Some(stranger(1)),
        port: Some(PORT),
    };
    assert!(host.open_capture(3, CapturePoint::Nic, peer, OPTIONS));
    let answers = stage.exchange(stranger(1), segment(TcpFlags::SYN, 7, 0));
    assert_eq!(answers.len(), 1);
    let expected = [(1, TcpFlags::SYN), (2, TcpFlags::SYN.union(TcpFlags::ACK))];
    let host = &mut stage.core.host;
    for number in [1, 3] {
        let captured = host.take_capture(number, CapturePoint::Nic);
        assert_eq!(segments(captured), expected);
    }
    assert_eq!(segments(host.take_capture(2, CapturePoint::Nic)), []);
    host.close_capture(1, CapturePoint::Nic);
    assert_eq!(host.take_capture(1, CapturePoint::Nic), None);
}

#[test]
fn a_capture_at_a_port_has_the_segments_in_memory() {
    let mut stage = Stage::new();
    let _program = listen(&mut stage.core.host, 1 << 20);
    let mut port = Program::open(&mut [&mut stage.core]);
    let host = &mut stage.core.host;
    let (all, point) = (CaptureFilter::default(), CapturePoint::Port(port.id));
    assert!(host.open_capture(1, point, all, OPTIONS));
    let absent = CapturePoint::Port(PortId(99));
    assert!(!host.open_capture(2, absent, all, OPTIONS));
    port.send(0, &from_port(TcpFlags::SYN, 7, 0));
    // The mux refuses the next segment, which the capture nevertheless has.
    let mut forged = from_port(TcpFlags::RST, 8, 0);
    forged.src_port = CLAIMED + 1;
    port.send(0, &forged);
    stage.run();
    let expected = [
        (2, TcpFlags::SYN),
        (2, TcpFlags::RST),
        (1, TcpFlags::SYN.union(TcpFlags::ACK)),
    ];
    let host = &mut stage.core.host;
    assert_eq!(segments(host.take_capture(1, point)), expected);
    let counters = host.mux_ports().port_counters(port.id).expect("open");
    assert_eq!(counters.refused.values().sum::<u64>(), 1);
    // The capture ends with the mux port.
    host.mux_ports_mut().close(port.id);
    assert_eq!(host.take_capture(1, point), None);
    host.close_capture(1, point);
}
