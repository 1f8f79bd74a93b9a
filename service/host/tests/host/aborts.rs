//! Tests of a host (the stack of one core of the service): the host resets connections because of a
//! new rule, or because the service ends.

use std::sync::atomic::Ordering::Acquire;

use tidelane_abi::{close_cause, service_flags};
use tidelane_host::{Action, RuleSet};
use tidelane_wire::TcpFlags;

use crate::{
    acceptor::Acceptor,
    stage::{Stage, listen, stranger},
};

/// The program gets an error. If the program saw an orderly end instead, it would take the received
/// data for the whole stream.
#[test]
fn a_program_learns_that_the_service_has_reset_its_connection() {
    let by_rule = |stage: &mut Stage| {
        let rules = RuleSet::new(Vec::new(), Action::Drop);
        assert_eq!(stage.core.host.set_rules(stage.now, rules), 1);
    };
    let at_the_end = |stage: &mut Stage| stage.core.host.shut_down(stage.now);
    for reset in [by_rule as fn(&mut Stage), at_the_end] {
        let mut stage = Stage::new();
        let (id, region) = listen(&mut stage.core.host, 1 << 20);
        let mut acceptor = Acceptor::join(&mut stage, &(id, region.clone()));
        stage.connect(5001, b"text");
        let accepted = acceptor.accepted();
        acceptor.accept(&mut stage, &accepted[0].1);
        reset(&mut stage);
        stage.run();
        let slot = region.slot(accepted[0].1.slot).expect("a slot");
        let flags = slot.service().flags.load(Acquire);
        assert!(flags & service_flags::CLOSED != 0);
        assert_eq!(slot.service().cause.load(Acquire), close_cause::ABORTED);
        assert_eq!(acceptor.text(&accepted[0].1), b"text");
    }
}

/// A rule resets a connection in the accept queue. A context (the rings of one thread of a program)
/// that joins the listener before the end of the step does not get the connection.
#[test]
fn a_reset_connection_in_the_accept_queue_reaches_no_context() {
    let mut stage = Stage::new();
    let program = listen(&mut stage.core.host, 1 << 20);
    stage.connect(5001, b"text");
    let rules = RuleSet::new(Vec::new(), Action::Drop);
    assert_eq!(stage.core.host.set_rules(stage.now, rules), 1);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    assert!(acceptor.ports().is_empty());
    let resets = stage.answers(stranger(1));
    assert!(
        resets
            .iter()
            .all(|reset| reset.flags.contains(TcpFlags::RST))
    );
    // The queue and the program's memory are free for the next connection.
    stage
        .core
        .host
        .set_rules(stage.now, RuleSet::new(Vec::new(), Action::Accept));
    stage.connect(5002, b"more");
    let accepted = acceptor.accepted();
    assert_eq!(accepted.len(), 1);
    assert_eq!(acceptor.text(&accepted[0].1), b"more");
}
