//! The functions that read and write bytes, such as `recvmsg`, in packetdrill's interface for
//! stacks under test.
//!
//! `read`, `readv`, `write` and `writev` on a descriptor that the stack does not own go to the
//! kernel.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::{
    address::{self, Address},
    c_unsafe::{bytes, bytes_mut, copy_out, return_value, stack},
    errno::{CallResult, Errno},
    error_queue::{self, Control},
    shared::Shared,
    stack::Fd,
    transfer::Received,
};

/// The `userdata` pointer of the interface, which points to the [`Shared`] stack.
type User = *mut c_void;

/// Maximum number of page fragments in a Linux skb (MAX_SKB_FRAGS), and therefore of the I/O
/// vectors that one skb can reference for a zero-copy write.
const PARTS_MAX: usize = 17;

/// Receives bytes and scatters them over the I/O vectors `parts`.
///
/// # Safety
///
/// Each part is valid for writing.
unsafe fn receive(shared: &Shared, fd: Fd, parts: &[iovec], flags: c_int) -> CallResult<Received> {
    check(parts)?;
    let len = parts.iter().map(|part| part.iov_len).sum();
    let received = shared.recv(fd, len, flags)?;
    let mut rest = received.bytes.as_slice();
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(part.iov_len));
        // SAFETY: guaranteed by the caller.
        unsafe { bytes_mut(part.iov_base, now.len()) }.copy_from_slice(now);
        rest = later;
    }
    Ok(received)
}

/// Gathers the I/O vectors `parts` and sends their bytes.
///
/// # Safety
///
/// Each part is valid for reading.
unsafe fn transmit(shared: &Shared, fd: Fd, parts: &[iovec], flags: c_int) -> CallResult<usize> {
    // SAFETY: guaranteed by the caller.
    unsafe { transmit_to(shared, fd, parts, flags, None) }
}

/// Gathers the I/O vectors `parts` and sends their bytes. With MSG_FASTOPEN, `to` is the
/// destination.
///
/// A zero-copy write of more than [`PARTS_MAX`] parts is sent as several records (as if by several
/// writes with MSG_EOR), because Linux starts a new skb after this number of page fragments. A
/// write is zero-copy if it has MSG_ZEROCOPY and the socket has SO_ZEROCOPY.
///
/// # Safety
///
/// Each part is valid for reading.
unsafe fn transmit_to(
    shared: &Shared,
    fd: Fd,
    parts: &[iovec],
    flags: c_int,
    to: Option<Address>,
) -> CallResult<usize> {
    check(parts)?;
    let asked = shared.call(|stack| {
        let options = &stack.socket(fd)?.options;
        Ok(options.is_on(libc::SOL_SOCKET, libc::SO_ZEROCOPY))
    })?;
    if parts.len() > PARTS_MAX && asked && flags & libc::MSG_ZEROCOPY != 0 {
        let (now, later) = parts.split_at(PARTS_MAX);
        let ends = flags & !libc::MSG_ZEROCOPY | libc::MSG_EOR;
        // SAFETY: guaranteed by the caller.
        return unsafe {
            let sent = transmit_to(shared, fd, now, ends, to)?;
            Ok(sent + transmit(shared, fd, later, flags)?)
        };
    }
    // SAFETY: guaranteed by the caller.
    let gather = |part: &iovec| unsafe { bytes(part.iov_base, part.iov_len) }.to_vec();
    let all: Vec<u8> = parts.iter().flat_map(gather).collect();
    shared.send_to(fd, &all, flags, to)
}

/// Fails with EFAULT if the pointer of a non-empty part is null. Scripts pass null to test EFAULT.
fn check(parts: &[iovec]) -> CallResult<()> {
    let bad = |part: &iovec| part.iov_base.is_null() && part.iov_len > 0;
    match parts.iter().any(bad) {
        true => Err(Errno(libc::EFAULT)),
        false => Ok(()),
    }
}

/// Returns the I/O vectors of a message as a slice.
///
/// # Safety
///
/// `parts` is valid for reading `count` entries, or null.
unsafe fn parts<'a>(parts: *const iovec, count: usize) -> &'a [iovec] {
    if parts.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(parts, count) }
}

/// Returns the I/O vector of `len` bytes at `base`.
const fn part(base: *mut c_void, len: usize) -> iovec {
    iovec {
        iov_base: base,
        iov_len: len,
    }
}

// SAFETY (of all `extern "C"` functions below): packetdrill passes the `userdata` of the interface,
// and the pointers that the system call with the name of the function takes.

pub unsafe extern "C" fn read(user: User, fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let shared = stack(user);
        if !shared.call(|stack| stack.has(fd)) {
            return libc::read(fd, to, len);
        }
        let received = receive(shared, fd, &[part(to, len)], 0);
        return_value(received.map(|received| received.bytes.len()))
    }
}

pub unsafe extern "C" fn readv(user: User, fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let shared = stack(user);
        if !shared.call(|stack| stack.has(fd)) {
            return libc::readv(fd, to, count);
        }
        let received = receive(shared, fd, parts(to, count as usize), 0);
        return_value(received.map(|received| received.bytes.len()))
    }
}

pub unsafe extern "C" fn recv(
    user: User,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the contract above.
    let received = unsafe { receive(stack(user), fd, &[part(to, len)], flags) };
    return_value(received.map(|received| received.bytes.len()))
}

pub unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let shared = stack(user);
        let received = receive(shared, fd, &[part(to, len)], flags);
        let peer = shared.call(|stack| {
            let socket = stack.socket(fd).ok()?;
            Some(address::emit(socket.peer?, socket.domain))
        });
        if let (Ok(_), Some(peer)) = (&received, peer) {
            copy_out(&peer, from.cast(), from_len, true);
        }
        return_value(received.map(|received| received.bytes.len()))
    }
}

pub unsafe extern "C" fn recvmsg(
    user: User,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let shared = stack(user);
        let message = &mut *message;
        if flags & libc::MSG_ERRQUEUE != 0 {
            let entry = shared.call(|stack| stack.recv_error_queue(fd));
            return return_value(entry.map(|(control, flags)| {
                copy_control(message, &control, flags);
                0
            }));
        }
        let to = parts(message.msg_iov, message.msg_iovlen);
        let received = receive(shared, fd, to, flags);
        return_value(received.map(|received| {
            let left = shared.call(|stack| stack.left_to_read(fd, received.left));
            copy_control(message, left.as_slice(), 0);
            received.bytes.len()
        }))
    }
}

/// Writes the control messages `control` to the control buffer of `message`, and sets the flags of
/// `message` to `flags`. Sets MSG_CTRUNC if the control messages do not fit.
///
/// # Safety
///
/// `msg_control` is valid for writing `msg_controllen` bytes, or null.
unsafe fn copy_control(message: &mut msghdr, control: &[Control], flags: c_int) {
    let bytes = error_queue::emit(control);
    let room = match message.msg_control.is_null() {
        true => 0,
        false => message.msg_controllen.min(bytes.len()),
    };
    // SAFETY: guaranteed by the caller.
    unsafe { bytes_mut(message.msg_control, room) }.copy_from_slice(&bytes[..room]);
    let cut = if room < bytes.len() {
        libc::MSG_CTRUNC
    } else {
        0
    };
    (message.msg_controllen, message.msg_flags) = (room, flags | cut);
}

pub unsafe extern "C" fn write(user: User, fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let shared = stack(user);
        if !shared.call(|stack| stack.has(fd)) {
            return libc::write(fd, from, len);
        }
        return_value(transmit(shared, fd, &[part(from.cast_mut(), len)], 0))
    }
}

pub unsafe extern "C" fn writev(
    user: User,
    fd: c_int,
    from: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let shared = stack(user);
        if !shared.call(|stack| stack.has(fd)) {
            return libc::writev(fd, from, count);
        }
        return_value(transmit(shared, fd, parts(from, count as usize), 0))
    }
}

pub unsafe extern "C" fn send(
    user: User,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the contract above.
    return_value(unsafe { transmit(stack(user), fd, &[part(from.cast_mut(), len)], flags) })
}

pub unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let to = destination(to.cast(), to_len, flags);
        let from = part(from.cast_mut(), len);
        return_value(to.and_then(|to| transmit_to(stack(user), fd, &[from], flags, to)))
    }
}

/// Returns the address at `to` if `to` is not null and `flags` has MSG_FASTOPEN. Without
/// MSG_FASTOPEN the address is ignored, as Linux ignores it for a connected TCP socket.
///
/// # Safety
///
/// `to` is valid for reading `len` bytes, or null.
unsafe fn destination(
    to: *const c_void,
    len: socklen_t,
    flags: c_int,
) -> CallResult<Option<Address>> {
    if to.is_null() || flags & libc::MSG_FASTOPEN == 0 {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    address::parse(unsafe { bytes(to, len as usize) }).map(Some)
}

pub unsafe extern "C" fn sendmsg(
    user: User,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the contract above.
    unsafe {
        let message = &*message;
        let from = parts(message.msg_iov, message.msg_iovlen);
        let to = destination(message.msg_name, message.msg_namelen, flags);
        return_value(to.and_then(|to| transmit_to(stack(user), fd, from, flags, to)))
    }
}
