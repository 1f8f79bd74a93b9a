//! The open contexts of each thread, by handle. A context of the ring API is the set of TCP and UDP
//! sockets of one thread.
//!
//! The upper 32 bits of a handle are the number of the thread, and the lower 32 bits are the number
//! of the context. Within a process, each thread number and each context number is used once. A
//! thread finds its own contexts only, so that two threads never use the same context.

use std::{
    cell::{Cell, RefCell},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{back_end::BackEndOptions, error::Error, fork_unsafe, session::Session};

/// Number that was most recently given to a thread. Zero before the first thread.
static THREADS: AtomicU32 = AtomicU32::new(0);
/// Number that was most recently given to a context. Zero before the first context.
static CONTEXTS: AtomicU32 = AtomicU32::new(0);
/// True if [`on_fork`] is registered, false if the registration failed. Set by the first [`open`].
static FORK_HANDLER: OnceLock<bool> = OnceLock::new();

thread_local! {
    static THREAD: Thread = const { Thread::new() };
}

/// A thread, with its open contexts.
struct Thread {
    /// Number of the thread; zero until the thread first opens a context.
    number: Cell<u32>,
    /// The open contexts, each with its handle.
    contexts: RefCell<Vec<(u64, Session)>>,
}

impl Thread {
    const fn new() -> Self {
        Self {
            number: Cell::new(0),
            contexts: RefCell::new(Vec::new()),
        }
    }

    fn open(&self, options: &BackEndOptions) -> Result<u64, Error> {
        let mut contexts = self
            .contexts
            .try_borrow_mut()
            .map_err(|_| Error::INTERRUPTED_CALL)?;
        if self.number.get() == 0 {
            self.number.set(next(&THREADS).ok_or(Error::CONTEXTS)?);
        }
        let number = next(&CONTEXTS).ok_or(Error::CONTEXTS)?;
        let handle = u64::from(self.number.get()) << 32 | u64::from(number);
        contexts.push((handle, Session::new(options.open()?, number)));
        Ok(handle)
    }

    fn close(&self, handle: u64) -> Result<(), Error> {
        let mut contexts = self.contexts_of(handle)?;
        let at = contexts.iter().position(|(open, _)| *open == handle);
        let closed = contexts.swap_remove(at.ok_or(Error::CONTEXT)?);
        drop(contexts);
        drop(closed);
        Ok(())
    }

    fn with<R>(
        &self,
        handle: u64,
        call: impl FnOnce(&mut Session) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut contexts = self.contexts_of(handle)?;
        let found = contexts.iter_mut().find(|(open, _)| *open == handle);
        call(&mut found.ok_or(Error::CONTEXT)?.1)
    }

    /// Returns the contexts of this thread. Fails if the handle names another thread or no thread.
    fn contexts_of(
        &self,
        handle: u64,
    ) -> Result<std::cell::RefMut<'_, Vec<(u64, Session)>>, Error> {
        let thread = (handle >> 32) as u32;
        if thread == 0 || thread > THREADS.load(Ordering::Relaxed) {
            return Err(Error::CONTEXT);
        }
        if thread != self.number.get() {
            return Err(Error::THREAD);
        }
        self.contexts
            .try_borrow_mut()
            .map_err(|_| Error::INTERRUPTED_CALL)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // After `fork`, a child process has copies of its parent's contexts. The handles of the
        // copies have the parent's thread number. Leak the copies, because their drop would close
        // the parent's connections or cancel the parent's I/O requests.
        for (handle, session) in self.contexts.get_mut().drain(..) {
            if (handle >> 32) as u32 != self.number.get() {
                std::mem::forget(session);
            }
        }
    }
}

/// Increments `counter` and returns the new number; `None` if all numbers are used.
fn next(counter: &AtomicU32) -> Option<u32> {
    let add = |number: u32| number.checked_add(1);
    let before = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    before.ok().map(|before| before + 1)
}

/// Runs in the only thread of a child process after `fork`. Gives this thread a new number, so that
/// the child cannot use the contexts of its parent.
extern "C" fn on_fork() {
    let _ = THREAD.try_with(|thread| {
        if thread.number.get() != 0 {
            thread.number.set(next(&THREADS).unwrap_or(0));
        }
    });
}

/// Opens a context. Returns its handle.
pub fn open(options: &BackEndOptions) -> Result<u64, Error> {
    if !FORK_HANDLER.get_or_init(|| fork_unsafe::call_in_child(on_fork)) {
        return Err(Error::CONTEXTS);
    }
    THREAD
        .try_with(|thread| thread.open(options))
        .unwrap_or(Err(Error::CONTEXT))
}

/// Closes a context, with all its descriptors and buffers.
pub fn close(handle: u64) -> Result<(), Error> {
    THREAD
        .try_with(|thread| thread.close(handle))
        .unwrap_or(Err(Error::CONTEXT))
}

/// Calls a function with the open context that has this handle.
pub fn with<R>(
    handle: u64,
    call: impl FnOnce(&mut Session) -> Result<R, Error>,
) -> Result<R, Error> {
    THREAD
        .try_with(|thread| thread.with(handle, call))
        .unwrap_or(Err(Error::CONTEXT))
}
