//! The stack as several threads see it: who waits, who moves the clock, and who waits for whom.

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

/// How long, of real time, the first thread waits for another to come out of its call.
const RETURN_MAX: time::Duration = time::Duration::from_secs(1);

/// A thread in a blocking call.
#[derive(Debug)]
struct Waiter {
    thread: ThreadId,
    /// The round in which it last tried.
    tried: u64,
    /// When it gives up.
    deadline: Option<Instant>,
    /// Its call is over, but it has not taken the time yet.
    returning: bool,
}

#[derive(Debug)]
struct Inside {
    stack: Stack,
    /// Counts changes to the stack.
    round: u64,
    waiters: Vec<Waiter>,
}

/// See the module.
#[derive(Debug)]
pub struct Shared {
    /// The thread that made the interface: it moves the clock.
    first: ThreadId,
    inside: Mutex<Inside>,
    /// The round went on.
    changed: Condvar,
    /// A waiter tried, or took the time.
    settled: Condvar,
}

impl Shared {
    /// The calling thread is the first.
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
            settled: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that does not wait.
    pub fn call<R>(&self, call: impl FnOnce(&mut Stack) -> R) -> R {
        let mut inside = self.lock();
        let result = call(&mut inside.stack);
        drop(self.settle(inside));
        result
    }

    /// A call that waits while it gives EAGAIN: until there is an answer, or `within` has passed,
    /// and then gives `late`.
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
            self.settled.notify_all();
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

    /// Nobody else moves the clock: this call does.
    fn wait_in_first<'a, R>(
        &'a self,
        mut inside: MutexGuard<'a, Inside>,
        deadline: Option<Instant>,
        late: Errno,
        mut attempt: impl FnMut(&mut Stack) -> Answer<R>,
    ) -> Answer<R> {
        loop {
            match attempt(&mut inside.stack) {
                Err(Errno::AGAIN) => inside = self.settle(inside),
                answer => {
                    drop(self.settle(inside));
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
                // It would block for ever.
                None => return Err(Errno::AGAIN),
            }
        }
    }

    /// What `gettimeofday` says. A thread that comes out of a call has its time with this.
    pub fn read_clock_us(&self) -> u64 {
        let mut inside = self.lock();
        let me = thread::current().id();
        let us = inside.stack.read_clock_us();
        inside
            .waiters
            .retain(|waiter| waiter.thread != me || !waiter.returning);
        self.settled.notify_all();
        us
    }

    /// Lets `span` of virtual time pass, with all that is due on the way.
    pub fn sleep(&self, span: Duration) {
        let mut inside = self.settle(self.lock());
        let until = inside.stack.now() + span;
        while let Some(next) = inside.next_timeout().filter(|next| *next <= until) {
            inside = self.run_until(inside, next);
        }
        drop(self.run_until(inside, until));
    }

    /// The next packet out; the clock moves until there is one. `None` if there will be none.
    pub fn next_sent(&self) -> Option<Sent> {
        let mut inside = self.settle(self.lock());
        loop {
            if let Some(sent) = inside.stack.pop_sent() {
                return Some(sent);
            }
            let next = inside.next_timeout()?;
            inside = self.run_until(inside, next);
        }
    }

    /// How many calls wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.lock().waiters.len()
    }

    fn run_until<'a>(
        &'a self,
        mut inside: MutexGuard<'a, Inside>,
        to: Instant,
    ) -> MutexGuard<'a, Inside> {
        inside.stack.advance_to(to);
        self.settle(inside)
    }

    /// The stack may have changed: all waiters try again, and who is done takes the time.
    fn settle<'a>(&'a self, mut inside: MutexGuard<'a, Inside>) -> MutexGuard<'a, Inside> {
        if inside.waiters.is_empty() || thread::current().id() != self.first {
            return inside;
        }
        inside.round += 1;
        self.changed.notify_all();
        let (mut inside, late) = self
            .settled
            .wait_timeout_while(inside, RETURN_MAX, |inside| !inside.is_settled())
            .unwrap_or_else(PoisonError::into_inner);
        if late.timed_out() {
            // A caller that does not ask for the time: nothing to wait for.
            inside.waiters.retain(|waiter| !waiter.returning);
        }
        inside
    }
}

impl Inside {
    fn next_timeout(&self) -> Option<Instant> {
        let deadlines = self.waiters.iter().filter(|waiter| !waiter.returning);
        deadlines
            .filter_map(|waiter| waiter.deadline)
            .chain(self.stack.next_timeout())
            .min()
    }

    fn is_settled(&self) -> bool {
        let settled = |waiter: &Waiter| waiter.tried == self.round && !waiter.returning;
        self.waiters.iter().all(settled)
    }

    /// This thread has tried in this round; is its call over, and has anybody seen it wait?
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
