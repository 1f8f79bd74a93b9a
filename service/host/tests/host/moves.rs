//! Tests of moves of a connection between the programs that hold the connection after a `fork`. The
//! *home* is the program whose memory has the connection. A slot is the record of the connection in
//! this memory.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use tidelane_abi::{data_event, service_flags};
use tidelane_host::{Take, TakeError};
use tidelane_ring::{DataEventConsumer, words::DataWord};

use crate::{
    acceptor::{Program, send_buffer},
    foreign_bytes::{PORTS, TEXT, listen, share_connection},
    stage::Stage,
};

/// A connection that a program has accepted and that its child also holds.
struct Shared {
    stage: Stage,
    owner: Program,
    child: Program,
    /// The slot in the owner's memory.
    slot: u32,
    /// Number of the connection.
    connection: u64,
    /// Events of the owner's connections.
    events: DataEventConsumer,
}

impl Shared {
    /// Makes the connection. The owner has written [`TEXT`], which the peer has not acknowledged.
    fn new() -> Self {
        let mut stage = Stage::new();
        let owner = listen(&mut stage, PORTS[0]);
        let (child, slot) = share_connection(&mut stage, &owner);
        let mut shared = Self {
            connection: owner.1.slot(slot).expect("a slot").ids().connection,
            events: DataEventConsumer::new(Arc::clone(&owner.1), 0).expect("a context"),
            slot,
            stage,
            owner,
            child,
        };
        shared.events();
        shared
    }

    /// Lets a program ask for the connection. `tx_buffer` is the word (encoded place and size) of
    /// the program's send buffer; 0 for no buffer.
    fn take(&mut self, program: &Program, tx_buffer: u64) -> Result<(), TakeError> {
        let take = Take {
            connection: self.connection,
            context: 0,
            tx_buffer,
        };
        let (host, now) = (&mut self.stage.core.host, self.stage.now);
        host.take(now, program.0, take).map(|_| ())
    }

    /// Returns true if the owner's slot has the flag MIGRATED: the connection is in the memory of
    /// another program.
    fn has_moved(&self) -> bool {
        let slot = self.owner.1.slot(self.slot).expect("a slot");
        slot.service().flags.load(SeqCst) & service_flags::MIGRATED != 0
    }

    /// Runs the host, and returns the number of READY events for the owner's slot since the last
    /// call.
    fn events(&mut self) -> usize {
        self.stage.run();
        let words = std::iter::from_fn(|| self.events.pop().expect("a sound ring"));
        let ready = DataWord::new(data_event::READY, self.slot).encode();
        let count = words.filter(|word| *word == ready).count();
        self.events.release();
        count
    }
}

/// A thread of the home may have read the flag MIGRATED during a refused move, and may then wait
/// for an event. The host therefore sends the home an event.
#[test]
fn a_refused_move_is_announced_to_the_home() {
    let mut shared = Shared::new();
    let child = shared.child.clone();
    let word = send_buffer(&child.1).to_word();
    let slot = shared.owner.1.slot(shared.slot).expect("a slot");
    // The home is copying data, so the host refuses the move.
    slot.program().busy.store(1, SeqCst);
    assert_eq!(shared.take(&child, word), Err(TakeError::Busy));
    assert!(!shared.has_moved());
    assert_eq!(shared.events(), 1);
    let slot = shared.owner.1.slot(shared.slot).expect("a slot");
    slot.program().busy.store(0, SeqCst);
    assert_eq!(shared.take(&child, word), Ok(()));
    assert!(shared.has_moved());
}

/// If the child's send buffer is too short for the unacknowledged data, the host refuses the move
/// before it stops the home.
#[test]
fn a_short_buffer_does_not_disturb_the_home() {
    let mut shared = Shared::new();
    let child = shared.child.clone();
    let refused = Err(TakeError::BufferTooSmall(TEXT.len() as u32));
    assert_eq!(shared.take(&child, 0), refused);
    assert!(!shared.has_moved());
    assert_eq!(shared.events(), 0);
}

/// A home that reads the flag MIGRATED during a refused move may then ask for its own connection.
/// The error differs from the error for a program that does not hold the connection.
#[test]
fn the_home_learns_that_the_connection_is_there() {
    let mut shared = Shared::new();
    let (owner, child) = (shared.owner.clone(), shared.child.clone());
    assert_eq!(shared.take(&owner, 0), Err(TakeError::AtHome));
    let word = send_buffer(&child.1).to_word();
    assert_eq!(shared.take(&child, word), Ok(()));
    assert_eq!(shared.take(&child, word), Err(TakeError::AtHome));
    let stranger = listen(&mut shared.stage, PORTS[1]);
    assert_eq!(shared.take(&stranger, word), Err(TakeError::NotHeld));
}
