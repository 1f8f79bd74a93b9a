//! Where the sockets of this process are found: by descriptor, by slot, by number.

use std::os::fd::RawFd;

use super::Socket;
use crate::table::{Descriptors, Numbers, Pool};

/// Slots of one program above are refused.
const SLOTS_MAX: usize = 1 << 20;
/// Sockets that one process may have under Tidelane's eyes.
const SOCKETS_MAX: usize = 1 << 20;

static OF_DESCRIPTOR: Descriptors<Socket> = Descriptors::new();
static OF_SLOT: Numbers<Socket, SLOTS_MAX> = Numbers::new();
static NUMBERED: Numbers<Socket, SOCKETS_MAX> = Numbers::new();
static FREE: Pool<Socket> = Pool::new();

/// The socket behind a descriptor, if it is ours.
#[inline]
pub(crate) fn of(fd: RawFd) -> Option<&'static Socket> {
    OF_DESCRIPTOR.get(fd)
}

/// Returns true if `fd` refers to `socket` (still).
#[inline]
pub(crate) fn refers(fd: RawFd, socket: &'static Socket) -> bool {
    OF_DESCRIPTOR.refers(fd, socket)
}

/// Makes `fd` refer to `socket`. False: the number is too high.
pub(crate) fn set(fd: RawFd, socket: &'static Socket) -> bool {
    OF_DESCRIPTOR.set(fd, socket)
}

/// Takes the socket away from the descriptor; the caller is the only one who gets it.
pub(crate) fn take(fd: RawFd) -> Option<&'static Socket> {
    OF_DESCRIPTOR.take(fd)
}

/// The socket that uses a slot.
#[inline]
pub(crate) fn of_slot(slot: u32) -> Option<&'static Socket> {
    OF_SLOT.get(slot)
}

/// Gives a slot to a socket.
pub(crate) fn set_slot(slot: u32, socket: &'static Socket) {
    OF_SLOT.set(slot, socket);
}

/// Takes the slot away from `socket`, if it has it (still).
pub(crate) fn clear_slot(slot: u32, socket: &'static Socket) {
    OF_SLOT.clear(slot, socket);
}

/// A socket by its number.
pub(crate) fn numbered(number: u32) -> Option<&'static Socket> {
    NUMBERED.get(number)
}

/// A free socket, new or used before.
pub(crate) fn take_free() -> Option<&'static Socket> {
    FREE.take(&NUMBERED, Socket::new)
}

/// Nobody refers to the socket by a descriptor any more.
pub(crate) fn free(socket: &'static Socket) {
    FREE.free(socket);
}

/// For the child after fork.
pub(crate) fn reset_after_fork() {
    FREE.reset_after_fork();
}
