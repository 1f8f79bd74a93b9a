//! SO_REUSEPORT groups that are left to the kernel.
//!
//! The service gives each listener of a group its share, by a hash. A group whose BPF program
//! chooses the listener is the kernel's as a whole, and so is a group with a listener that has to
//! stay there: the service's listeners would get its share, too. A group is known by the local name
//! of its listeners, to this process and those that it forks.

use std::os::fd::RawFd;

use super::{registry, state::State};
use crate::{
    sys::{self, Address, Lock, StaticCell},
    table,
};

/// Options that attach a program to a group. libc has no name for them.
const PROGRAMS: [i32; 2] = [
    51, // SO_ATTACH_REUSEPORT_CBPF
    52, // SO_ATTACH_REUSEPORT_EBPF
];

/// A group in the list of those that are the kernel's. Never freed.
#[derive(Debug)]
struct Group {
    name: Address,
    next: Option<&'static Group>,
}

/// The groups. The list is whole at any instant, also in the child of a fork.
static KERNELS: StaticCell<Group> = StaticCell::new();
/// Whoever adds a group has this.
static ADDING: Lock<()> = Lock::new(());

/// Returns true if the option attaches a BPF program to a group.
pub(crate) fn is_program(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && PROGRAMS.contains(&name)
}

/// Returns true if the group at the name of `fd` is left to the kernel.
pub(crate) fn is_kernels(fd: RawFd) -> bool {
    sys::local_name(fd).is_ok_and(has)
}

fn has(name: Address) -> bool {
    let mut groups = std::iter::successors(KERNELS.load(), |group| group.next);
    groups.any(|group| group.name == name)
}

/// Leaves the group at the name of `fd` to the kernel, with its listeners of this process. To be
/// called without locks.
pub(crate) fn leave_to_kernel(fd: RawFd) {
    let Ok(name) = sys::local_name(fd) else {
        return;
    };
    if name.port == 0 {
        return;
    }
    add(name);
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd)
            && let Some(mut inner) = socket.enter(fd)
            && let State::Listening(listening) = &mut inner.state
            && sys::local_name(fd) == Ok(name)
        {
            listening.leave_to_kernel();
        }
    }
}

fn add(name: Address) {
    let _adding = ADDING.lock();
    if !has(name) {
        let next = KERNELS.load();
        KERNELS.store(Some(Box::leak(Box::new(Group { name, next }))));
    }
}

/// For the child after fork: another thread may have had the lock.
pub(crate) fn unlock_after_fork() {
    ADDING.unlock_after_fork();
}
