//! Tests of connections between handshake and accept. The host is the stack of one core of the
//! service. The host keeps acknowledged data until a program has room for the data.
//!
//! A slot is the record of one connection in the memory that a program shares with the host.

use std::sync::atomic::Ordering::Acquire;

use tidelane_abi::close_cause;
use tidelane_wire::TcpFlags;

use crate::{
    acceptor::{Acceptor, Program},
    stage::{Stage, listen, stranger},
};

/// Data of each connection.
const TEXT: [u8; 10] = *b"0123456789";

/// Makes a host, and a program that listens and has `rx_len` bytes for receive buffers.
fn stage(rx_len: u64) -> (Stage, Program) {
    let mut stage = Stage::new();
    let program = listen(&mut stage.core.host, rx_len);
    (stage, program)
}

/// If the program has no memory for the data of a connection, the host keeps the connection. A
/// reset would lose acknowledged data. Linux would keep the connection, too.
#[test]
fn a_connection_waits_if_there_is_no_memory_for_its_data() {
    let (mut stage, program) = stage(16 << 10);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let ports = 5001..=5006;
    for port in ports.clone() {
        let flags = stage.connect(port, &TEXT);
        assert!(!flags.contains(TcpFlags::RST), "{port}");
    }
    let mut expected = ports;
    let first = acceptor.accepted();
    assert_eq!(first.len(), 4);
    let mut open = Vec::from_iter(first);
    for _ in 0..6 {
        let (port, event) = open.remove(0);
        assert_eq!(Some(port), expected.next());
        assert_eq!(acceptor.text(&event), TEXT);
        acceptor.abort(&mut stage, &event);
        // The host immediately assigns the next connection to the program, in the freed memory.
        open.extend(acceptor.accepted());
    }
    assert!(open.is_empty());
    // The values of `usage` are the numbers of programs, of flows (connections in the engine), and
    // of allocated bytes for received data.
    assert_eq!(stage.core.host.usage(), (1, 0, 0));
}

/// `ss` shows the backlog of a listener as Send-Q.
#[test]
fn a_listener_is_reported_with_its_backlog() {
    let (stage, _program) = stage(1 << 20);
    let sockets = stage.core.host.sockets();
    assert_eq!(sockets.len(), 1);
    assert_eq!((sockets[0].recv_q, sockets[0].send_q), (0, 16));
}

/// If the program has no free slot, the connection stays in the accept queue. The kernel does the
/// same when accept fails with EMFILE.
#[test]
fn a_connection_waits_if_there_is_no_free_slot() {
    let (mut stage, program) = stage(1 << 20);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    // The program has 16 slots, and the 17 connections need one slot more.
    for port in 5001..=5017 {
        assert!(!stage.connect(port, &[]).contains(TcpFlags::RST));
    }
    let accepted = acceptor.accepted();
    assert_eq!(accepted.len(), 16);
    acceptor.abort(&mut stage, &accepted[7].1);
    assert_eq!(acceptor.ports(), [5017]);
}

/// Before accept, the host keeps a limited amount of a connection's data: a quarter of the longest
/// receive buffer that the listening program can have. The host drops further data.
#[test]
fn data_before_accept_is_limited_by_the_memory_of_the_program() {
    let (mut stage, program) = stage(16 << 10);
    let mut ack = stage.shake(5001, &[0; 1000]);
    for number in 1..6 {
        ack.seq = ack.seq.add(1000);
        stage.send(stranger(1), ack, &[number; 1000]);
    }
    stage.run();
    let answers = stage.answers(stranger(1)).into_iter();
    let acknowledged = answers.map(|answer| answer.ack.to_u32());
    assert_eq!(acknowledged.max(), Some(8 + 4000));
    assert!(stage.core.counter("drop_rx_buffer_full") > 0);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let accepted = acceptor.accepted();
    let text = acceptor.text(&accepted[0].1);
    assert!(text.chunks(1000).map(|part| part[0]).eq(0..4));
}

/// As in the kernel, a program can accept a connection that the peer has reset in the queue. The
/// slot then has the received data and the cause of the end.
#[test]
fn a_connection_that_ends_while_it_waits_is_handed_out() {
    let (mut stage, program) = stage(1 << 20);
    stage.connect(5001, &TEXT);
    stage.reset(5001, TEXT.len());
    stage.connect(5002, &[]);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let accepted = acceptor.accepted();
    assert!(accepted.iter().map(|(port, _)| *port).eq([5001, 5002]));
    let ended = &accepted[0].1;
    assert_eq!(acceptor.text(ended), TEXT);
    let half = program.1.slot(ended.slot).expect("a slot").service();
    assert_eq!(half.cause.load(Acquire), close_cause::RESET);
}

/// The host resets a connection whose data exceeds the longest receive buffer of the program that
/// holds the listener. Otherwise the connection would block the accept queue.
#[test]
fn a_connection_too_large_for_any_buffer_is_reset() {
    let (mut stage, program) = stage(1 << 20);
    for port in 5001..=5017 {
        let mut ack = stage.shake(port, &[0; 1400]);
        for _ in 1..20 {
            ack.seq = ack.seq.add(1400);
            stage.send(stranger(1), ack, &[0; 1400]);
        }
        stage.run();
        assert!(stage.core.counter("drop_rx_buffer_full") == 0);
        stage.answers(stranger(1));
    }
    let successor = listen(&mut stage.core.host, 16 << 10);
    stage.core.host.remove_program(stage.now, program.0);
    let mut acceptor = Acceptor::join(&mut stage, &successor);
    stage.run();
    assert!(acceptor.ports().is_empty());
    assert_eq!(stage.core.host.usage(), (1, 0, 0));
    let answers = stage.answers(stranger(1)).into_iter();
    let resets = answers.filter(|answer| answer.flags.contains(TcpFlags::RST));
    assert_eq!(resets.count(), 17);
    stage.connect(6000, &TEXT);
    assert_eq!(acceptor.ports(), [6000]);
}
