//! The stack as packetdrill's threads share it: the lock, blocked calls, and the virtual clock.
//!
//! packetdrill's first thread runs the script and advances the clock. Its second thread makes the
//! calls that may block. After each change of the stack, the first thread starts a round: it wakes
//! all blocked calls, and waits until each has been tried once more. The result of a script thus
//! does not depend on the speed of the threads.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time,
};

use tidelane_engine::{Duration, Instant};

use crate::{
    errno::{Answer, Errno},
    stack::Stack,
    wire::Sent,
};

/// Real time for which the first thread waits for the other threads in a round.
const RETURN_MAX: time::Duration = time::Duration::from_secs(1);

/// A thread in a blocking call. A thread that has waited stays in the list until it reads the clock
/// after the call.
#[derive(Debug)]
struct Waiter {
    thread: ThreadId,
    /// Number of the last round in which the thread tried its call.
    tried: u64,
    /// Virtual time at which the call times out. `None` means no timeout.
    deadline: Option<Instant>,
    /// True if the call is over, but the thread has not read the clock yet. packetdrill reads the
    /// clock after each call, and the clock must not advance before.
    returning: bool,
}

/// The part of [`Shared`] behind the lock.
#[derive(Debug)]
struct Inside {
    stack: Stack,
    /// Number of rounds so far.
    round: u64,
    waiters: Vec<Waiter>,
}

/// A stack that several threads share. The interface's `userdata` points to it.
#[derive(Debug)]
pub struct Shared {
    /// The thread that made the interface. Only this thread advances the clock.
    first: ThreadId,
    inside: Mutex<Inside>,
    /// Signalled at the start of a round.
    changed: Condvar,
    /// Signalled after a waiting thread has tried its call or read the clock.
    waiter_done: Condvar,
}

impl Shared {
    /// Returns a shared stack whose first thread is the caller.
    pub fn new(stack: Stack) -> Self {
        let inside = Inside {
            stack,
            round: 0,
            waiters: Vec::new(),
        };
        Self {
            first: thread::current().id(),
            inside: Mutex::new(inside),
            changed: Condvar::new(),
            waiter_done: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that does not block, and runs a round.
    pub fn call<R>(&self, call: impl FnOnce(&mut Stack) -> R) -> R {
        let mut inside = self.lock();
        let result = call(&mut inside.stack);
        drop(self.run_waiters(inside));
        result
    }

    /// Makes a blocking call: repeats `attempt` while it fails with EAGAIN. Fails with `late` after
    /// `within` of virtual time. `None` means no timeout.
    pub fn wait<R>(
        &self,
        within: Option<Duration>,
        late: Errno,
        mut attempt: impl FnMut(&mut Stack) -> Answer<R>,
    ) -> Answer<R> {
        let inside = self.lock();
        let deadline = within.map(|span| inside.stack.now() + span);
        if thread::current().id() == self.first {
            return self.wait_in_first(inside, deadline, late, attempt);
        }
        let mut inside = inside;
        let mut waited = false;
        loop {
            let answer = match attempt(&mut inside.stack) {
                Err(Errno::AGAIN) => None,
                answer => Some(answer),
            };
            let now = inside.stack.now();
            let is_late = deadline.is_some_and(|deadline| deadline <= now);
            let over = answer.is_some() || is_late;
            inside.note(deadline, over && waited, over);
            self.waiter_done.notify_all();
            if over {
                return answer.unwrap_or(Err(late));
            }
            waited = true;
            inside = self
                .changed
                .wait(inside)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes a blocking call in the first thread, and advances the clock to each timer meanwhile.
    /// Fails with EAGAIN if no timer is left that could end the call.
    fn wait_in_first<'a, R>(
        &'a self,
        mut inside: MutexGuard<'a, Inside>,
        deadline: Option<Instant>,
        late: Errno,
        mut attempt: impl FnMut(&mut Stack) -> Answer<R>,
    ) -> Answer<R> {
        loop {
            match attempt(&mut inside.stack) {
                Err(Errno::AGAIN) => inside = self.run_waiters(inside),
                answer => {
                    drop(self.run_waiters(inside));
                    return answer;
                }
            }
            let next = inside.next_timeout();
            let next = [next, deadline].into_iter().flatten().min();
            match next {
                Some(next) if deadline != Some(next) => inside = self.run_until(inside, next),
                Some(next) => {
                    drop(self.run_until(inside, next));
                    return attempt(&mut self.lock().stack).map_err(|error| match error {
                        Errno::AGAIN => late,
                        error => error,
                    });
                }
                // Without a timer, the state of the stack does not change any more.
                None => return Err(Errno::AGAIN),
            }
        }
    }

    /// `gettimeofday(2)`, in microseconds. After a blocking call, the first thread waits until the
    /// calling thread has read the clock here.
    pub fn read_clock_us(&self) -> u64 {
        let mut inside = self.lock();
        let me = thread::current().id();
        let us = inside.stack.read_clock_us();
        inside
            .waiters
            .retain(|waiter| waiter.thread != me || !waiter.returning);
        self.waiter_done.notify_all();
        us
    }

    /// Advances the clock by `span`. Each timer that becomes due runs at its own time.
    pub fn sleep(&self, span: Duration) {
        let mut inside = self.run_waiters(self.lock());
        let until = inside.stack.now() + span;
        while let Some(next) = inside.next_timeout().filter(|next| *next <= until) {
            inside = self.run_until(inside, next);
        }
        drop(self.run_until(inside, until));
    }

    /// Returns the next sent packet. Advances the clock from timer to timer until there is a
    /// packet. Returns `None` if no timer is left.
    pub fn next_sent(&self) -> Option<Sent> {
        let mut inside = self.run_waiters(self.lock());
        loop {
            if let Some(sent) = inside.stack.pop_sent() {
                return Some(sent);
            }
            let next = inside.next_timeout()?;
            inside = self.run_until(inside, next);
        }
    }

    /// Returns the number of blocked calls.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.lock().waiters.len()
    }

    /// Advances the clock to `to`, and runs a round.
    fn run_until<'a>(
        &'a self,
        mut inside: MutexGuard<'a, Inside>,
        to: Instant,
    ) -> MutexGuard<'a, Inside> {
        inside.stack.advance_to(to);
        self.run_waiters(inside)
    }

    /// Runs a round after a change of the stack. Does nothing outside of the first thread.
    ///
    /// Wakes all waiting threads. Returns once each has tried its call, and each whose call is over
    /// has read the clock.
    fn run_waiters<'a>(&'a self, mut inside: MutexGuard<'a, Inside>) -> MutexGuard<'a, Inside> {
        if inside.waiters.is_empty() || thread::current().id() != self.first {
            return inside;
        }
        inside.round += 1;
        self.changed.notify_all();
        let (mut inside, late) = self
            .waiter_done
            .wait_timeout_while(inside, RETURN_MAX, |inside| !inside.all_waiters_done())
            .unwrap_or_else(PoisonError::into_inner);
        if late.timed_out() {
            // These threads do not read the clock after their calls. Do not wait for them again.
            inside.waiters.retain(|waiter| !waiter.returning);
        }
        inside
    }
}

impl Inside {
    /// Returns the time of the next timer or timeout of a blocked call.
    fn next_timeout(&self) -> Option<Instant> {
        let deadlines = self.waiters.iter().filter(|waiter| !waiter.returning);
        deadlines
            .filter_map(|waiter| waiter.deadline)
            .chain(self.stack.next_timeout())
            .min()
    }

    /// Returns true if each waiting thread has tried its call in this round, and none has yet to
    /// read the clock.
    fn all_waiters_done(&self) -> bool {
        let done = |waiter: &Waiter| waiter.tried == self.round && !waiter.returning;
        self.waiters.iter().all(done)
    }

    /// Records that the calling thread has tried its call in this round. `over` is true if the call
    /// is over. `returning` is true if, in addition, the thread has yet to read the clock.
    fn note(&mut self, deadline: Option<Instant>, returning: bool, over: bool) {
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
