//! Tests of a host's memory for received data: its thresholds, and unused pages. A host is the
//! stack of one core of the service.

use tidelane_engine::EngineConfig;
use tidelane_host::{HostRequest, MemoryLimits, StreamMemory};
use tidelane_time::Duration;
use tidelane_wire::{SeqNumber, TcpFlags};

use crate::{
    acceptor::Acceptor,
    rig::Core,
    stage::{Stage, listen, segment, stranger},
};

const TEXT: [u8; 10] = *b"0123456789";
/// A time longer than the interval between two sweeps of the host. A sweep finds unused memory.
const REST: Duration = Duration::from_millis(600);

/// Runs the host for the time of at least three sweeps. Returns true if the host asks its driver
/// (the test, in place of the daemon) to free idle pages.
fn rest(stage: &mut Stage) -> bool {
    for _ in 0..3 {
        stage.now += REST;
        stage.run();
    }
    stage.requests().contains(&HostRequest::IdleMemory)
}

#[test]
fn pages_of_closed_connections_are_lent_once_and_used_again() {
    let mut stage = Stage::new();
    let program = listen(&mut stage.core.host, 32 << 20);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    for port in 5001..=5008 {
        stage.connect(port, &TEXT);
    }
    for (_, event) in acceptor.accepted() {
        acceptor.abort(&mut stage, &event);
    }
    assert!(rest(&mut stage), "the host does not ask to free pages");
    let taken = stage.core.host.take_idle_pages();
    assert!(!taken.is_empty());
    stage.answers(stranger(1));
    // While the test has the idle pages, new connections get other memory.
    stage.connect(6000, &TEXT);
    let accepted = acceptor.accepted();
    taken.iter().for_each(tidelane_host::IdlePages::give_back);
    assert_eq!(acceptor.text(&accepted[0].1), TEXT);
    stage.core.host.return_idle_pages(taken);
    acceptor.abort(&mut stage, &accepted[0].1);
    assert!(
        rest(&mut stage),
        "the host does not ask to free the last connection's pages"
    );
    let taken = stage.core.host.take_idle_pages();
    stage.core.host.return_idle_pages(taken);
    assert!(!rest(&mut stage), "the host asks for the pages twice");
}

/// At the threshold `high`, the host drops payload and new SYNs. Linux drops payload above the
/// third value of `tcp_mem`. The test checks only that the host drops a SYN.
#[test]
fn payload_above_the_memory_limit_is_dropped() {
    let mut stage = Stage::new();
    let limits = MemoryLimits {
        low: 8 << 10,
        pressure: 12 << 10,
        high: 16 << 10,
    };
    let memory = StreamMemory::new(limits);
    stage.core.host.set_stream_memory(memory.clone());
    let program = listen(&mut stage.core.host, 1 << 20);
    for port in 5001..=5004 {
        stage.connect(port, &TEXT);
    }
    assert!(memory.is_exhausted() && memory.is_pressed());
    let mut syn = segment(TcpFlags::SYN, 7, 0);
    syn.src_port = 5005;
    assert!(stage.exchange(stranger(1), syn).is_empty());
    // Accept moves the data, and needs no further memory for the data.
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let accepted = acceptor.accepted();
    assert_eq!(accepted.len(), 4);
    assert!(memory.is_exhausted());
    for (_, event) in &accepted {
        acceptor.abort(&mut stage, event);
    }
    stage.answers(stranger(1));
    rest(&mut stage);
    assert!(!memory.is_exhausted());
    assert_eq!(stage.exchange(stranger(1), syn).len(), 1);
}

/// Returns the largest window in bytes that the host advertises to a peer. The peer fills each
/// window, and the program reads all data. `pressure` is the threshold of memory pressure in bytes.
fn largest_window(pressure: u64) -> u16 {
    let mut stage = Stage::with_core(Core::with_config(EngineConfig {
        rx_window_initial: 4 << 10,
        rx_window_max: 32 << 10,
        ..EngineConfig::default()
    }));
    let limits = MemoryLimits {
        low: 0,
        pressure,
        high: 1 << 20,
    };
    stage.core.host.set_stream_memory(StreamMemory::new(limits));
    let program = listen(&mut stage.core.host, 1 << 20);
    let mut acceptor = Acceptor::join(&mut stage, &program);
    let mut next = stage.shake(5001, &[]);
    stage.run();
    let (_, event) = acceptor.accepted().remove(0);
    acceptor.accept(&mut stage, &event);
    let (mut window, mut largest) = (4 << 10, 0);
    for turn in 0..200 {
        let text = vec![0; usize::from(window)];
        for piece in text.chunks(1000) {
            stage.send(stranger(1), next, piece);
            next.seq = SeqNumber(next.seq.to_u32().wrapping_add(piece.len() as u32));
        }
        stage.run();
        if turn == 0 {
            // The host checks for pressure a few times a second.
            rest(&mut stage);
        }
        acceptor.read(&mut stage, &event, text.len() as u32);
        stage.now += Duration::from_millis(20);
        stage.run();
        let answers = stage.answers(stranger(1));
        window = answers.last().map_or(window, |answer| answer.wnd);
        largest = largest.max(window);
    }
    largest
}

#[test]
fn windows_do_not_grow_under_pressure() {
    let (unpressed, pressed) = (largest_window(1 << 20), largest_window(1 << 10));
    assert!(unpressed > 16 << 10, "{unpressed} bytes without pressure");
    assert!(pressed <= 4 << 10, "{pressed} bytes under pressure");
}
