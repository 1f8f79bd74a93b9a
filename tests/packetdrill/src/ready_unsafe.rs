//! The functions `poll`, `epoll_*`, `pipe` and `splice` of packetdrill's interface, a table of C
//! functions for a stack under test.

use std::{
    ffi::{c_int, c_uint, c_void},
    slice,
};

use libc::{epoll_event, loff_t, nfds_t, pollfd, size_t, ssize_t};

use crate::{
    c_unsafe::{bytes_mut, kernel, new_descriptor, return_status, return_value, stack},
    calls::Polled,
    epoll::Ready,
    errno::{CallResult, Errno},
    shared::Shared,
    stack::Fd,
};

/// The `userdata` pointer of the interface, which points to the [`Shared`] stack.
type User = *mut c_void;

/// Returns the ready events of a descriptor that the stack does not own: POLLIN, POLLOUT and
/// errors. Does not block.
fn poll_kernel(fd: Fd) -> u32 {
    let mut entry = pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the pointer is to one valid entry.
    unsafe { libc::poll(&mut entry, 1, 0) };
    u32::from(entry.revents as u16)
}

// SAFETY (of the `extern "C"` functions below): packetdrill passes the `userdata` of the interface,
// and the pointers that the system call of the same name takes.

pub unsafe extern "C" fn poll(user: User, to: *mut pollfd, count: nfds_t, ms: c_int) -> c_int {
    // SAFETY: by the contract above.
    let (shared, entries) = unsafe {
        let entries = match count {
            0 => &mut [],
            count => slice::from_raw_parts_mut(to, count as usize),
        };
        (stack(user), entries)
    };
    let asked = |entry: &pollfd| Polled {
        fd: entry.fd,
        events: u32::from(entry.events as u16),
    };
    let asked: Vec<Polled> = entries.iter().map(asked).collect();
    let ready = shared.poll(&asked, ms, poll_kernel);
    for (entry, events) in entries.iter_mut().zip(&ready) {
        entry.revents = *events as i16;
    }
    ready.iter().filter(|events| **events != 0).count() as c_int
}

pub unsafe extern "C" fn epoll_create(user: User, size: c_int) -> c_int {
    if size <= 0 {
        return return_status(Err(Errno::INVAL));
    }
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let make = |fd| {
        shared.call(|stack| stack.epoll_create(fd));
        Ok(())
    };
    return_value(new_descriptor(make)) as c_int
}

pub unsafe extern "C" fn epoll_ctl(
    user: User,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: by the contract above.
    let (shared, ready) = unsafe {
        let (events, data) = match event.is_null() {
            true => (0, 0),
            false => ((*event).events, (*event).u64),
        };
        (stack(user), Ready { events, data })
    };
    return_status(shared.call(|stack| stack.epoll_control(epoll, operation, fd, ready)))
}

pub unsafe extern "C" fn epoll_wait(
    user: User,
    epoll: c_int,
    to: *mut epoll_event,
    max: c_int,
    ms: c_int,
) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let result = shared.epoll_wait(epoll, max.max(0) as usize, ms);
    return_value(result.map(|ready| {
        for (at, ready) in ready.iter().enumerate() {
            let event = epoll_event {
                events: ready.events,
                u64: ready.data,
            };
            // SAFETY: by the contract above; `epoll_wait` returns at most `max` entries.
            unsafe { to.add(at).write_unaligned(event) };
        }
        ready.len()
    })) as c_int
}

pub unsafe extern "C" fn pipe(_user: User, ends: *mut c_int) -> c_int {
    // SAFETY: by the contract above.
    unsafe { libc::pipe(ends) }
}

pub unsafe extern "C" fn splice(
    user: User,
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let (source, sink) = shared.call(|stack| (stack.has_socket(from), stack.has_socket(to)));
    let flags_of_socket = match flags & libc::SPLICE_F_NONBLOCK {
        0 => 0,
        _ => libc::MSG_DONTWAIT,
    };
    return_value(match (source, sink) {
        (true, false) => into_pipe(shared, from, to, len, flags_of_socket),
        (false, true) => out_of_file(shared, from, to, len, flags_of_socket),
        // SAFETY: by the contract above.
        (false, false) => unsafe { kernel(libc::splice(from, from_at, to, to_at, len, flags)) },
        (true, true) => Err(Errno::INVAL),
    })
}

/// Moves bytes from the socket `from` into the pipe `to`: at most `len` bytes, and at most the
/// capacity of an empty pipe. Received bytes that the pipe does not accept are lost.
fn into_pipe(shared: &Shared, from: Fd, to: Fd, len: usize, flags: c_int) -> CallResult<usize> {
    // SAFETY: this request takes no pointer.
    let room = kernel(unsafe { libc::fcntl(to, libc::F_GETPIPE_SZ) } as isize)?;
    let received = shared.recv(from, len.min(room), flags)?.bytes;
    // SAFETY: the pointer and length are those of a vector.
    kernel(unsafe { libc::write(to, received.as_ptr().cast(), received.len()) })
}

/// Moves at most `len` bytes from the pipe or file `from` to the socket `to`. Bytes that the socket
/// does not accept are lost.
///
/// The send blocks until the socket has accepted all bytes, or until the send times out or fails.
/// If `flags` has MSG_DONTWAIT or the socket has O_NONBLOCK, the send does not block.
pub(crate) fn out_of_file(
    shared: &Shared,
    from: Fd,
    to: Fd,
    len: usize,
    flags: c_int,
) -> CallResult<usize> {
    let mut buffer = vec![0; len];
    // SAFETY: the pointer and length are those of a buffer.
    let got = unsafe {
        let room = bytes_mut(buffer.as_mut_ptr().cast(), len);
        kernel(libc::read(from, room.as_mut_ptr().cast(), len))?
    };
    shared.send(to, &buffer[..got], flags)
}
