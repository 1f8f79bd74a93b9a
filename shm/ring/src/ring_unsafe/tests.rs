//! Tests of the rings between a program and the service: order, publication, invalid indices from a
//! hostile peer, and two threads.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU32, Ordering},
};

use proptest::prelude::*;

use super::*;
use crate::{Layout, sleep};

fn region() -> Arc<ProgramRegion> {
    let layout = Layout::new(16, 1 << 20, 1 << 20).unwrap();
    Arc::new(ProgramRegion::heap(&layout).unwrap())
}

fn event(n: u32) -> ControlEvent {
    ControlEvent {
        kind: n,
        slot: n ^ 1,
        cookie: u64::from(n) << 32,
        generation: n,
        cause: 0,
        listener: 7,
        syn_room: n,
        reserved: [n; 8],
    }
}

#[test]
fn entries_are_seen_after_publish_only() {
    let region = region();
    let mut producer = ControlEventProducer::new(region.clone(), 5).unwrap();
    let mut consumer = ControlEventConsumer::new(region.clone(), 5).unwrap();
    producer.push(event(9)).unwrap();
    assert!(consumer.is_empty() && consumer.pop().unwrap().is_none());
    assert!(producer.publish() && !producer.publish());
    assert!(!consumer.is_empty());
    let got = consumer.pop().unwrap().unwrap();
    assert_eq!((got.kind, got.slot, got.reserved), (9, 8, [9; 8]));
    assert!(consumer.pop().unwrap().is_none());
    assert!(ControlEventProducer::new(region, 128).is_none());
}

#[test]
fn a_full_ring_has_room_when_the_consumer_releases() {
    let region = region();
    let mut producer = DataRequestProducer::new(region.clone(), 0).unwrap();
    let mut consumer = DataRequestConsumer::new(region, 0).unwrap();
    for n in 0..u64::from(DATA_RING_LEN) {
        producer.push(n).unwrap();
    }
    assert_eq!(producer.push(0), Err(PushError::Full));
    assert_eq!(producer.room(), Ok(0));
    producer.publish();
    assert_eq!(consumer.pop(), Ok(Some(0)));
    assert_eq!(producer.push(0), Err(PushError::Full));
    consumer.release();
    assert_eq!(producer.push(8192), Ok(()));
    assert_eq!(producer.push(0), Err(PushError::Full));
}

#[test]
fn impossible_indices_are_corrupt() {
    let region = region();
    let mut producer = DataEventProducer::new(region.clone(), 0).unwrap();
    let mut consumer = DataEventConsumer::new(region.clone(), 0).unwrap();
    let index = &region.ring_set(0).unwrap().head.data_event;
    index.produced.store(DATA_RING_LEN + 1, Ordering::Relaxed);
    assert_eq!(consumer.pop(), Err(Corrupt));
    index.produced.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(consumer.pop(), Err(Corrupt));
    producer.push(1).unwrap();
    producer.publish();
    assert_eq!(consumer.pop(), Ok(Some(1)));
    // The producer's index moves back, below the entry that was consumed.
    index.produced.store(0, Ordering::Relaxed);
    assert_eq!(consumer.pop(), Err(Corrupt));
    // The consumer's index passes the published entries: one entry is published.
    index.consumed.store(2, Ordering::Relaxed);
    assert_eq!(producer.room(), Err(Corrupt));
    index.consumed.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(producer.room(), Err(Corrupt));
}

#[test]
fn two_threads_exchange_everything_in_order_and_sleep_between() {
    const COUNT: u64 = 300_000;
    let region = region();
    let mut producer = DataEventProducer::new(region.clone(), 1).unwrap();
    let mut consumer = DataEventConsumer::new(region.clone(), 1).unwrap();
    let flag = &region.ring_set(1).unwrap().head.needs_wakeup;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut expected = 0;
            while expected < COUNT {
                while let Some(word) = consumer.pop().unwrap() {
                    assert_eq!(word, expected);
                    expected += 1;
                }
                consumer.release();
                sleep::prepare_to_sleep(flag);
                if consumer.is_empty() && expected < COUNT {
                    std::thread::park();
                }
                sleep::cancel_sleep(flag);
            }
        });
        let mut next = 0;
        while next < COUNT {
            let batch = (next % 37 + 1).min(COUNT - next);
            let mut pushed = 0;
            while pushed < batch && producer.push(next).is_ok() {
                pushed += 1;
                next += 1;
            }
            producer.publish();
            if sleep::should_ring(flag) {
                sleeper.thread().unpark();
            } else if pushed == 0 {
                std::thread::yield_now();
            }
        }
    });
}

/// A step of a random sequence: a call of the producer or of the consumer.
#[derive(Clone, Debug)]
enum Step {
    Push,
    Publish,
    Pop,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Push),
        2 => Just(Step::Publish),
        8 => Just(Step::Pop),
        2 => Just(Step::Release),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(
        start in prop_oneof![any::<u32>(), u32::MAX - 20..=u32::MAX],
        steps in prop::collection::vec(step(), 1..400),
    ) {
        const LEN: u32 = 8;
        let (produced, consumed) = (AtomicU32::new(start), AtomicU32::new(start));
        let mut producer = ProducerCursor::starting_at(LEN, start);
        let mut consumer = ConsumerCursor::starting_at(LEN, start);
        let mut ring = [0u32; LEN as usize];
        let (mut unpublished, mut visible) = (VecDeque::new(), VecDeque::new());
        // `held` is the number of popped entries whose positions are not released.
        let (mut held, mut next) = (0, 0u32);
        for step in steps {
            match step {
                Step::Push => {
                    let full = unpublished.len() + visible.len() + held == LEN as usize;
                    match producer.claim(&consumed) {
                        Ok(at) => {
                            prop_assert!(!full);
                            ring[at] = next;
                            producer.commit();
                            unpublished.push_back(next);
                            next += 1;
                        }
                        Err(error) => prop_assert!(full && error == PushError::Full),
                    }
                }
                Step::Publish => {
                    prop_assert_eq!(producer.publish(&produced), !unpublished.is_empty());
                    visible.append(&mut unpublished);
                }
                Step::Pop => {
                    prop_assert_eq!(consumer.is_empty(&produced), visible.is_empty());
                    let at = consumer.claim(&produced).unwrap();
                    prop_assert_eq!(at.map(|at| ring[at]), visible.front().copied());
                    if at.is_some() {
                        consumer.commit();
                        visible.pop_front();
                        held += 1;
                    }
                }
                Step::Release => {
                    consumer.release(&consumed);
                    held = 0;
                }
            }
        }
    }

    #[test]
    fn hostile_indices_stay_in_bounds(
        values in prop::collection::vec(
            prop_oneof![any::<u32>(), 0u32..20, u32::MAX - 20..=u32::MAX], 1..200),
    ) {
        const LEN: u32 = 8;
        let peer = AtomicU32::new(0);
        let ours = AtomicU32::new(0);
        let mut producer = ProducerCursor::new(LEN);
        let mut consumer = ConsumerCursor::new(LEN);
        for value in values {
            peer.store(value, Ordering::Relaxed);
            if let Ok(at) = producer.claim(&peer) {
                prop_assert!(at < LEN as usize);
                producer.commit();
                producer.publish(&ours);
            }
            // Between two releases, a consumer pops at most `LEN` entries, whatever index a hostile
            // peer writes.
            let mut popped = 0;
            while let Ok(Some(at)) = consumer.claim(&peer) {
                prop_assert!(at < LEN as usize);
                consumer.commit();
                popped += 1;
                prop_assert!(popped <= LEN);
            }
            consumer.release(&ours);
        }
    }
}
