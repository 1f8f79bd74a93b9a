//! The functions of `tidelane_rings.h`. Each function trusts its pointers, as C functions do, and
//! checks all numbers. A panic ends the process, because C cannot unwind.
//!
//! A context is the set of TCP and UDP sockets of one thread. A descriptor names a socket within
//! its context, and is not a file descriptor. The ready list is the result of `tlr_sync` or
//! `tlr_rx_sync`: an entry for each descriptor with events, and a slot for each received buffer.
//!
//! "The caller's promise" in the comments is the section *Safety* of the function.

use std::ffi::{c_char, c_void};

use libc::{sockaddr, socklen_t};

use crate::{
    address_unsafe,
    error::{self, Error},
    opened, options_unsafe,
    types::{CEntry, CSlot, Counters, Options},
};

/// Converts the result of a call for C: a number, or a negative errno.
fn number(result: Result<i32, Error>) -> i32 {
    result.unwrap_or_else(Error::report)
}

/// Converts the result of a call for C: 0, or a negative errno.
fn status(result: Result<(), Error>) -> i32 {
    number(result.map(|()| 0))
}

/// Converts the result of a call for C: a 64-bit number, or a negative errno.
fn large_number(result: Result<i64, Error>) -> i64 {
    result.unwrap_or_else(|error| error.report().into())
}

/// Writes `value` to `to`, for the program. Returns an error if `to` is null.
///
/// # Safety
///
/// `to` is null or has room for the value.
unsafe fn write<T>(to: *mut T, value: T) -> Result<(), Error> {
    if to.is_null() {
        return Err(Error::POINTER);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Opens a context. Writes its handle to `context`.
///
/// # Safety
///
/// `options` is null or points to valid options. Each text pointer in the options is null or points
/// to a NUL-terminated string. `context` is null or has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_open_context(options: *const Options, context: *mut u64) -> i32 {
    if context.is_null() {
        return Error::POINTER.report();
    }
    // SAFETY: the caller's promise.
    let options = unsafe { options_unsafe::read(options) };
    let opened = options.and_then(|options| opened::open(&options));
    // SAFETY: the caller's promise.
    status(opened.and_then(|handle| unsafe { write(context, handle) }))
}

/// Writes the text of this thread's most recent failed call to `text`. At most `size` bytes are
/// written, including a zero at the end. Returns the length of the whole text, without the zero.
///
/// # Safety
///
/// `text` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_error_text(text: *mut c_char, size: u32) -> i32 {
    let copied = error::last_text(|last| {
        if !text.is_null() && size > 0 {
            let len = last.len().min(size as usize - 1);
            // SAFETY: the caller's promise. The library owns `last`, so `text` does not overlap it.
            unsafe {
                text.cast::<u8>()
                    .copy_from_nonoverlapping(last.as_ptr(), len);
                text.add(len).write(0);
            }
        }
        last.len() as i32
    });
    // A failure of this function does not replace the text.
    copied.unwrap_or_else(|error| -error.errno())
}

/// Closes a context.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_close_context(context: u64) -> i32 {
    status(opened::close(context))
}

/// Writes the counters of a context to `counters`.
///
/// # Safety
///
/// `counters` is null or has room for the counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_counters(context: u64, counters: *mut Counters) -> i32 {
    let read = opened::with(context, |session| Ok(session.counters()));
    // SAFETY: the caller's promise.
    status(read.and_then(|value| unsafe { write(counters, value) }))
}

/// Opens a listener. Returns its descriptor.
///
/// # Safety
///
/// `local` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_listen(
    context: u64,
    local: *const sockaddr,
    len: socklen_t,
    backlog: u32,
) -> i32 {
    number(opened::with(context, |session| {
        // SAFETY: the caller's promise.
        let local = unsafe { address_unsafe::read(local, len) }?;
        session.listen(local, backlog)
    }))
}

/// Starts a connection. Returns its descriptor.
///
/// # Safety
///
/// `peer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_connect(context: u64, peer: *const sockaddr, len: socklen_t) -> i32 {
    number(opened::with(context, |session| {
        // SAFETY: the caller's promise.
        let peer = unsafe { address_unsafe::read(peer, len) }?;
        session.connect(peer)
    }))
}

/// Opens a UDP socket. Returns its descriptor.
///
/// # Safety
///
/// `local` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_bind(context: u64, local: *const sockaddr, len: socklen_t) -> i32 {
    number(opened::with(context, |session| {
        // SAFETY: the caller's promise.
        let local = unsafe { address_unsafe::read(local, len) }?;
        session.bind(local)
    }))
}

/// Stops receiving on a connection or a UDP socket, or stops accepting on a listener.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_pause(context: u64, descriptor: i32) -> i32 {
    status(opened::with(context, |session| session.pause(descriptor)))
}

/// Receives or accepts again after [`tlr_pause`].
#[unsafe(no_mangle)]
pub extern "C" fn tlr_resume(context: u64, descriptor: i32) -> i32 {
    status(opened::with(context, |session| session.resume(descriptor)))
}

/// Closes the sending direction of a connection.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_shutdown(context: u64, descriptor: i32) -> i32 {
    status(opened::with(context, |session| {
        session.shutdown(descriptor)
    }))
}

/// Closes a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_close(context: u64, descriptor: i32) -> i32 {
    status(opened::with(context, |session| session.close(descriptor)))
}

/// Resets a connection. Closes a listener or a UDP socket without sending queued data.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_abort(context: u64, descriptor: i32) -> i32 {
    status(opened::with(context, |session| session.abort(descriptor)))
}

/// Returns the file descriptor of the kernel's socket that belongs to a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_socket(context: u64, descriptor: i32) -> i32 {
    number(opened::with(context, |session| session.socket(descriptor)))
}

/// Sends and receives. Waits for an event for at most `timeout_ns` nanoseconds, or without limit if
/// `timeout_ns` is negative. Returns the number of entries of the ready list.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_sync(context: u64, timeout_ns: i64) -> i32 {
    number(opened::with(context, |session| session.sync(timeout_ns)))
}

/// Receives, and waits as [`tlr_sync`] does. Returns the number of entries of the ready list.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_rx_sync(context: u64, timeout_ns: i64) -> i32 {
    number(opened::with(context, |session| session.rx_sync(timeout_ns)))
}

/// Sends.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_tx_sync(context: u64) -> i32 {
    status(opened::with(context, |session| session.tx_sync()))
}

/// Returns the number of entries of the ready list.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_entry_count(context: u64) -> i32 {
    number(opened::with(context, |session| Ok(session.entry_count())))
}

/// Writes an entry of the ready list to `entry`.
///
/// # Safety
///
/// `entry` is null or has room for an entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_entry(context: u64, at: i32, entry: *mut CEntry) -> i32 {
    let read = opened::with(context, |session| session.entry(at));
    // SAFETY: the caller's promise.
    status(read.and_then(|value| unsafe { write(entry, value) }))
}

/// Returns the number of slots of the ready list.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_slot_count(context: u64) -> i32 {
    number(opened::with(context, |session| Ok(session.slot_count())))
}

/// Writes a slot of the ready list to `slot`.
///
/// # Safety
///
/// `slot` is null or has room for a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_slot(context: u64, at: i32, slot: *mut CSlot) -> i32 {
    let read = opened::with(context, |session| session.slot(at));
    // SAFETY: the caller's promise.
    status(read.and_then(|value| unsafe { write(slot, value) }))
}

/// Writes the sender of the datagram in a slot to `sender`, and the length of the address to `len`.
///
/// # Safety
///
/// `len` is null or valid. `sender` is null or has room for `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_sender(
    context: u64,
    at: i32,
    sender: *mut sockaddr,
    len: *mut socklen_t,
) -> i32 {
    let read = opened::with(context, |session| session.sender(at));
    // SAFETY: the caller's promise.
    status(read.and_then(|value| unsafe { address_unsafe::write(value, sender, len) }))
}

/// Gives a free buffer to the program. Returns the number of the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_allocate(context: u64) -> i64 {
    large_number(opened::with(context, |session| session.allocate()))
}

/// Gives the program a buffer for data to send on one descriptor. Returns the number of the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_allocate_for(context: u64, descriptor: i32) -> i64 {
    large_number(opened::with(context, |session| {
        session.allocate_for(descriptor)
    }))
}

/// Writes the address of the payload of a buffer to `payload`. Returns the length of the payload.
///
/// # Safety
///
/// `payload` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_payload(context: u64, buffer: i64, payload: *mut *mut c_void) -> i64 {
    let read = opened::with(context, |session| session.payload(buffer));
    large_number(read.and_then(|(start, len)| {
        // SAFETY: the caller's promise.
        unsafe { write(payload, start.as_ptr().cast()) }?;
        Ok(len.into())
    }))
}

/// Makes the payload of a buffer writable, and writes the address of the payload to `payload`.
/// Returns the length of the payload.
///
/// # Safety
///
/// `payload` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_writable_payload(
    context: u64,
    buffer: i64,
    payload: *mut *mut c_void,
) -> i64 {
    let read = opened::with(context, |session| session.writable_payload(buffer));
    large_number(read.and_then(|(start, len)| {
        // SAFETY: the caller's promise.
        unsafe { write(payload, start.as_ptr().cast()) }?;
        Ok(len.into())
    }))
}

/// Returns the number of bytes from the start of the payload to the end of the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_capacity(context: u64, buffer: i64) -> i64 {
    let read = opened::with(context, |session| session.capacity(buffer));
    large_number(read.map(i64::from))
}

/// Moves the start of a buffer's payload forward by `skip` bytes, and sets the length of the
/// payload to `len`.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_set_payload(context: u64, buffer: i64, skip: u32, len: u32) -> i32 {
    status(opened::with(context, |session| {
        session.set_payload(buffer, skip, len)
    }))
}

/// Makes the program the owner of a buffer of the ready list, also beyond the next sync.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_hold(context: u64, buffer: i64) -> i32 {
    status(opened::with(context, |session| session.hold(buffer)))
}

/// Returns a buffer to the context.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_release(context: u64, buffer: i64) -> i32 {
    status(opened::with(context, |session| session.release(buffer)))
}

/// Queues the payload of a buffer for sending on a connection.
#[unsafe(no_mangle)]
pub extern "C" fn tlr_send(context: u64, descriptor: i32, buffer: i64) -> i32 {
    status(opened::with(context, |session| {
        session.send(descriptor, buffer)
    }))
}

/// Queues the payload of a buffer for sending as a datagram to `peer`.
///
/// # Safety
///
/// `peer` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlr_send_to(
    context: u64,
    descriptor: i32,
    buffer: i64,
    peer: *const sockaddr,
    len: socklen_t,
) -> i32 {
    status(opened::with(context, |session| {
        // SAFETY: the caller's promise.
        let peer = unsafe { address_unsafe::read(peer, len) }?;
        session.send_to(descriptor, buffer, peer)
    }))
}
