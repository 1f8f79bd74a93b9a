//! SO_REUSEPORT groups that are left to the kernel.
//!
//! For each connection, the service (the process `tidelaned`) selects a listener of the group by a
//! hash. The whole group is left to the kernel in two cases:
//!
//! * A BPF program, which the service cannot run, selects the listener for each connection.
//! * One listener of the group has to stay with the kernel because of a socket option. If the
//!   service had the rest of the group, this listener would get no connections, because the service
//!   gets the packets first.
//!
//! Within this process and the processes that it forks, the local address of the listeners
//! identifies a group.

use std::os::fd::RawFd;

use super::{registry, state::State};
use crate::{
    sys::{self, Address, Lock, StaticCell},
    table,
};

/// Options that attach a BPF program to a group. The crate `libc` does not define these options.
const PROGRAMS: [i32; 2] = [
    51, // SO_ATTACH_REUSEPORT_CBPF
    52, // SO_ATTACH_REUSEPORT_EBPF
];

/// A group that is left to the kernel, as a node of a linked list. Nodes are never freed.
#[derive(Debug)]
struct Group {
    /// The local address of the group's listeners.
    name: Address,
    next: Option<&'static Group>,
}

/// The list of groups. Each change is one atomic store, so a fork at any time leaves a valid list
/// in the child.
static KERNEL_GROUPS: StaticCell<Group> = StaticCell::new();
/// Serialises the threads that add a group.
static ADDING: Lock<()> = Lock::new(());

/// Returns true if the option attaches a BPF program to a group.
pub(crate) fn is_program(level: i32, name: i32) -> bool {
    level == libc::SOL_SOCKET && PROGRAMS.contains(&name)
}

/// Returns true if the group with the local address of `fd` is left to the kernel.
pub(crate) fn is_kernel_only(fd: RawFd) -> bool {
    sys::local_name(fd).is_ok_and(has)
}

fn has(name: Address) -> bool {
    let mut groups = std::iter::successors(KERNEL_GROUPS.load(), |group| group.next);
    groups.any(|group| group.name == name)
}

/// Leaves the group with the local address of `fd` to the kernel, together with this process's
/// listeners of the group. Does nothing if `fd` has no local port. The caller must not hold a lock.
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
        let next = KERNEL_GROUPS.load();
        KERNEL_GROUPS.store(Some(Box::leak(Box::new(Group { name, next }))));
    }
}

/// Releases the lock in a child after fork, because another thread of the parent may have held it.
pub(crate) fn unlock_after_fork() {
    ADDING.unlock_after_fork();
}
