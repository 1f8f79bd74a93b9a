//! Which descriptors are ours: a lookup without a lock, a few instructions for foreign ones.
//!
//! Sockets and lanes are never freed, only used again, so a reference that a thread still holds
//! while another closes the descriptor stays valid; [`crate::socket::Socket::enter`] notices.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

use crate::{lane::Lane, lock_unsafe::Lock, socket::Socket, static_cell_unsafe::StaticCell};

/// Descriptors above are never ours. (The kernel's own limit, fs.nr_open, is the same by default.)
const DESCRIPTORS_MAX: usize = 1 << 20;
/// Slots of one program above are refused.
const SLOTS_MAX: usize = 1 << 20;
/// Sockets that one process may have under Tidelane's eyes.
const SOCKETS_MAX: usize = 1 << 20;
/// Epoll instances that one process may have under Tidelane's eyes.
const LANES_MAX: usize = 1 << 16;

static SOCKET_OF: [StaticCell<Socket>; DESCRIPTORS_MAX] =
    [const { StaticCell::new() }; DESCRIPTORS_MAX];
static LANE_OF: [StaticCell<Lane>; DESCRIPTORS_MAX] =
    [const { StaticCell::new() }; DESCRIPTORS_MAX];
static SLOT: [StaticCell<Socket>; SLOTS_MAX] = [const { StaticCell::new() }; SLOTS_MAX];
static SOCKET: [StaticCell<Socket>; SOCKETS_MAX] = [const { StaticCell::new() }; SOCKETS_MAX];
static LANE: [StaticCell<Lane>; LANES_MAX] = [const { StaticCell::new() }; LANES_MAX];
/// Descriptors of the library itself, a bit each: programs that close all they find spare them.
static INTERNAL: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];
/// One more than the highest descriptor that was ever ours.
static DESCRIPTOR_END: AtomicI32 = AtomicI32::new(0);

static FREE_SOCKETS: Lock<Pool<Socket>> = Lock::new(Pool::new());
static FREE_LANES: Lock<Pool<Lane>> = Lock::new(Pool::new());

/// Objects for reuse.
#[derive(Debug)]
struct Pool<T: 'static> {
    free: Vec<&'static T>,
    made: u32,
}

impl<T> Pool<T> {
    const fn new() -> Self {
        Self {
            free: Vec::new(),
            made: 0,
        }
    }
}

/// The socket behind a descriptor, if it is ours.
#[inline]
pub fn socket(fd: RawFd) -> Option<&'static Socket> {
    SOCKET_OF.get(fd as usize)?.load()
}

/// The lane of an epoll instance that was made under our eyes.
#[inline]
pub fn lane(epfd: RawFd) -> Option<&'static Lane> {
    LANE_OF.get(epfd as usize)?.load()
}

/// Whether the descriptor belongs to the library itself.
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    let fd = fd as usize;
    INTERNAL
        .get(fd / 64)
        .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// Whether the library has no interest in the descriptor.
#[inline]
pub fn is_foreign(fd: RawFd) -> bool {
    socket(fd).is_none() && lane(fd).is_none() && !is_internal(fd)
}

/// All descriptors that may be ours.
pub(crate) fn descriptors() -> std::ops::Range<RawFd> {
    0..DESCRIPTOR_END.load(Ordering::Acquire)
}

pub(crate) fn set_internal(fd: RawFd, internal: bool) {
    let number = fd as usize;
    let Some(word) = INTERNAL.get(number / 64) else {
        return;
    };
    let bit = 1 << (number % 64);
    if internal {
        word.fetch_or(bit, Ordering::Relaxed);
        note_descriptor(fd);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

fn note_descriptor(fd: RawFd) {
    DESCRIPTOR_END.fetch_max(fd + 1, Ordering::AcqRel);
}

/// Whether `fd` refers to `socket` (still).
#[inline]
pub(crate) fn refers(fd: RawFd, socket: &'static Socket) -> bool {
    SOCKET_OF
        .get(fd as usize)
        .is_some_and(|cell| cell.is(socket))
}

/// Makes `fd` refer to `socket`, or to none of ours. False: the number is too high.
pub(crate) fn set_socket(fd: RawFd, socket: Option<&'static Socket>) -> bool {
    let Some(cell) = SOCKET_OF.get(fd as usize) else {
        return false;
    };
    cell.store(socket);
    note_descriptor(fd);
    true
}

/// Takes the socket away from the descriptor; the caller is the only one who gets it.
pub(crate) fn take_socket(fd: RawFd) -> Option<&'static Socket> {
    SOCKET_OF.get(fd as usize)?.swap(None)
}

/// Makes `epfd` refer to `lane`, or to none. False: the number is too high.
pub(crate) fn set_lane(epfd: RawFd, lane: Option<&'static Lane>) -> bool {
    let Some(cell) = LANE_OF.get(epfd as usize) else {
        return false;
    };
    cell.store(lane);
    note_descriptor(epfd);
    true
}

/// Takes the lane away from the descriptor.
pub(crate) fn take_lane(epfd: RawFd) -> Option<&'static Lane> {
    LANE_OF.get(epfd as usize)?.swap(None)
}

/// The socket that uses a slot.
#[inline]
pub(crate) fn socket_of_slot(slot: u32) -> Option<&'static Socket> {
    SLOT.get(slot as usize)?.load()
}

/// Gives a slot to a socket. False: the number is too high.
pub(crate) fn set_slot(slot: u32, socket: &'static Socket) -> bool {
    let Some(cell) = SLOT.get(slot as usize) else {
        return false;
    };
    cell.store(Some(socket));
    true
}

/// Takes the slot away from `socket`, if it has it (still).
pub(crate) fn clear_slot(slot: u32, socket: &'static Socket) {
    if let Some(cell) = SLOT.get(slot as usize)
        && cell.is(socket)
    {
        cell.store(None);
    }
}

/// A socket by its number.
pub(crate) fn socket_number(number: u32) -> Option<&'static Socket> {
    SOCKET.get(number as usize)?.load()
}

/// A lane by its number.
pub(crate) fn lane_number(number: u32) -> Option<&'static Lane> {
    LANE.get(number as usize)?.load()
}

/// All lanes.
pub(crate) fn lanes() -> impl Iterator<Item = &'static Lane> {
    let made = FREE_LANES.lock().made;
    (0..made).filter_map(lane_number)
}

/// A free socket, new or used before.
pub(crate) fn new_socket() -> Option<&'static Socket> {
    let mut pool = FREE_SOCKETS.lock();
    if let Some(socket) = pool.free.pop() {
        return Some(socket);
    }
    let cell = SOCKET.get(pool.made as usize)?;
    let socket: &'static Socket = Box::leak(Box::new(Socket::new(pool.made)));
    pool.made += 1;
    cell.store(Some(socket));
    Some(socket)
}

/// Nobody refers to the socket by a descriptor any more.
pub(crate) fn free_socket(socket: &'static Socket) {
    FREE_SOCKETS.lock().free.push(socket);
}

/// A free lane, new or used before.
pub(crate) fn new_lane() -> Option<&'static Lane> {
    let mut pool = FREE_LANES.lock();
    if let Some(lane) = pool.free.pop() {
        return Some(lane);
    }
    let cell = LANE.get(pool.made as usize)?;
    let lane: &'static Lane = Box::leak(Box::new(Lane::new(pool.made)));
    pool.made += 1;
    cell.store(Some(lane));
    Some(lane)
}

/// Nobody refers to the lane by a descriptor any more.
pub(crate) fn free_lane(lane: &'static Lane) {
    FREE_LANES.lock().free.push(lane);
}

/// For the child after fork: the pools' locks may be held by threads that do not exist here. What
/// a half-done change lost is a pooled object, no more.
pub(crate) fn reset_after_fork() {
    FREE_SOCKETS.unlock_after_fork();
    FREE_LANES.unlock_after_fork();
}
