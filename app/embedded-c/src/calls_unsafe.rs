//! The functions that `tidelane_embedded.h` declares: the embedded TCP stack for C programs. As in
//! C, the functions trust their pointer arguments. A panic ends the process, because C cannot
//! unwind.
//!
//! "The caller's promise" in a comment refers to the section *Safety* of the function. In these
//! sections, a stack that "comes from `tle_new`" is not null, `tle_free` has not freed the stack,
//! and no other thread uses the stack during the call.

use std::{ffi::c_void, slice};

use tidelane_embedded::{
    Connection, Endpoint, Event, FnPort, Instant, IpAddress, Listener, Stack, StackConfig,
};

/// Range of the MTU of a port, in bytes.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 1280..=65_535;

type Receive = Box<dyn FnMut(&mut [u8]) -> Option<usize>>;
type Send = Box<dyn FnMut(&[u8]) -> bool>;

/// `struct tle_stack` of the header, which C sees only as a pointer.
pub struct TleStack(Stack<FnPort<Receive, Send>>);

/// `struct tle_port` of the header: the C functions with which the stack receives and sends IP
/// packets. The header documents their arguments and results.
#[repr(C)]
pub struct TlePort {
    /// First argument of both functions.
    user: *mut c_void,
    receive: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> usize,
    send: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> i32,
    /// Largest packet in bytes.
    mtu: u32,
}

/// `struct tle_event` of the header: an event, with its listener (TLE_INCOMING) or its connection
/// (all other kinds). The unused field is 0.
#[repr(C)]
pub struct TleEvent {
    /// One of `enum tle_kind` of the header.
    kind: i32,
    listener: u32,
    connection: u64,
}

/// Creates a stack with the address `address`. `secret` is the key of initial sequence numbers and
/// hashes, which nobody else may know. Returns null if the MTU of `port` is below 1280 or above
/// 65535.
///
/// # Safety
///
/// The pointers are valid. The functions of `port` may be called until `tle_free`, and do not call
/// functions of this stack. `receive` writes at most the length that it gets, and `send` does not
/// write to the packet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_new(
    port: *const TlePort,
    address: *const [u8; 16],
    secret: *const [u8; 16],
) -> *mut TleStack {
    // SAFETY: the caller's promise.
    let (port, address, secret) = unsafe { (&*port, *address, *secret) };
    if !MTU_RANGE.contains(&port.mtu) {
        return std::ptr::null_mut();
    }
    let (user, receive, send) = (port.user, port.receive, port.send);
    let receive = move |packet: &mut [u8]| {
        // SAFETY: the caller's promise. `receive` gets the length of the buffer.
        let len = unsafe { receive(user, packet.as_mut_ptr().cast(), packet.len()) };
        (len > 0).then_some(len)
    };
    let send = move |packet: &[u8]| {
        // SAFETY: the caller's promise. `send` gets the length of the packet.
        unsafe { send(user, packet.as_ptr().cast(), packet.len()) != 0 }
    };
    let port = FnPort::new(
        port.mtu,
        Box::new(receive) as Receive,
        Box::new(send) as Send,
    );
    let config = StackConfig::new(IpAddress(address), secret);
    Box::into_raw(Box::new(TleStack(Stack::new(config, port))))
}

/// Frees a stack and its connections. The peers get neither FIN nor RST. Ignores null.
///
/// # Safety
///
/// `stack` is null, or comes from `tle_new` and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_free(stack: *mut TleStack) {
    if !stack.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(stack) });
    }
}

/// Receives packets, runs TCP and the timers, and sends. Returns 1 if a packet arrived, and 0
/// otherwise. `now_ns` is the time in nanoseconds of a clock that never goes back.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_poll(stack: *mut TleStack, now_ns: u64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { &mut *stack }.0.poll(Instant(now_ns)).into()
}

/// Returns the time in nanoseconds at which `tle_poll` has to be called even if no packet arrives,
/// or `u64::MAX` if there is no such time.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_next_timeout(stack: *const TleStack) -> u64 {
    // SAFETY: the caller's promise.
    let timeout = unsafe { &*stack }.0.next_timeout();
    timeout.map_or(u64::MAX, |at| at.0)
}

/// Sends the data, ACKs and SYNs that TCP allows to send now.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_flush(stack: *mut TleStack) {
    // SAFETY: the caller's promise.
    unsafe { &mut *stack }.0.flush();
}

/// Processes a received IP packet.
///
/// # Safety
///
/// `stack` comes from `tle_new`, and `packet` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_input(stack: *mut TleStack, packet: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    let (stack, packet) = unsafe { (&mut *stack, bytes(packet, len)) };
    stack.0.input_packet(packet);
}

/// Listens at `port` of the stack's address. Returns the listener, or -1 on failure, for example if
/// the port is in use. As in Linux, the accept queue holds at most `backlog + 1` connections.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_listen(stack: *mut TleStack, port: u16, backlog: u32) -> i64 {
    // SAFETY: the caller's promise.
    let stack = unsafe { &mut *stack };
    let local = Endpoint::new(stack.0.address(), port);
    match stack.0.listen(local, backlog) {
        Ok(listener) => listener.to_u32().into(),
        Err(_) => -1,
    }
}

/// Closes a listener, and resets the connections in its accept queue.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_unlisten(stack: *mut TleStack, listener: u32) {
    // SAFETY: the caller's promise.
    unsafe { &mut *stack }
        .0
        .unlisten(Listener::from_u32(listener));
}

/// Accepts the oldest connection of a listener. Returns the connection, or 0 if the accept queue is
/// empty.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_accept(stack: *mut TleStack, listener: u32) -> u64 {
    // SAFETY: the caller's promise.
    let accepted = unsafe { &mut *stack }
        .0
        .accept(Listener::from_u32(listener));
    accepted.map_or(0, Connection::to_u64)
}

/// Opens a connection from an ephemeral port to `port` of `peer`. Returns 0 on failure. Otherwise
/// returns the connection, and the event TLE_CONNECTED or TLE_CLOSED follows.
///
/// # Safety
///
/// `stack` comes from `tle_new`, and `peer` has 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_connect(
    stack: *mut TleStack,
    peer: *const [u8; 16],
    port: u16,
) -> u64 {
    // SAFETY: the caller's promise.
    let (stack, peer) = unsafe { (&mut *stack, IpAddress(*peer)) };
    let local = Endpoint::new(stack.0.address(), 0);
    let opened = stack.0.connect(local, Endpoint::new(peer, port));
    opened.map_or(0, Connection::to_u64)
}

/// Copies received data to `buffer`. Returns the number of copied bytes, or 0 if there is no data.
/// `tle_is_end` tells whether more data can arrive.
///
/// # Safety
///
/// `stack` comes from `tle_new`, and `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_read(
    stack: *mut TleStack,
    connection: u64,
    buffer: *mut u8,
    len: usize,
) -> usize {
    if len == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let (stack, buffer) = unsafe { (&mut *stack, slice::from_raw_parts_mut(buffer, len)) };
    stack.0.read(Connection::from_u64(connection), buffer)
}

/// Copies as much of `data` as the send buffer has room for. Returns the number of copied bytes.
///
/// # Safety
///
/// `stack` comes from `tle_new`, and `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_write(
    stack: *mut TleStack,
    connection: u64,
    data: *const u8,
    len: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let (stack, data) = unsafe { (&mut *stack, bytes(data, len)) };
    stack.0.write(Connection::from_u64(connection), data)
}

/// Returns 1 at the end of the received stream: the program has read all data, and no more data can
/// arrive. Also returns 1 for an invalid connection. Returns 0 otherwise.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_is_end(stack: *mut TleStack, connection: u64) -> i32 {
    // SAFETY: the caller's promise.
    let stack = unsafe { &mut *stack };
    stack.0.is_end(Connection::from_u64(connection)).into()
}

/// Closes the sending direction: the stack sends the written data and a FIN. The program may still
/// read from the connection.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_shutdown(stack: *mut TleStack, connection: u64) {
    // SAFETY: the caller's promise.
    let stack = unsafe { &mut *stack };
    stack.0.shutdown(Connection::from_u64(connection));
}

/// Closes a connection: the stack sends the written data and a FIN, or resets the connection if
/// received data is unread. The connection's number becomes invalid, and no function acts on the
/// number any more.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_close(stack: *mut TleStack, connection: u64) {
    // SAFETY: the caller's promise.
    let stack = unsafe { &mut *stack };
    stack.0.close(Connection::from_u64(connection));
}

/// Aborts a connection (RFC 9293 §3.10.5): the stack drops unsent data and resets the connection.
/// The connection's number becomes invalid, and no function acts on the number any more.
///
/// # Safety
///
/// `stack` comes from `tle_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_abort(stack: *mut TleStack, connection: u64) {
    // SAFETY: the caller's promise.
    let stack = unsafe { &mut *stack };
    stack.0.abort(Connection::from_u64(connection));
}

/// Writes the next event to `event` and returns 1. Returns 0 if there is no event.
///
/// # Safety
///
/// `stack` comes from `tle_new`, and `event` has room for one event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tle_next_event(stack: *mut TleStack, event: *mut TleEvent) -> i32 {
    // SAFETY: the caller's promise.
    let (stack, to) = unsafe { (&mut *stack, &mut *event) };
    let Some(event) = stack.0.next_event() else {
        return 0;
    };
    // The first number of each result is the event's value in `enum tle_kind`.
    let (kind, listener, connection) = match event {
        Event::Incoming(listener) => (1, listener.to_u32(), 0),
        Event::Connected(connection) => (2, 0, connection.to_u64()),
        Event::Readable(connection) => (3, 0, connection.to_u64()),
        Event::Writable(connection) => (4, 0, connection.to_u64()),
        Event::Closed(connection, _) => (5, 0, connection.to_u64()),
        Event::Urgent(connection) => (6, 0, connection.to_u64()),
    };
    *to = TleEvent {
        kind,
        listener,
        connection,
    };
    1
}

/// Returns the `len` bytes at `data`, which may be null if `len` is zero.
///
/// # Safety
///
/// `data` has `len` bytes.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { slice::from_raw_parts(data, len) },
    }
}
