//! Loom tests of `src/sys/sleepers.rs`, the protocol by which an event wakes a thread that sleeps
//! on a doorbell. Run with `RUSTFLAGS="--cfg loom" cargo test --release -p tidelane-sockets --test
//! loom`.
#![cfg(loom)]

use loom::{
    sync::{Arc, Mutex},
    thread,
};
use sleepers::Sleepers;

// The tests do not use all functions of the file.
#[allow(dead_code)]
#[path = "../src/sys/sleepers.rs"]
mod sleepers;

/// A model of an epoll instance with a doorbell (an eventfd).
struct Instance {
    /// Number of pending events.
    ready: Mutex<u32>,
    /// The threads that sleep on the doorbell, or that are about to.
    sleepers: Sleepers,
    /// True after the doorbell rang, until one thread wakes up and takes the edge, or until a poll
    /// consumes the edge.
    edge: Mutex<bool>,
}

impl Instance {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ready: Mutex::new(0),
            sleepers: Sleepers::new(),
            edge: Mutex::new(false),
        })
    }

    fn wake(&self) {
        self.sleepers.wake(|| *self.edge.lock().unwrap() = true);
    }

    /// Returns true if the doorbell has an edge. Consumes the edge, as the kernel's `epoll_wait`
    /// does.
    fn takes_edge(&self) -> bool {
        std::mem::take(&mut *self.edge.lock().unwrap())
    }

    /// Stores `count` events and wakes a sleeping thread, as the process does after an event of the
    /// service, an `epoll_ctl`, or a call that changes a socket's readiness.
    fn arm(&self, count: u32) {
        *self.ready.lock().unwrap() += count;
        self.wake();
    }

    /// Takes one event, like a wait with room for one event. If more events are pending, wakes the
    /// next thread. Returns true if the function took an event.
    fn take_one(&self) -> bool {
        let mut ready = self.ready.lock().unwrap();
        let some = *ready > 0;
        *ready -= u32::from(some);
        let left = *ready > 0;
        drop(ready);
        if left {
            self.wake();
        }
        some
    }

    /// Polls the kernel's events without sleeping. Wakes the next thread if the poll consumed an
    /// edge.
    fn check(&self) {
        if self.takes_edge() {
            self.wake();
        }
    }

    /// Models a wait with a timeout of zero.
    fn polls(&self) {
        self.take_one();
        self.check();
    }

    /// Prepares a sleep, as `epoll_wait` does. If an event is pending, returns false: the thread
    /// does not sleep. Otherwise, returns true.
    fn falls_asleep(&self) -> bool {
        if self.take_one() {
            return false;
        }
        self.sleepers.announce();
        if *self.ready.lock().unwrap() > 0 {
            self.sleepers.leave();
            return false;
        }
        true
    }

    /// If the calling thread sleeps (`asleep`) and an event is pending, asserts that the doorbell
    /// has an edge, which wakes the thread. All other threads have finished before this call.
    fn check_no_event_is_missed(&self, asleep: bool) {
        let has_event = *self.ready.lock().unwrap() > 0;
        assert!(!(asleep && has_event) || *self.edge.lock().unwrap());
    }
}

#[test]
fn a_thread_that_falls_asleep_while_a_socket_is_armed_wakes() {
    loom::model(|| {
        let instance = Instance::new();
        let theirs = instance.clone();
        let waker = thread::spawn(move || theirs.arm(1));
        let asleep = instance.falls_asleep();
        waker.join().unwrap();
        instance.check_no_event_is_missed(asleep);
    });
}

#[test]
fn an_edge_that_a_poll_consumes_is_passed_on() {
    loom::model(|| {
        let instance = Instance::new();
        let (waker, checker) = (instance.clone(), instance.clone());
        let waker = thread::spawn(move || waker.arm(1));
        let checker = thread::spawn(move || checker.check());
        let asleep = instance.falls_asleep();
        waker.join().unwrap();
        checker.join().unwrap();
        instance.check_no_event_is_missed(asleep);
    });
}

#[test]
fn events_that_a_thread_leaves_wake_the_next() {
    loom::model(|| {
        let instance = Instance::new();
        let (waker, other) = (instance.clone(), instance.clone());
        let waker = thread::spawn(move || waker.arm(2));
        // If the doorbell has rung, this thread has been woken, and takes at most one event.
        // Otherwise, this thread polls with a timeout of zero.
        let other = thread::spawn(move || {
            if other.takes_edge() {
                other.take_one();
            } else {
                other.polls();
            }
        });
        let asleep = instance.falls_asleep();
        waker.join().unwrap();
        other.join().unwrap();
        instance.check_no_event_is_missed(asleep);
    });
}

#[test]
fn leaving_reports_other_sleepers() {
    loom::model(|| {
        let sleepers = Arc::new(Sleepers::new());
        let theirs = sleepers.clone();
        sleepers.announce();
        let other = thread::spawn(move || {
            theirs.announce();
            theirs.leave()
        });
        let others_left = sleepers.leave();
        let ours_left = other.join().unwrap();
        // At least one of the two calls of `leave` found no other sleeping thread.
        assert!(!(others_left && ours_left));
        sleepers.wake(|| panic!("nobody sleeps"));
    });
}
