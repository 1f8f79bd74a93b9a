//! Checks of two protocols by the model checker loom. In the index protocol, a producer and a
//! consumer pass entries through a ring in shared memory. In the sleep protocol, the producer wakes
//! a sleeping consumer.
//!
//! Run them with `RUSTFLAGS="--cfg loom" cargo test --release -p tidelane-ring --test loom`.
#![cfg(loom)]

use loom::{sync::Arc, thread};
use tidelane_ring::{
    cursor::{ConsumerCursor, ProducerCursor},
    sleep,
    sync::{AtomicU32, Ordering},
};

/// Number of positions of the ring.
const LEN: u32 = 2;

/// Shared memory of a ring and its sleep protocol, in loom's atomics.
struct Shared {
    produced: AtomicU32,
    consumed: AtomicU32,
    needs_wakeup: AtomicU32,
    /// The doorbell: 1 after the waker has rung it.
    bell: AtomicU32,
    /// Entries. If the indices do not order the accesses, a relaxed load may return an old value.
    ring: [AtomicU32; LEN as usize],
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        produced: AtomicU32::new(0),
        consumed: AtomicU32::new(0),
        needs_wakeup: AtomicU32::new(0),
        bell: AtomicU32::new(0),
        ring: [AtomicU32::new(0), AtomicU32::new(0)],
    })
}

fn push(shared: &Shared, cursor: &mut ProducerCursor, value: u32) -> bool {
    let Ok(at) = cursor.claim(&shared.consumed) else {
        return false;
    };
    shared.ring[at].store(value, Ordering::Relaxed);
    cursor.commit();
    cursor.publish(&shared.produced);
    true
}

fn pop(shared: &Shared, cursor: &mut ConsumerCursor) -> Option<u32> {
    let at = cursor.claim(&shared.produced).unwrap()?;
    let value = shared.ring[at].load(Ordering::Relaxed);
    cursor.commit();
    cursor.release(&shared.consumed);
    Some(value)
}

#[test]
fn entries_are_handed_over_whole_and_in_order() {
    loom::model(|| {
        let shared = shared();
        let theirs = shared.clone();
        let consumer = thread::spawn(move || {
            let mut cursor = ConsumerCursor::new(LEN);
            let mut expected = 1;
            for _ in 0..3 {
                if let Some(value) = pop(&theirs, &mut cursor) {
                    assert_eq!(value, expected);
                    expected += 1;
                }
            }
        });
        let mut cursor = ProducerCursor::new(LEN);
        // The ring has two positions, so the third entry needs a position that the consumer has
        // released.
        let mut value = 1;
        for _ in 0..3 {
            if push(&shared, &mut cursor, value) {
                value += 1;
            }
        }
        consumer.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost_when_the_waker_clears_the_flag() {
    wake_up(sleep::should_ring);
}

#[test]
fn no_wake_up_is_lost_when_the_waker_only_reads_the_flag() {
    wake_up(sleep::sleeps);
}

fn wake_up(should_ring: fn(&AtomicU32) -> bool) {
    loom::model(move || {
        let shared = shared();
        let theirs = shared.clone();
        let waker = thread::spawn(move || {
            let mut cursor = ProducerCursor::new(LEN);
            for value in [1, 2] {
                assert!(push(&theirs, &mut cursor, value));
                if should_ring(&theirs.needs_wakeup) {
                    theirs.bell.store(1, Ordering::Release);
                }
            }
        });
        let mut cursor = ConsumerCursor::new(LEN);
        let first = pop(&shared, &mut cursor);
        sleep::prepare_to_sleep(&shared.needs_wakeup);
        let sleeps = cursor.is_empty(&shared.produced);
        if !sleeps {
            sleep::cancel_sleep(&shared.needs_wakeup);
        }
        waker.join().unwrap();
        // If the consumer sleeps while the ring has an entry, the doorbell must have been rung.
        let left = !cursor.is_empty(&shared.produced);
        assert!(!(sleeps && left) || shared.bell.load(Ordering::Acquire) == 1);
        assert!(first.is_none_or(|value| value == 1));
    });
}
