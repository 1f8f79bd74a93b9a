//! The process: what runs at `fork`, in the parent and in the child.
//!
//! Listeners are inherited and taken up again when the child shows interest. Connections are held
//! by both. See `docs/design/fork.md`.

use std::sync::atomic::{AtomicBool, Ordering};

use tidelane_client::Heir;

use super::{bounce, exit};
use crate::{
    readiness::instance,
    service::{exceptions, lanes, outage, session},
    socket::{groups, registry, sharing},
    sys::{self, Lock, section_unsafe},
    table,
};

/// The fork handlers are installed.
static WATCHING_FORK: AtomicBool = AtomicBool::new(false);

/// Heirs of forks that are under way, by the forking thread.
static FORKING: Lock<Vec<(usize, Heir)>> = Lock::new(Vec::new());

/// Returns true if this is the process that the library's tables are about, and not a child between
/// `vfork` and `exec`, which shares its memory.
pub fn owns_tables() -> bool {
    session::owns_tables()
}

/// This process keeps track of sockets from now on.
pub(crate) fn start_tracking() {
    session::own_tables();
    exceptions::prepare();
    if !WATCHING_FORK.swap(true, Ordering::Relaxed) {
        sys::at_fork(before, in_parent, in_child);
    }
}

/// A child is about to be made without the handlers. Returns true if `after_fork` has to be called.
pub fn before_fork() -> bool {
    let watches = WATCHING_FORK.load(Ordering::Relaxed) && session::owns_tables();
    if watches {
        before();
    }
    watches
}

/// The reverse of `before_fork`, in both processes, and also if there is no child.
pub fn after_fork(in_the_child: bool) {
    if in_the_child {
        in_child();
    } else {
        in_parent();
    }
}

/// Runs before `fork`, in the thread that calls it.
extern "C" fn before() {
    // No handler runs from here on until one of the two below has run.
    section_unsafe::enter();
    let mut any = false;
    for fd in table::descriptors() {
        any |= registry::of(fd).is_some_and(sharing::share);
    }
    if any && let Some(heir) = session::make_heir() {
        table::set_internal(heir.descriptor(), true);
        FORKING.lock().push((sys::thread_identity(), heir));
    }
}

/// Runs after `fork` in the parent, also if there is no child.
extern "C" fn in_parent() {
    drop(take_heir());
    section_unsafe::leave();
}

/// The heir that was made for the child of this thread.
fn take_heir() -> Option<Heir> {
    let me = sys::thread_identity();
    let mut forking = FORKING.lock();
    let at = forking.iter().rposition(|(thread, _)| *thread == me)?;
    let (_, heir) = forking.swap_remove(at);
    table::set_internal(heir.descriptor(), false);
    Some(heir)
}

/// Runs in the child, which has this one thread.
extern "C" fn in_child() {
    FORKING.unlock_after_fork();
    let heir = take_heir();
    // Heirs of other threads, which fork at this moment, belong to children other than this one.
    for (_, other) in std::mem::take(&mut *FORKING.lock()) {
        table::set_internal(other.descriptor(), false);
    }
    outage::reset_after_fork();
    groups::unlock_after_fork();
    session::reset_after_fork();
    exit::reset_after_fork();
    bounce::reset_after_fork();
    registry::reset_after_fork();
    lanes::reset_after_fork();
    instance::reset_after_fork();
    let inherits = heir.is_some();
    if let Some(heir) = heir {
        session::set_heir(heir);
    }
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd) {
            sharing::inherit(socket, inherits);
        }
    }
    section_unsafe::leave();
}
