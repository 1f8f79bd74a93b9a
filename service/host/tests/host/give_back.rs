//! Test of a host, the stack of one core of the service: connections that a program did not accept
//! return to their listener when the program ends.

use tidelane_wire::TcpFlags;

use crate::{
    acceptor::Acceptor,
    stage::{Stage, listen, segment, stranger},
};

const TEXT: [u8; 10] = *b"0123456789";

/// The returned connections count towards the backlog until a program accepts them.
#[test]
fn a_returned_connection_is_in_the_accept_queue_again() {
    let mut stage = Stage::new();
    let first = listen(&mut stage.core.host, 1 << 20);
    let successor = listen(&mut stage.core.host, 1 << 20);
    let mut acceptor = Acceptor::join(&mut stage, &first);
    for port in 5001..=5010 {
        stage.connect(port, &TEXT);
    }
    assert_eq!(acceptor.ports().len(), 10);
    stage.core.host.remove_program(stage.now, first.0);
    // The ten returned connections and seven more connections exceed the backlog of 16.
    for port in 5011..=5017 {
        stage.connect(port, &TEXT);
    }
    let mut one_more = segment(TcpFlags::SYN, 7, 0);
    one_more.src_port = 5018;
    assert_eq!(stage.exchange(stranger(1), one_more), []);
    let mut acceptor = Acceptor::join(&mut stage, &successor);
    // The successor has 16 slots, so one connection still waits.
    let accepted = acceptor.accepted();
    assert!(accepted.iter().map(|(port, _)| *port).eq(5001..=5016));
    assert!(
        accepted
            .iter()
            .all(|(_, event)| acceptor.text(event) == TEXT)
    );
    acceptor.abort(&mut stage, &accepted[0].1);
    assert_eq!(acceptor.ports(), [5017]);
    stage.answers(stranger(1));
    assert_eq!(stage.exchange(stranger(1), one_more).len(), 1);
}
