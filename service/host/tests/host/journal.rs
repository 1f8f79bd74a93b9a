//! Test of the journal, from which another process resets the connections of a killed service.
//!
//! The host (the stack of one core of the service) keeps each connection over the NIC in the
//! journal, from the handshake to the end of the connection. A periodic sweep updates the sequence
//! numbers in the journal.

use tidelane_host::{JournalEntry, JournalMemory};
use tidelane_time::Duration;
use tidelane_wire::{Endpoint, FlowKey, SeqNumber, TcpFlags};

use crate::stage::{LOCAL, PORT, Stage, listen, segment, stranger};

#[test]
fn connections_are_in_the_journal_as_long_as_they_live() {
    let memory = JournalMemory::create(1, 100).expect("memory");
    let entries = || memory.entries().collect::<Vec<JournalEntry>>();
    let mut stage = Stage::new();
    stage.core.host.set_journal(memory.of_core(0));
    let program = listen(&mut stage.core.host, 1 << 20);
    assert_eq!(entries(), []);
    for port in 5001..=5010 {
        stage.connect(port, b"text");
    }
    let found = entries();
    assert_eq!(found.len(), 10);
    for (entry, port) in found.iter().zip(5001..) {
        let local = Endpoint::new(LOCAL, PORT);
        let peer = Endpoint::new(stranger(1), port);
        assert_eq!(entry.key, FlowKey { local, peer });
        assert_eq!(entry.timestamp_offset, None);
    }
    for entry in &found {
        assert_eq!(entry.rcv_nxt, SeqNumber(12));
        let mut more = segment(TcpFlags::ACK, 12, entry.snd_una.to_u32());
        more.src_port = entry.key.peer.port;
        stage.send(stranger(1), more, b"more");
        stage.run();
    }
    stage.answers(stranger(1));
    // The next sweep, at most 250 ms later, updates the entries.
    stage.now += Duration::from_millis(250);
    assert!(stage.core.host.next_timeout() <= Some(stage.now));
    stage.run();
    for (before, after) in found.iter().zip(entries()) {
        let rcv_nxt = SeqNumber(16);
        assert_eq!(after, JournalEntry { rcv_nxt, ..*before });
    }
    stage.core.host.remove_program(stage.now, program.0);
    stage.run();
    assert_eq!(entries(), []);
}
