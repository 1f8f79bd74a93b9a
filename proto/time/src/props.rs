//! Property tests: the wheel behaves as an ordered map (the oracle). Unit tests: handles, memory,
//! arithmetic and text output.

extern crate std;

use std::{collections::BTreeMap, format, vec::Vec};

use proptest::prelude::*;

use crate::{Duration, Instant, TimerHandle, TimerWheel};

/// An operation on the wheel and on the oracle. Durations are in nanoseconds.
#[derive(Clone, Debug)]
enum Op {
    /// Inserts an entry whose deadline is this duration ahead.
    Insert(u64),
    /// Inserts an entry whose deadline passed this duration ago.
    InsertPast(u64),
    /// Cancels the entry at this index of the oracle, modulo the number of entries.
    Cancel(usize),
    /// Advances the clock by this duration and fires the expired entries.
    Advance(u64),
}

/// Generates durations of every magnitude below 2^49 ns (6.5 days). With these durations, the tests
/// use at least the six lowest levels of the wheel.
fn span() -> impl Strategy<Value = u64> {
    (0u32..50, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => span().prop_map(Op::Insert),
        1 => span().prop_map(Op::InsertPast),
        2 => any::<usize>().prop_map(Op::Cancel),
        3 => span().prop_map(Op::Advance),
    ]
}

/// Fires the entries of the wheel and of the oracle that have expired at `now`, and checks that
/// both fire the same values.
fn advance_and_compare(
    wheel: &mut TimerWheel<u32>,
    oracle: &mut BTreeMap<(Instant, u32), TimerHandle>,
    now: Instant,
) {
    let mut fired = Vec::new();
    while let Some(value) = wheel.expire_next(now) {
        fired.push(value);
    }
    let mut expected = Vec::new();
    while let Some((&(at, value), &handle)) = oracle.first_key_value() {
        if at > now {
            break;
        }
        oracle.remove(&(at, value));
        expected.push(value);
        assert_eq!(wheel.cancel(handle), None, "a fired handle is not stale");
    }
    fired.sort_unstable();
    expected.sort_unstable();
    assert_eq!(fired, expected);
}

/// Checks that the wheel's next deadline is not later than the oracle's earliest deadline, and that
/// both have the same number of entries.
fn check_next_deadline(wheel: &TimerWheel<u32>, oracle: &BTreeMap<(Instant, u32), TimerHandle>) {
    assert_eq!(wheel.len(), oracle.len());
    let earliest = oracle.first_key_value().map(|((at, _), _)| *at);
    match (wheel.next_deadline(), earliest) {
        (None, None) => {}
        (Some(next), Some(earliest)) => assert!(next <= earliest, "{next} > {earliest}"),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn wheel_equals_ordered_map(ops in prop::collection::vec(op(), 1..200)) {
        let mut wheel = TimerWheel::new();
        let mut oracle = BTreeMap::new();
        let mut now = Instant::ZERO;
        for (value, op) in (0u32..).zip(ops) {
            match op {
                Op::Insert(span) => {
                    let at = now + Duration(span);
                    let handle = wheel.insert(at, value);
                    prop_assert_eq!(wheel.deadline(handle), Some(at));
                    oracle.insert((at, value), handle);
                }
                Op::InsertPast(span) => {
                    let at = now - Duration(span);
                    oracle.insert((at, value), wheel.insert(at, value));
                }
                Op::Cancel(nth) if !oracle.is_empty() => {
                    let (&key, &handle) = oracle.iter().nth(nth % oracle.len()).unwrap();
                    prop_assert_eq!(wheel.cancel(handle), Some(key.1));
                    prop_assert_eq!(wheel.cancel(handle), None);
                    oracle.remove(&key);
                }
                Op::Cancel(_) => {}
                Op::Advance(span) => {
                    now += Duration(span);
                    advance_and_compare(&mut wheel, &mut oracle, now);
                }
            }
            check_next_deadline(&wheel, &oracle);
        }
        // At the highest possible time, all remaining entries fire.
        advance_and_compare(&mut wheel, &mut oracle, Instant::MAX);
        prop_assert!(wheel.is_empty() && oracle.is_empty());
    }

    /// A caller that sleeps until `next_deadline` fires each entry exactly at its deadline. The
    /// number of wake-ups is at most nine times the number of entries.
    #[test]
    fn sleeping_until_next_deadline_fires_on_time(spans in prop::collection::vec(span(), 1..100)) {
        let mut wheel = TimerWheel::new();
        for span in &spans {
            wheel.insert(Instant(*span), *span);
        }
        let mut fired = Vec::new();
        let mut wakeups = 0;
        while let Some(now) = wheel.next_deadline() {
            wakeups += 1;
            while let Some(at) = wheel.expire_next(now) {
                prop_assert_eq!(Instant(at), now, "fires too early or too late");
                fired.push(at);
            }
        }
        let mut expected = spans.clone();
        expected.sort_unstable();
        prop_assert_eq!(&fired, &expected);
        prop_assert!(wakeups <= spans.len() * 9, "{} wake-ups", wakeups);
    }
}

#[test]
fn a_reused_entry_has_a_new_handle() {
    let mut wheel = TimerWheel::with_capacity(1);
    let first = wheel.insert(Instant::from_millis(5), 'a');
    assert_eq!(wheel.cancel(first), Some('a'));
    let second = wheel.insert(Instant::from_millis(7), 'b');
    assert_eq!(wheel.cancel(first), None);
    assert_eq!(wheel.deadline(second), Some(Instant::from_millis(7)));
    assert_eq!(wheel.cancel(TimerHandle::NULL), None);
    assert!(TimerHandle::NULL.is_null() && !second.is_null());
}

#[test]
fn no_allocation_once_warm() {
    let mut wheel = TimerWheel::new();
    for round in 0..1_000u64 {
        for span in 0..10 {
            wheel.insert(Instant::from_millis(round * 10 + span), span);
        }
        while wheel
            .expire_next(Instant::from_millis(round * 10 + 10))
            .is_some()
        {}
    }
    assert!(wheel.is_empty());
    assert!(wheel.capacity() <= 16);
}

#[test]
fn arithmetic_saturates() {
    assert_eq!(Instant::ZERO - Instant::from_secs(1), Duration::ZERO);
    assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
    assert_eq!(Instant::from_secs(1) - Duration::MAX, Instant::ZERO);
    assert_eq!(Duration::from_secs(u64::MAX), Duration::MAX);
    assert_eq!(Duration::from_secs(3) / 2u32 * 2u64, Duration::from_secs(3));
    assert_eq!(Instant::MAX.checked_add(Duration(1)), None);
    assert_eq!(Instant(1).checked_sub(Duration(2)), None);
    assert_eq!(Duration::from_millis(1_500).as_secs(), 1);
}

#[test]
fn display_has_units() {
    assert_eq!(format!("{}", Duration(999)), "999ns");
    assert_eq!(format!("{}", Duration::from_micros(1_500)), "1.500ms");
    assert_eq!(format!("{}", Duration::from_millis(61_001)), "61.001s");
    assert_eq!(format!("{}", Instant::from_millis(1_001)), "1.001000000s");
}
