//! `fork`: the handlers that run before `fork` in the parent, and after `fork` in the parent and in
//! the child.
//!
//! Parent and child share the connections (see `docs/design/fork.md`). The child inherits the
//! listeners. When the child first uses a listener, the child asks the service (the process
//! `tidelaned`) to listen for the child, too. A session is the registration of a process with the
//! service. If the parent has an accelerated connection, or a listener that is not left to the
//! kernel, the parent prepares the child's session before the fork.
//!
//! A tracked descriptor is a descriptor of a TCP socket or an epoll instance of the program. Tables
//! map each tracked descriptor to the state that this crate keeps for the socket or the instance.

use std::sync::atomic::{AtomicBool, Ordering};

use tidelane_client::ChildSession;

use super::{bounce, exit};
use crate::{
    readiness::instance,
    service::{channels, exceptions, outage, session, thread_channels},
    socket::{groups, registry, sharing},
    sys::{self, Lock, section_unsafe},
    table,
};

/// True after the fork handlers were installed.
static HANDLERS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The prepared sessions for the children of forks in progress. The number beside a session is the
/// identity of the thread that forks.
static FORKING: Lock<Vec<(usize, ChildSession)>> = Lock::new(Vec::new());

/// Returns true if the tables of tracked descriptors describe this process. Returns false in a
/// child between `vfork` and `exec`: the child shares the memory of its parent, so the tables
/// describe the parent.
pub fn owns_tables() -> bool {
    session::owns_tables()
}

/// Prepares this process for tracking sockets: the tables get an owner, and the fork handlers are
/// installed.
pub(crate) fn start_tracking() {
    session::own_tables();
    exceptions::prepare();
    if !HANDLERS_INSTALLED.swap(true, Ordering::Relaxed) {
        sys::at_fork(before, in_parent, in_child);
    }
}

/// Prepares a fork for which libc does not run the handlers (`_Fork`, `clone`). Returns true if the
/// caller has to call `after_fork`.
pub fn before_fork() -> bool {
    let installed = HANDLERS_INSTALLED.load(Ordering::Relaxed) && session::owns_tables();
    if installed {
        before();
    }
    installed
}

/// Completes a fork that `before_fork` prepared. The caller calls this function in the parent, and
/// also in the child if the fork succeeded.
pub fn after_fork(in_the_child: bool) {
    if in_the_child {
        in_child();
    } else {
        in_parent();
    }
}

/// Runs before `fork`, in the thread that calls `fork`.
extern "C" fn before() {
    // Signals are deferred, with few exceptions, until `in_parent` or `in_child` has run.
    section_unsafe::enter();
    let mut any = false;
    for fd in table::descriptors() {
        any |= registry::of(fd).is_some_and(sharing::share);
    }
    if any && let Some(child) = session::prepare_child_session() {
        table::set_internal(child.descriptor(), true);
        FORKING.lock().push((sys::thread_identity(), child));
    }
}

/// Runs after `fork` in the parent, also if the fork failed.
extern "C" fn in_parent() {
    drop(take_child_session());
    section_unsafe::leave();
}

/// Takes the session that this thread has prepared for the child that it forks.
fn take_child_session() -> Option<ChildSession> {
    let me = sys::thread_identity();
    let mut forking = FORKING.lock();
    let at = forking.iter().rposition(|(thread, _)| *thread == me)?;
    let (_, child) = forking.swap_remove(at);
    table::set_internal(child.descriptor(), false);
    Some(child)
}

/// Runs after `fork` in the child. The thread that called `fork` is the child's only thread.
extern "C" fn in_child() {
    FORKING.unlock_after_fork();
    let child = take_child_session();
    // Other threads of the parent prepared the remaining sessions for other children. Close this
    // process's copies.
    for (_, other) in std::mem::take(&mut *FORKING.lock()) {
        table::set_internal(other.descriptor(), false);
    }
    outage::reset_after_fork();
    groups::unlock_after_fork();
    session::reset_after_fork();
    exit::reset_after_fork();
    bounce::reset_after_fork();
    registry::reset_after_fork();
    channels::reset_after_fork();
    thread_channels::reset_after_fork();
    instance::reset_after_fork();
    let inherits = child.is_some();
    if let Some(child) = child {
        session::set_child_session(child);
    }
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd) {
            sharing::inherit(socket, inherits);
        }
    }
    section_unsafe::leave();
}
