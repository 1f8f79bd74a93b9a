//! The stack as packetdrill's threads share it: the lock, blocked calls, and the virtual clock.
//!
//! packetdrill's first thread, the clock thread, runs the script and advances the clock.
//! packetdrill's second thread makes the calls that may block. After each of its own calls and each
//! timer, the clock thread runs a round: the clock thread wakes all blocked calls, and waits until
//! each call has been tried once more. The result of a script thus does not depend on the speed of
//! the threads.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time,
};

use tidelane_engine::{Duration, Instant};

use crate::{
    errno::{CallResult, Errno},
    stack::Stack,
    wire::Sent,
};

/// Longest real time for which the clock thread waits for the other threads in a round.
const RETURN_MAX: time::Duration = time::Duration::from_secs(1);

/// A thread in a blocking call. A thread that has waited stays in the list `waiters` until the
/// thread reads the clock after the call.
#[derive(Debug)]
struct Waiter {
    thread: ThreadId,
    /// Number of the most recent round in which the thread tried its call.
    tried: u64,
    /// Virtual time at which the call times out. `None` means no timeout.
    deadline: Option<Instant>,
    /// True if the call is over, but the thread has not read the clock yet. packetdrill reads the
    /// clock after each call, and the clock thread must not advance the clock before this reading.
    returning: bool,
}

/// The part of [`Shared`] that the mutex protects.
#[derive(Debug)]
struct Locked {
    stack: Stack,
    /// Number of rounds so far.
    round: u64,
    /// The threads in blocking calls. The clock thread is never among these threads.
    waiters: Vec<Waiter>,
}

/// A stack that several threads share. The `userdata` pointer of packetdrill's interface (its table
/// of functions for a stack under test) points to this object.
#[derive(Debug)]
pub struct Shared {
    /// The thread that called [`Shared::new`]. Only this thread advances the clock to a timer or by
    /// a sleep. Each reading of the clock, by any thread, advances the clock by a microsecond.
    clock_thread: ThreadId,
    locked: Mutex<Locked>,
    /// Signalled at the start of a round.
    changed: Condvar,
    /// Signalled after a waiting thread has tried its call or read the clock.
    waiter_done: Condvar,
}

impl Shared {
    /// Returns a shared stack whose clock thread is the caller.
    pub fn new(stack: Stack) -> Self {
        let locked = Locked {
            stack,
            round: 0,
            waiters: Vec::new(),
        };
        Self {
            clock_thread: thread::current().id(),
            locked: Mutex::new(locked),
            changed: Condvar::new(),
            waiter_done: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that does not block. Then runs a round if the caller is the clock thread.
    pub fn call<R>(&self, call: impl FnOnce(&mut Stack) -> R) -> R {
        let mut locked = self.lock();
        let result = call(&mut locked.stack);
        drop(self.run_waiters(locked));
        result
    }

    /// Makes a blocking call: repeats `attempt` while `attempt` fails with EAGAIN. Fails with
    /// `timeout_errno` after the virtual time `within`. If `within` is `None`, the call has no
    /// timeout.
    pub fn wait<R>(
        &self,
        within: Option<Duration>,
        timeout_errno: Errno,
        mut attempt: impl FnMut(&mut Stack) -> CallResult<R>,
    ) -> CallResult<R> {
        let locked = self.lock();
        let deadline = within.map(|span| locked.stack.now() + span);
        if thread::current().id() == self.clock_thread {
            return self.wait_in_clock_thread(locked, deadline, timeout_errno, attempt);
        }
        let mut locked = locked;
        let mut waited = false;
        loop {
            let result = match attempt(&mut locked.stack) {
                Err(Errno::AGAIN) => None,
                result => Some(result),
            };
            let now = locked.stack.now();
            let timed_out = deadline.is_some_and(|deadline| deadline <= now);
            let over = result.is_some() || timed_out;
            locked.record_attempt(deadline, over && waited, over);
            self.waiter_done.notify_all();
            if over {
                return result.unwrap_or(Err(timeout_errno));
            }
            waited = true;
            locked = self
                .changed
                .wait(locked)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes a blocking call in the clock thread, and advances the clock to each timer meanwhile.
    /// Fails with EAGAIN if neither a timer nor a timeout could end the call.
    fn wait_in_clock_thread<'a, R>(
        &'a self,
        mut locked: MutexGuard<'a, Locked>,
        deadline: Option<Instant>,
        timeout_errno: Errno,
        mut attempt: impl FnMut(&mut Stack) -> CallResult<R>,
    ) -> CallResult<R> {
        loop {
            match attempt(&mut locked.stack) {
                Err(Errno::AGAIN) => locked = self.run_waiters(locked),
                result => {
                    drop(self.run_waiters(locked));
                    return result;
                }
            }
            let next = locked.next_timeout();
            let next = [next, deadline].into_iter().flatten().min();
            match next {
                Some(next) if deadline != Some(next) => locked = self.run_until(locked, next),
                Some(next) => {
                    drop(self.run_until(locked, next));
                    return attempt(&mut self.lock().stack).map_err(|error| match error {
                        Errno::AGAIN => timeout_errno,
                        error => error,
                    });
                }
                // Without a timer or a timeout, the state of the stack does not change any more.
                None => return Err(Errno::AGAIN),
            }
        }
    }

    /// Implements `gettimeofday(2)`, in microseconds. After a blocking call, the clock thread waits
    /// until the calling thread has read the clock here.
    pub fn read_clock_us(&self) -> u64 {
        let mut locked = self.lock();
        let me = thread::current().id();
        let us = locked.stack.read_clock_us();
        locked
            .waiters
            .retain(|waiter| waiter.thread != me || !waiter.returning);
        self.waiter_done.notify_all();
        us
    }

    /// Advances the clock by `span`. Each timer that becomes due runs at its own time.
    pub fn sleep(&self, span: Duration) {
        let mut locked = self.run_waiters(self.lock());
        let until = locked.stack.now() + span;
        while let Some(next) = locked.next_timeout().filter(|next| *next <= until) {
            locked = self.run_until(locked, next);
        }
        drop(self.run_until(locked, until));
    }

    /// Removes and returns the oldest sent packet. Advances the clock from timer to timer until
    /// there is a packet. Returns `None` if there is neither a packet nor a timer.
    pub fn next_sent(&self) -> Option<Sent> {
        let mut locked = self.run_waiters(self.lock());
        loop {
            if let Some(sent) = locked.stack.pop_sent() {
                return Some(sent);
            }
            let next = locked.next_timeout()?;
            locked = self.run_until(locked, next);
        }
    }

    /// Returns the number of threads in the list `waiters`. A thread counts while its call is
    /// blocked, and after this call until the thread reads the clock.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.lock().waiters.len()
    }

    /// Advances the clock to `to`, and runs a round.
    fn run_until<'a>(
        &'a self,
        mut locked: MutexGuard<'a, Locked>,
        to: Instant,
    ) -> MutexGuard<'a, Locked> {
        locked.stack.advance_to(to);
        self.run_waiters(locked)
    }

    /// Runs a round after a change of the stack. Does nothing outside of the clock thread.
    ///
    /// Wakes all waiting threads. Returns as soon as each thread has tried its call and each thread
    /// whose call is over has read the clock. Returns after [`RETURN_MAX`] in any case.
    fn run_waiters<'a>(&'a self, mut locked: MutexGuard<'a, Locked>) -> MutexGuard<'a, Locked> {
        if locked.waiters.is_empty() || thread::current().id() != self.clock_thread {
            return locked;
        }
        locked.round += 1;
        self.changed.notify_all();
        let (mut locked, wait_result) = self
            .waiter_done
            .wait_timeout_while(locked, RETURN_MAX, |locked| !locked.all_waiters_done())
            .unwrap_or_else(PoisonError::into_inner);
        if wait_result.timed_out() {
            // A thread whose call is over may never read the clock. Later rounds do not wait for
            // this thread.
            locked.waiters.retain(|waiter| !waiter.returning);
        }
        locked
    }
}

impl Locked {
    /// Returns the time of the stack's next timer, or of the next timeout of a blocked call if this
    /// timeout is earlier. Returns `None` if there is neither.
    fn next_timeout(&self) -> Option<Instant> {
        let deadlines = self.waiters.iter().filter(|waiter| !waiter.returning);
        deadlines
            .filter_map(|waiter| waiter.deadline)
            .chain(self.stack.next_timeout())
            .min()
    }

    /// Returns true if each waiting thread has tried its call in this round, and each thread whose
    /// call is over has read the clock.
    fn all_waiters_done(&self) -> bool {
        let done = |waiter: &Waiter| waiter.tried == self.round && !waiter.returning;
        self.waiters.iter().all(done)
    }

    /// Records that the calling thread has tried its call in this round. `over` is true if the call
    /// is over. `returning` is true if, in addition, the call was blocked before, so that the clock
    /// thread waits until the thread has read the clock.
    fn record_attempt(&mut self, deadline: Option<Instant>, returning: bool, over: bool) {
        let me = thread::current().id();
        self.waiters.retain(|waiter| waiter.thread != me);
        if returning || !over {
            self.waiters.push(Waiter {
                thread: me,
                tried: self.round,
                deadline,
                returning,
            });
        }
    }
}
