//! Tests of the journal: a memory file with an entry for each flow (connection), in pages that the
//! journal gives back to the system.

use std::{fs::File, os::unix::fs::MetadataExt};

use super::*;

/// Returns an entry. `number` is the peer's port and RCV.NXT.
fn entry(number: u16, timestamp_offset: Option<u32>) -> JournalEntry {
    let v6 = IpAddress([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    JournalEntry {
        key: FlowKey {
            local: Endpoint::new(v6, 80),
            peer: Endpoint::new(IpAddress::from_v4([10, 77, 0, 2]), number),
        },
        snd_una: SeqNumber(0xffff_fff0),
        rcv_nxt: SeqNumber(u32::from(number)),
        timestamp_offset,
    }
}

fn memory(cores: u32, flows_max: u32) -> JournalMemory {
    JournalMemory::create(cores, flows_max).expect("memory")
}

#[test]
fn entries_are_read_as_they_were_written() {
    let memory = memory(2, 100);
    let (mut first, mut second) = (memory.of_core(0), memory.of_core(1));
    let (one, two, three) = (entry(1, None), entry(2, Some(7)), entry(3, Some(0)));
    first.enter(99, &one);
    first.enter(0, &two);
    second.enter(5, &three);
    assert_eq!(memory.entries().collect::<Vec<_>>(), [two, one, three]);
    first.clear(99);
    first.clear(98);
    assert_eq!(memory.entries().collect::<Vec<_>>(), [two, three]);
}

#[test]
fn sequence_numbers_move_on() {
    let memory = memory(1, 100);
    let mut journal = memory.of_core(0);
    let before = entry(1, Some(7));
    journal.enter(3, &before);
    let (snd_una, rcv_nxt) = (SeqNumber(5), SeqNumber(6));
    journal.update(3, snd_una, rcv_nxt);
    journal.update(4, snd_una, rcv_nxt);
    let after = JournalEntry {
        snd_una,
        rcv_nxt,
        ..before
    };
    assert_eq!(memory.entries().collect::<Vec<_>>(), [after]);
}

#[test]
fn flows_beyond_the_memory_have_no_entry() {
    let memory = memory(1, 100);
    let mut journal = memory.of_core(0);
    journal.enter(100, &entry(1, None));
    journal.clear(100);
    journal.update(100, SeqNumber(0), SeqNumber(0));
    assert_eq!(memory.entries().count(), 0);
}

/// A page has 64 entries. The area of a core begins with another page, the header.
#[test]
fn pages_are_allocated_on_use_and_given_back() {
    let (memory, file) = JournalMemory::with_file(1, 64 * 1000).expect("memory");
    let file = File::from(file);
    // Number of pages in memory: a block has 512 bytes, and a page has 4096 bytes.
    let resident = || file.metadata().expect("a file").blocks() / 8;
    let mut journal = memory.of_core(0);
    assert_eq!(resident(), 0);
    for index in 0..64 * 100 {
        journal.enter(index, &entry(1, None));
    }
    assert_eq!(resident(), 101);
    for index in 1..64 * 100 {
        journal.clear(index);
    }
    journal.give_back();
    // The next call keeps a page that was in use since the call before. Only a further call gives
    // the page back.
    journal.enter(64 * 50, &entry(1, None));
    journal.clear(64 * 50);
    journal.give_back();
    assert_eq!(resident(), 3);
    journal.give_back();
    assert_eq!(resident(), 2);
    assert!(!journal.has_empty_pages());
    assert_eq!(memory.entries().count(), 1);
    journal.enter(64 * 99, &entry(2, None));
    assert_eq!(memory.entries().count(), 2);
}
