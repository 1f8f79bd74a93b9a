//! Tests that no byte of one program's connections reaches another program's memory. The host, the
//! stack of one core of the service, shares a memory region with each program.
//!
//! Most tests first write a marker to memory that the host may reuse. Connections of one program
//! fill the staging area (which holds received data until accept) with the marker, or the test
//! writes the marker to the program's region. The test then gives a connection to another program,
//! and searches the other program's region for the marker.

use std::{ops::Range, sync::Arc};

use tidelane_host::{Holder, Listen, ProgramId, Take};
use tidelane_ring::{Layout, ProgramRegion};
use tidelane_wire::{Endpoint, SegmentHeader, TcpFlags};

use crate::{
    acceptor::{Acceptor, Program, send_buffer, text_in},
    stage::{LOCAL, Stage, segment, stranger},
};

/// Data that only its owner may see.
const MARKER: u8 = 0xa5;
/// TCP ports of two listeners: the first of the marker's owner, and the second of the other
/// program.
pub const PORTS: [u16; 2] = [80, 81];
/// Data without a marker byte.
pub const TEXT: [u8; 1] = *b"1";

/// Makes a program that holds the listener of `port`.
pub fn listen(stage: &mut Stage, port: u16) -> Program {
    let layout = Layout::new(32, 1 << 20, 1 << 20).expect("a possible layout");
    let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
    let host = &mut stage.core.host;
    let id = host.add_program("test".to_owned(), 1, region.clone());
    let listen = Listen {
        number: port.into(),
        key: port.into(),
        local: Endpoint::new(LOCAL, port),
        v6_only: false,
        group: None,
        backlog: 32,
        within_host: false,
    };
    host.listen(id, &listen).expect("a listener");
    (id, region)
}

/// Connects from TCP port `from` to `port`, and sends `text` at stream positions from `at` on.
/// Returns the header of the handshake's last segment.
fn connect(stage: &mut Stage, port: u16, from: u16, at: u32, text: &[u8]) -> SegmentHeader {
    let mut syn = segment(TcpFlags::SYN, 7, 0);
    (syn.src_port, syn.dst_port) = (from, port);
    let answers = stage.exchange(stranger(1), syn);
    let mut ack = segment(TcpFlags::ACK, 8, answers[0].seq.to_u32().wrapping_add(1));
    (ack.src_port, ack.dst_port) = (from, port);
    stage.exchange(stranger(1), ack);
    send(stage, ack, at, text);
    ack
}

/// Sends `text` at stream positions from `at` on.
fn send(stage: &mut Stage, mut header: SegmentHeader, at: u32, text: &[u8]) {
    header.seq = header.seq.add(at);
    for chunk in text.chunks(1400) {
        stage.send(stranger(1), header, chunk);
        header.seq = header.seq.add(chunk.len() as u32);
    }
    stage.run();
    stage.answers(stranger(1));
}

/// Fills staging buffers of several sizes with the marker, by connections to the first port. The
/// host then frees the buffers, because it assigns the connections to a program.
fn mark_staging(stage: &mut Stage) {
    let owner = listen(stage, PORTS[0]);
    for (number, len) in [4096, 4096, 4096, 8192, 8192, 30_000]
        .into_iter()
        .enumerate()
    {
        connect(stage, PORTS[0], 5000 + number as u16, 0, &vec![MARKER; len]);
    }
    let mut acceptor = Acceptor::join_listener(stage, &owner, PORTS[0].into());
    assert_eq!(acceptor.accepted().len(), 6);
}

/// Fills an area of a program's region with the marker, in place of data of earlier connections.
fn mark(region: &ProgramRegion, area: Range<u64>) {
    let bytes = vec![MARKER; (area.end - area.start) as usize];
    assert!(region.copy_in(area.start, &bytes));
}

/// Returns the number of marker bytes in a region.
fn markers(region: &ProgramRegion) -> usize {
    let mut bytes = vec![0; region.len() as usize];
    assert!(region.copy_out(0, &mut bytes));
    bytes.into_iter().filter(|byte| *byte == MARKER).count()
}

#[test]
fn a_connection_brings_only_its_own_bytes_from_the_staging_area() {
    let mut stage = Stage::new();
    mark_staging(&mut stage);
    let other = listen(&mut stage, PORTS[1]);
    connect(&mut stage, PORTS[1], 6000, 0, &TEXT);
    let mut acceptor = Acceptor::join_listener(&mut stage, &other, PORTS[1].into());
    let accepted = acceptor.accepted();
    assert_eq!(acceptor.text(&accepted[0].1), TEXT);
    assert_eq!(markers(&other.1), 0);
}

/// The connection has received bytes after a hole. The host copies these bytes to the program, and
/// does not copy old bytes of the staging buffer at the place of the hole.
#[test]
fn bytes_after_a_hole_are_passed_on_and_the_hole_is_not() {
    let mut stage = Stage::new();
    mark_staging(&mut stage);
    let other = listen(&mut stage, PORTS[1]);
    let header = connect(&mut stage, PORTS[1], 6000, 3000, &[7; 900]);
    let port = PORTS[1].into();
    let mut acceptor = Acceptor::join_listener(&mut stage, &other, port);
    let (_, event) = acceptor.accepted().remove(0);
    assert_eq!(markers(&other.1), 0);
    send(&mut stage, header, 0, &[6; 3000]);
    let text = acceptor.text(&event);
    assert_eq!(text, [[6; 3000].as_slice(), &[7; 900]].concat());
}

#[test]
fn a_grown_staging_buffer_passes_on_received_bytes_only() {
    let mut stage = Stage::new();
    mark_staging(&mut stage);
    let other = listen(&mut stage, PORTS[1]);
    // The first two bytes are missing, so the buffer has a hole before and after its growth.
    connect(&mut stage, PORTS[1], 6000, 2, &vec![7; 20_000]);
    let mut acceptor = Acceptor::join_listener(&mut stage, &other, PORTS[1].into());
    assert_eq!(acceptor.accepted().len(), 1);
    assert_eq!(markers(&other.1), 0);
    let mut bytes = vec![0; other.1.len() as usize];
    assert!(other.1.copy_out(0, &mut bytes));
    assert!(bytes.into_iter().filter(|byte| *byte == 7).count() >= 20_000);
}

/// A connection that was not accepted returns to its listener when its program ends. The connection
/// brings no data of the ended program to the next program that holds the listener. The two
/// programs may belong to different users, because a program can pass on a listener's descriptor.
#[test]
fn a_returned_connection_carries_no_data_of_the_ended_program() {
    let mut stage = Stage::new();
    let owner = listen(&mut stage, PORTS[0]);
    let other = listen(&mut stage, PORTS[0]);
    mark(&owner.1, owner.1.layout().rx_area());
    let mut acceptor = Acceptor::join_listener(&mut stage, &owner, PORTS[0].into());
    connect(&mut stage, PORTS[0], 6000, 0, &TEXT);
    assert_eq!(acceptor.ports(), [6000]);
    stage.core.host.remove_program(stage.now, owner.0);
    let mut acceptor = Acceptor::join_listener(&mut stage, &other, PORTS[0].into());
    let accepted = acceptor.accepted();
    assert_eq!(acceptor.text(&accepted[0].1), TEXT);
    assert_eq!(markers(&other.1), 0);
}

/// A program reads from one connection and writes to another connection, without accepting either
/// connection. When the program ends, the host resets both connections. Neither connection returns
/// to the listener.
#[test]
fn a_connection_that_was_used_does_not_go_back() {
    let mut stage = Stage::new();
    let owner = listen(&mut stage, PORTS[0]);
    let other = listen(&mut stage, PORTS[0]);
    let mut acceptor = Acceptor::join_listener(&mut stage, &owner, PORTS[0].into());
    connect(&mut stage, PORTS[0], 6000, 0, &TEXT);
    connect(&mut stage, PORTS[0], 6001, 0, &TEXT);
    let accepted = acceptor.accepted();
    acceptor.read(&mut stage, &accepted[0].1, TEXT.len() as u32);
    acceptor.write(&mut stage, &accepted[1].1, &TEXT);
    stage.core.host.remove_program(stage.now, owner.0);
    stage.run();
    let answers = stage.answers(stranger(1)).into_iter();
    let resets = answers.filter(|answer| answer.flags.contains(TcpFlags::RST));
    assert_eq!(resets.count(), 2);
    assert!(
        Acceptor::join_listener(&mut stage, &other, PORTS[0].into())
            .ports()
            .is_empty()
    );
}

/// A forked child may belong to another user at the time when the child takes an inherited
/// connection (moves the connection into its own memory).
#[test]
fn an_inherited_connection_carries_only_its_own_bytes() {
    let mut stage = Stage::new();
    let owner = listen(&mut stage, PORTS[0]);
    mark(&owner.1, owner.1.layout().rx_area());
    mark(&owner.1, owner.1.layout().tx_area());
    let (child, slot) = share_connection(&mut stage, &owner);
    let slot = owner.1.slot(slot).expect("a slot");
    let take = Take {
        connection: slot.ids().connection,
        context: 0,
        tx_buffer: send_buffer(&child.1).to_word(),
    };
    let taken = stage.core.host.take(stage.now, child.0, take);
    let taken = taken.expect("the connection is held and at rest");
    assert_eq!(text_in(&child.1, taken.slot), TEXT);
    assert_eq!(markers(&child.1), 0);
}

/// Lets `owner`, which listens at the first port, accept a connection and write [`TEXT`], which the
/// peer does not acknowledge. Returns a child that also holds the connection, and the connection's
/// slot in the owner's memory.
pub fn share_connection(stage: &mut Stage, owner: &Program) -> (Program, u32) {
    let mut acceptor = Acceptor::join_listener(stage, owner, PORTS[0].into());
    connect(stage, PORTS[0], 6000, 0, &TEXT);
    let (_, event) = acceptor.accepted().remove(0);
    acceptor.accept(stage, &event);
    acceptor.write(stage, &event, &TEXT);
    (inherit(stage, owner.0), event.slot)
}

/// Registers a forked child of `parent`. The child also holds the connections of `parent`.
fn inherit(stage: &mut Stage, parent: ProgramId) -> Program {
    let layout = Layout::new(32, 1 << 20, 1 << 20).expect("a possible layout");
    let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
    let (host, now) = (&mut stage.core.host, stage.now);
    let inherited = host.inherit(now, Holder::Program(parent), 1);
    inherited.expect("no limit");
    let id = host.add_program("child".to_owned(), 2, region.clone());
    host.child_registered(1, id);
    (id, region)
}
