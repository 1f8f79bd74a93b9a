//! Lookup of the sockets of this process by descriptor, by slot and by number. A slot is the record
//! of a connection in the memory that this process shares with the service (the process
//! `tidelaned`).

use std::os::fd::RawFd;

use super::Socket;
use crate::table::{DescriptorTable, NumberTable, Pool};

/// Number of slots for which the table `BY_SLOT` has room.
const SLOTS_MAX: usize = 1 << 20;
/// Largest number of tracked sockets in a process. A tracked socket is a TCP socket of the program
/// that this crate may accelerate.
const SOCKETS_MAX: usize = 1 << 20;

/// Sockets by the descriptors that refer to them.
static BY_DESCRIPTOR: DescriptorTable<Socket> = DescriptorTable::new();
/// Sockets by the slots of their connections.
static BY_SLOT: NumberTable<Socket, SLOTS_MAX> = NumberTable::new();
/// Sockets by their own numbers.
static BY_NUMBER: NumberTable<Socket, SOCKETS_MAX> = NumberTable::new();
/// The pool of unused sockets.
static FREE: Pool<Socket> = Pool::new();

/// Returns the tracked socket that a descriptor refers to.
#[inline]
pub(crate) fn of(fd: RawFd) -> Option<&'static Socket> {
    BY_DESCRIPTOR.get(fd)
}

/// Returns true if `fd` still refers to `socket`.
#[inline]
pub(crate) fn refers(fd: RawFd, socket: &'static Socket) -> bool {
    BY_DESCRIPTOR.refers(fd, socket)
}

/// Makes `fd` refer to `socket`. Returns false if the number `fd` is too high for the table.
pub(crate) fn set(fd: RawFd, socket: &'static Socket) -> bool {
    BY_DESCRIPTOR.set(fd, socket)
}

/// Clears the descriptor and returns its socket. Of several threads, only one gets the socket.
pub(crate) fn take(fd: RawFd) -> Option<&'static Socket> {
    BY_DESCRIPTOR.take(fd)
}

/// Returns the socket whose connection has this slot.
#[inline]
pub(crate) fn of_slot(slot: u32) -> Option<&'static Socket> {
    BY_SLOT.get(slot)
}

/// Assigns a slot to a socket.
pub(crate) fn set_slot(slot: u32, socket: &'static Socket) {
    BY_SLOT.set(slot, socket);
}

/// Clears the slot if it still belongs to `socket`.
pub(crate) fn clear_slot(slot: u32, socket: &'static Socket) {
    BY_SLOT.clear(slot, socket);
}

/// Returns the socket with this number.
pub(crate) fn numbered(number: u32) -> Option<&'static Socket> {
    BY_NUMBER.get(number)
}

/// Takes a socket from the pool, or creates a socket. Returns `None` at [`SOCKETS_MAX`].
pub(crate) fn take_free() -> Option<&'static Socket> {
    FREE.take(&BY_NUMBER, Socket::new)
}

/// Returns to the pool a socket that no descriptor refers to any more.
pub(crate) fn free(socket: &'static Socket) {
    FREE.free(socket);
}

/// Releases the lock of the pool in a child after fork, because a thread that does not exist in the
/// child may hold it.
pub(crate) fn reset_after_fork() {
    FREE.reset_after_fork();
}
