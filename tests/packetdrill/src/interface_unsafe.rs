//! `packetdrill_interface_init`, which fills packetdrill's interface, and some functions of this
//! interface.
//!
//! The interface is a table of C functions for a stack under test. The functions in this module
//! open, connect, configure and close sockets, inject and take packets, and read and advance the
//! clock.

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void},
    mem,
    sync::Arc,
};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval, useconds_t,
};
use tidelane_engine::Duration;

use crate::{
    address::{self, Address},
    bytes_unsafe,
    c_unsafe::{
        bytes, bytes_mut, close_descriptor, copy_out, load, new_descriptor, open_descriptor,
        return_status, return_value, stack, unload,
    },
    errno::Errno,
    ready_unsafe,
    settings::{Reading, Settings},
    shared::Shared,
    socket::Shutdown,
    stack::{Fd, Stack},
};

/// The `userdata` pointer of the interface, which points to the [`Shared`] stack.
type User = *mut c_void;

/// The function table of a stack under test: `userdata` and 32 functions.
///
/// packetdrill owns the table, and passes it to [`packetdrill_interface_init`] to be filled. The
/// layout is that of `struct packetdrill_interface` in packetdrill's `packetdrill.h`.
#[repr(C)]
pub struct Interface {
    userdata: User,
    free: unsafe extern "C" fn(User),
    socket: unsafe extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(User, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    read: unsafe extern "C" fn(User, c_int, *mut c_void, size_t) -> ssize_t,
    readv: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    recv: unsafe extern "C" fn(User, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    recvfrom: unsafe extern "C" fn(
        User,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: unsafe extern "C" fn(User, c_int, *mut msghdr, c_int) -> ssize_t,
    write: unsafe extern "C" fn(User, c_int, *const c_void, size_t) -> ssize_t,
    writev: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    send: unsafe extern "C" fn(User, c_int, *const c_void, size_t, c_int) -> ssize_t,
    sendto: unsafe extern "C" fn(
        User,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: unsafe extern "C" fn(User, c_int, *const msghdr, c_int) -> ssize_t,
    fcntl: unsafe extern "C" fn(User, c_int, c_int, c_long) -> c_int,
    ioctl: unsafe extern "C" fn(User, c_int, c_ulong, *mut c_void) -> c_int,
    close: unsafe extern "C" fn(User, c_int) -> c_int,
    shutdown: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    getsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    setsockopt: unsafe extern "C" fn(User, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: unsafe extern "C" fn(User, *mut pollfd, nfds_t, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(User, *const c_void, size_t) -> c_int,
    netdev_receive: unsafe extern "C" fn(User, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    usleep: unsafe extern "C" fn(User, useconds_t) -> c_int,
    gettimeofday: unsafe extern "C" fn(User, *mut timeval, *mut c_void) -> c_int,
    epoll_create: unsafe extern "C" fn(User, c_int) -> c_int,
    epoll_ctl: unsafe extern "C" fn(User, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    epoll_wait: unsafe extern "C" fn(User, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pipe: unsafe extern "C" fn(User, *mut c_int) -> c_int,
    splice: unsafe extern "C" fn(
        User,
        c_int,
        *mut loff_t,
        c_int,
        *mut loff_t,
        size_t,
        c_uint,
    ) -> ssize_t,
}

const _: () = {
    assert!(mem::size_of::<Interface>() == 33 * mem::size_of::<usize>());
    assert!(mem::size_of::<off_t>() == mem::size_of::<loff_t>());
};

/// Creates a stack, and fills `interface` with the functions and the `userdata` of this stack.
///
/// packetdrill looks up this symbol in the library. `flags` is the value of packetdrill's option
/// `--so_flags`, or null. An invalid flag ends the process with status 1.
///
/// # Safety
///
/// `flags` is null or a C string, and `interface` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut Interface,
) {
    let flags = match flags.is_null() {
        true => String::new(),
        // SAFETY: guaranteed by the caller.
        false => unsafe { CStr::from_ptr(flags) }
            .to_string_lossy()
            .into_owned(),
    };
    let settings = Settings::new(&flags).unwrap_or_else(|why| {
        eprintln!("libtidelane_packetdrill: --so_flags: {why}");
        std::process::exit(1);
    });
    let stack = Stack::new(settings, Reading::now());
    let userdata = load(Arc::new(Shared::new(stack)));
    // SAFETY: guaranteed by the caller.
    unsafe { interface.write(table(userdata)) };
}

/// Returns the filled function table.
fn table(userdata: User) -> Interface {
    Interface {
        userdata,
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read: bytes_unsafe::read,
        readv: bytes_unsafe::readv,
        recv: bytes_unsafe::recv,
        recvfrom: bytes_unsafe::recvfrom,
        recvmsg: bytes_unsafe::recvmsg,
        write: bytes_unsafe::write,
        writev: bytes_unsafe::writev,
        send: bytes_unsafe::send,
        sendto: bytes_unsafe::sendto,
        sendmsg: bytes_unsafe::sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll: ready_unsafe::poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create: ready_unsafe::epoll_create,
        epoll_ctl: ready_unsafe::epoll_ctl,
        epoll_wait: ready_unsafe::epoll_wait,
        pipe: ready_unsafe::pipe,
        splice: ready_unsafe::splice,
    }
}

// SAFETY (of the `extern "C"` functions below): packetdrill passes the `userdata` of the interface,
// and the pointers that the system call of the same name takes. `netdev_send` gets a packet of
// `len` bytes, and `netdev_receive` a buffer of `*len` bytes and valid pointers.

unsafe extern "C" fn free(user: User) {
    // SAFETY: this is the last call of the interface.
    unsafe { unload(user) };
}

unsafe extern "C" fn socket(user: User, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let make = |fd| shared.call(|stack| stack.socket_call(fd, domain, kind, protocol));
    return_value(new_descriptor(make)) as c_int
}

unsafe extern "C" fn bind(user: User, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: by the contract above.
    let (shared, to) = unsafe { (stack(user), bytes(to.cast(), len as usize)) };
    return_status(address::parse(to).and_then(|to| match to {
        Address::Of(to) => shared.call(|stack| stack.bind(fd, to)),
        Address::None => Err(Errno(libc::EAFNOSUPPORT)),
    }))
}

unsafe extern "C" fn listen(user: User, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    return_status(shared.call(|stack| stack.listen(fd, backlog)))
}

unsafe extern "C" fn accept(
    user: User,
    fd: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    return_value(shared.accept(fd, 0, open_descriptor).map(|(new, end)| {
        let domain = shared.call(|stack| stack.socket(new).map(|socket| socket.domain));
        let value = address::emit(end, domain.unwrap_or(libc::AF_INET));
        // SAFETY: by the contract above.
        unsafe { copy_out(&value, peer.cast(), len, true) };
        new as usize
    })) as c_int
}

unsafe extern "C" fn connect(user: User, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: by the contract above.
    let (shared, to) = unsafe { (stack(user), bytes(to.cast(), len as usize)) };
    return_status(address::parse(to).and_then(|to| match to {
        Address::Of(to) => shared.connect(fd, to),
        Address::None => shared.call(|stack| stack.disconnect(fd)),
    }))
}

unsafe extern "C" fn close(user: User, fd: c_int) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let ours = shared.call(|stack| match stack.has(fd) {
        true => stack.close(fd),
        false => Ok(()),
    });
    return_status(ours.and_then(|()| close_descriptor(fd)))
}

unsafe extern "C" fn shutdown(user: User, fd: c_int, how: c_int) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let how = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return return_status(Err(Errno::INVAL)),
    };
    let (read, write) = how;
    return_status(shared.call(|stack| stack.shutdown(fd, Shutdown { read, write })))
}

unsafe extern "C" fn fcntl(user: User, fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let ours = shared.call(|stack| match stack.has_socket(fd) {
        true => stack.control(fd, command, argument as c_int),
        false => None,
    });
    match ours {
        Some(result) => return_value(result) as c_int,
        // SAFETY: by the contract above; packetdrill's commands take integers.
        None => unsafe { libc::fcntl(fd, command, argument) },
    }
}

unsafe extern "C" fn ioctl(user: User, fd: c_int, request: c_ulong, value: *mut c_void) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    if !shared.call(|stack| stack.has(fd)) {
        // SAFETY: by the contract above.
        return unsafe { libc::ioctl(fd, request, value) };
    }
    let result = shared.call(|stack| match request {
        libc::FIONREAD => stack.unread(fd),
        libc::TIOCOUTQ => stack.unacknowledged(fd),
        SIOCOUTQNSD => stack.unsent(fd),
        SIOCATMARK => stack.at_mark(fd),
        libc::FIONBIO => {
            // SAFETY: the argument of this request points to a valid `int`.
            stack.socket_mut(fd)?.nonblocking = unsafe { *value.cast::<c_int>() } != 0;
            Ok(0)
        }
        _ => Err(Errno(libc::ENOTTY)),
    });
    return_status(result.map(|number| {
        if request != libc::FIONBIO && !value.is_null() {
            // SAFETY: the argument of these requests points to a valid `int`.
            unsafe { *value.cast::<c_int>() = number as c_int };
        }
    }))
}

/// `ioctl` request that writes 1 if the next byte to read is the urgent byte, and otherwise 0
/// (Linux's `sockios.h`).
const SIOCATMARK: c_ulong = 0x8905;
/// `ioctl` request for the number of bytes that are written but not sent yet (Linux's
/// `sockios.h`).
const SIOCOUTQNSD: c_ulong = 0x894b;

unsafe extern "C" fn getsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: by the contract above.
    unsafe { option_of(stack(user), fd, level, name, value, len) }
}

/// Implements `getsockopt(2)` for a socket of this stack.
///
/// # Safety
///
/// `len` is null or valid, and `value` is null or valid for writing `*len` bytes.
pub(crate) unsafe fn option_of(
    shared: &Shared,
    fd: Fd,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if len.is_null() {
        return return_status(Err(Errno(libc::EFAULT)));
    }
    return_status(
        shared
            .call(|stack| stack.option(fd, level, name))
            // SAFETY: guaranteed by the caller.
            .map(|bytes| unsafe { copy_out(&bytes, value, len, false) }),
    )
}

unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: by the contract above.
    let (shared, value) = unsafe { (stack(user), bytes(value, len as usize)) };
    return_status(shared.call(|stack| stack.set_option(fd, level, name, value)))
}

unsafe extern "C" fn netdev_send(user: User, packet: *const c_void, len: size_t) -> c_int {
    // SAFETY: by the contract above.
    let (shared, packet) = unsafe { (stack(user), bytes(packet, len)) };
    shared.call(|stack| stack.inject(packet));
    0
}

unsafe extern "C" fn netdev_receive(
    user: User,
    buffer: *mut c_void,
    len: *mut size_t,
    time_us: *mut c_longlong,
) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    let sent = shared.next_sent();
    // SAFETY: by the contract above: `buffer` has room for `*len` bytes.
    unsafe {
        let Some(sent) = sent else {
            *len = 0;
            return 0;
        };
        let room = sent.bytes.len().min(*len);
        bytes_mut(buffer, room).copy_from_slice(&sent.bytes[..room]);
        *len = room;
        *time_us = Stack::stamp_us(&sent) as c_longlong;
    }
    0
}

unsafe extern "C" fn usleep(user: User, us: useconds_t) -> c_int {
    // SAFETY: by the contract above.
    let shared = unsafe { stack(user) };
    shared.sleep(Duration::from_micros(us.into()));
    0
}

unsafe extern "C" fn gettimeofday(user: User, to: *mut timeval, _zone: *mut c_void) -> c_int {
    // SAFETY: by the contract above.
    let us = unsafe { stack(user) }.read_clock_us();
    let time = timeval {
        tv_sec: (us / 1_000_000) as libc::time_t,
        tv_usec: (us % 1_000_000) as libc::suseconds_t,
    };
    // SAFETY: by the contract above.
    unsafe { to.write(time) };
    0
}
