//! Tests of several hosts as the cores of one service. A host is the stack of one core (polling
//! thread). The tests use no threads, and call the hosts' steps in place of the hosts' driver, the
//! daemon `tidelaned`.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tidelane_ring::{Layout, ProgramRegion, core_of};
use tidelane_time::Instant;

use crate::{
    frames::{OURS, PEER, TTL, syn},
    rig::{Core, Count},
};

const CORES: u32 = 3;
const NOW: Instant = Instant::from_secs(1);

#[test]
fn the_core_that_owns_the_ports_answers_a_frame_of_any_queue() {
    let rings: Vec<Arc<AtomicU32>> = (0..CORES).map(|_| Arc::default()).collect();
    let mut cores = Core::several(&rings);
    let mut answered = [0; CORES as usize];
    for port in 5000..5060 {
        let owner = core_of(port, 80, CORES) as usize;
        let queue = port as usize % cores.len();
        let rung = rings[owner].load(Ordering::Relaxed);
        cores[queue].receives(&syn(PEER, OURS, TTL, port));
        assert_eq!(cores[queue].answers(NOW).len(), usize::from(queue == owner));
        if queue != owner {
            assert_eq!(rings[owner].load(Ordering::Relaxed), rung + 1);
            // The driver calls `has_work` after it has announced its sleep, and before it sleeps.
            assert!(cores[owner].host.has_work());
            assert_eq!(cores[owner].answers(NOW).len(), 1);
        }
        assert!(cores.iter().all(|core| !core.host.has_work()));
        answered[owner] += 1;
    }
    assert!(answered.iter().all(|count| *count > 5), "{answered:?}");
    let handed_over: u64 = cores.iter().map(|core| core.counter("handed_over")).sum();
    let no_listener = cores.iter().map(|core| core.counter("drop_no_listener"));
    assert!(no_listener.eq(answered));
    assert!(handed_over > 20);
}

#[test]
fn frames_that_do_not_fit_into_a_cores_queue_are_dropped_and_counted() {
    let rings: Vec<Arc<AtomicU32>> = (0..2).map(|_| Arc::default()).collect();
    let mut cores = Core::several(&rings);
    let port = (5000..).find(|port| core_of(*port, 80, 2) == 1).unwrap();
    for _ in 0..200 {
        cores[0].receives(&syn(PEER, OURS, TTL, port));
        assert_eq!(cores[0].answers(NOW).len(), 0);
    }
    let dropped = cores[0].counter("drop_core_busy");
    assert!(dropped > 0 && dropped < 200);
    let mut answered = 0;
    while cores[1].host.has_work() {
        answered += cores[1].answers(NOW).len() as u64;
    }
    assert_eq!(answered + dropped, 200);
}

fn region() -> Arc<ProgramRegion> {
    let layout = Layout::new(64, 1 << 20, 1 << 20).expect("a possible layout");
    Arc::new(ProgramRegion::heap(&layout).expect("there is memory"))
}

/// The host stops serving a program whose rings contain impossible values. The host does not reuse
/// the program's number until the driver has removed the program. Otherwise the removal would reset
/// the connections of the next program with this number.
#[test]
fn the_number_of_an_expelled_program_is_not_reused() {
    let mut core = Core::new();
    let bad = region();
    let first = core.host.add_program("bad".to_owned(), 1, bad.clone());
    assert!(
        core.host
            .add_context(first, 0, Box::new(Count(Arc::default())))
    );
    let head = bad.ring_set(0).expect("a ring set").head;
    head.data_request.produced.store(1 << 20, Ordering::Release);
    core.host.step(NOW);
    assert_eq!(core.counter("corrupt_rings"), 1);
    let second = core.host.add_program("good".to_owned(), 2, region());
    assert_ne!(first, second);
    core.host.remove_program(NOW, first);
    // The first value of `usage` is the number of programs.
    assert_eq!(core.host.usage().0, 1);
    assert_eq!(
        core.host.add_program("third".to_owned(), 3, region()),
        first
    );
}
