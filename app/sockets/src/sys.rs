//! System calls that do not go through libc. The preloaded library `libtidelane.so`, which contains
//! this crate, interposes many of libc's functions. A call of an interposed function would lead
//! back into this crate. The few libc functions that this module does call, such as
//! `clock_gettime`, are not interposed.
//!
//! The wrappers take typed arguments, so that only this file and `*_unsafe.rs` need `unsafe`.

use std::os::fd::RawFd;

mod address;
pub mod cancellation_unsafe;
mod errno;
mod files_unsafe;
mod handlers_unsafe;
mod line;
mod lock_unsafe;
mod order;
pub mod section_unsafe;
mod shared_words_unsafe;
mod sleepers;
mod small_vec;
mod static_cell_unsafe;
mod threads;

pub use address::Address;
pub use errno::{Errno, Handled, TO_KERNEL};
pub(crate) use errno::{fail, from_cause};
pub(crate) use files_unsafe::{
    is_empty_pipe, pread, pread_shared, read_waiting, seek, write_waiting,
};
pub(crate) use handlers_unsafe::handlers_restart;
pub(crate) use line::line;
pub(crate) use lock_unsafe::{Guard, Lock};
pub(crate) use order::Rank;
pub(crate) use section_unsafe::{Section, channel_word, suspended};
pub(crate) use shared_words_unsafe::SharedWords;
pub(crate) use sleepers::Sleepers;
pub(crate) use small_vec::SmallVec;
pub(crate) use static_cell_unsafe::StaticCell;
pub(crate) use threads::{process_id, raise, thread_exists, thread_id, yield_now};

/// Makes a system call with up to six arguments. A result from -4095 to -1 becomes an [`Errno`].
///
/// # Safety
///
/// The requirements of the system call hold. In particular, its pointers are valid.
#[inline]
pub unsafe fn call(number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees the requirements of this function.
    from_raw(unsafe { raw(number as usize, args) })
}

/// Converts a raw result of the kernel, where -4095 to -1 mean an error.
#[inline]
fn from_raw(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn raw(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention: rcx and r11 are clobbered, the stack is not used.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn raw(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention: only x0 changes, the stack is not used.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// Returns the thread pointer as the identity of the calling thread. No other living thread of the
/// process has the same value, and the value is never 0.
#[inline]
pub(crate) fn thread_identity() -> usize {
    let identity: usize;
    // SAFETY: reads the thread pointer; on x86-64 the word at fs:0 is the pointer itself (ABI).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov {}, fs:0", out(reg) identity, options(nostack, pure, readonly, preserves_flags)
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "mrs {}, tpidr_el0", out(reg) identity, options(nostack, pure, nomem, preserves_flags)
        );
    }
    identity
}

fn call1(number: i64, a: usize) -> Result<usize, Errno> {
    // SAFETY: this module and its submodules use the function for calls that take no pointers.
    unsafe { call(number, [a, 0, 0, 0, 0, 0]) }
}

fn call3(number: i64, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    // SAFETY: this module and its submodules use the function for calls that take no pointers, or
    // pointers of live references.
    unsafe { call(number, [a, b, c, 0, 0, 0]) }
}

/// Returns the number of the CPU that this thread runs on, or `None` if `sched_getcpu` fails.
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: takes no arguments.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).ok()
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is live; the call goes to the vDSO and is not interposed.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Tells the CPU that the thread is in a spin loop.
#[inline]
pub(crate) fn spin_hint() {
    core::hint::spin_loop();
}

/// Closes `fd` with the system call `close`.
pub(crate) fn close(fd: RawFd) -> Result<usize, Errno> {
    call1(libc::SYS_close, fd as usize)
}

/// Makes `to` a duplicate of `fd` with `dup3`. Returns `to`.
pub(crate) fn dup3(fd: RawFd, to: RawFd, flags: i32) -> Result<usize, Errno> {
    call3(libc::SYS_dup3, fd as usize, to as usize, flags as usize)
}

/// Carries out `fcntl`. Returns the result of the command.
pub(crate) fn fcntl(fd: RawFd, command: i32, arg: usize) -> Result<usize, Errno> {
    call3(libc::SYS_fcntl, fd as usize, command as usize, arg)
}

/// Creates a non-blocking TCP socket of AF_INET6, or of AF_INET if `inet6` is false.
pub(crate) fn tcp_socket(inet6: bool) -> Result<RawFd, Errno> {
    let family = if inet6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = call3(libc::SYS_socket, family as usize, kind as usize, 0)?;
    Ok(fd as RawFd)
}

/// Makes `fd` a listener with `listen`.
pub(crate) fn listen(fd: RawFd, backlog: i32) -> Result<usize, Errno> {
    call3(libc::SYS_listen, fd as usize, backlog as usize, 0)
}

/// Shuts down the directions `how` of a kernel socket with `shutdown`.
pub(crate) fn shutdown(fd: RawFd, how: i32) -> Result<usize, Errno> {
    call3(libc::SYS_shutdown, fd as usize, how as usize, 0)
}

/// Rings a doorbell: adds 1 to the eventfd `fd`, which becomes readable.
pub(crate) fn ring_eventfd(fd: RawFd) {
    let one = 1u64;
    let _ = call3(libc::SYS_write, fd as usize, &raw const one as usize, 8);
}

/// Writes `bytes` with `write`. Returns the number of bytes written.
pub(crate) fn write_bytes(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    call3(
        libc::SYS_write,
        fd as usize,
        bytes.as_ptr() as usize,
        bytes.len(),
    )
}

/// Reads into `into` with `read`. Returns the number of bytes read, 0 at the end of file.
pub(crate) fn read_bytes(fd: RawFd, into: &mut [u8]) -> Result<usize, Errno> {
    call3(
        libc::SYS_read,
        fd as usize,
        into.as_mut_ptr() as usize,
        into.len(),
    )
}

/// Accepts a connection of a non-blocking listener with `accept4`. Returns the new descriptor.
pub(crate) fn accept4(fd: RawFd, flags: i32) -> Result<RawFd, Errno> {
    let args = [fd as usize, 0, 0, flags as usize, 0, 0];
    // SAFETY: null address and length are allowed.
    unsafe { call(libc::SYS_accept4, args) }.map(|fd| fd as RawFd)
}

/// Sets a socket option with `setsockopt`.
pub(crate) fn set_socket_option(
    fd: RawFd,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<usize, Errno> {
    let pointer = value.as_ptr() as usize;
    let args = [
        fd as usize,
        level as usize,
        name as usize,
        pointer,
        value.len(),
        0,
    ];
    // SAFETY: `value` is live and has the given length.
    unsafe { call(libc::SYS_setsockopt, args) }
}

/// Reads a socket option into the first bytes of `into` (`getsockopt`). Returns the value's length.
pub(crate) fn socket_option(
    fd: RawFd,
    level: i32,
    name: i32,
    into: &mut [u8],
) -> Result<usize, Errno> {
    let mut len = into.len() as u32;
    let args = [
        fd as usize,
        level as usize,
        name as usize,
        into.as_mut_ptr() as usize,
        &raw mut len as usize,
        0,
    ];
    // SAFETY: `into` and `len` are live; the kernel writes at most `len` bytes.
    unsafe { call(libc::SYS_getsockopt, args) }?;
    Ok(into.len().min(len as usize))
}

/// Returns the value of an integer socket option (`getsockopt`).
pub(crate) fn socket_int(fd: RawFd, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    socket_option(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// Returns the local address of a kernel socket (`getsockname`).
pub(crate) fn local_name(fd: RawFd) -> Result<Address, Errno> {
    name(libc::SYS_getsockname, fd)
}

/// Returns the peer's address of a kernel socket (`getpeername`).
pub(crate) fn peer_name(fd: RawFd) -> Result<Address, Errno> {
    name(libc::SYS_getpeername, fd)
}

fn name(number: i64, fd: RawFd) -> Result<Address, Errno> {
    let mut bytes = [0u8; 28];
    let mut len = bytes.len() as u32;
    call3(
        number,
        fd as usize,
        bytes.as_mut_ptr() as usize,
        &raw mut len as usize,
    )?;
    let given = bytes.get(..len as usize).unwrap_or(&bytes);
    Address::read(given).ok_or(Errno(libc::EAFNOSUPPORT))
}

/// Returns the inode number of a descriptor's file. `ss` identifies a socket by this number.
pub(crate) fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: all-zero bytes are a valid `stat`.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    call3(libc::SYS_fstat, fd as usize, &raw mut status as usize, 0).ok()?;
    Some(status.st_ino)
}

/// Returns the name of the calling thread, ended by a NUL. If the program has not renamed its first
/// thread, that thread has the program's name.
pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    let _ = call3(
        libc::SYS_prctl,
        libc::PR_GET_NAME as usize,
        name.as_mut_ptr() as usize,
        0,
    );
    name
}

/// Creates an epoll instance with close-on-exec (`epoll_create1`). Returns its descriptor.
pub(crate) fn epoll_create() -> Result<RawFd, Errno> {
    call1(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC as usize).map(|fd| fd as RawFd)
}

/// Adds `fd` to the epoll instance `epfd`, or modifies or removes its registration (`epoll_ctl`).
pub(crate) fn epoll_ctl(
    epfd: RawFd,
    operation: i32,
    fd: RawFd,
    event: Option<libc::epoll_event>,
) -> Result<usize, Errno> {
    let pointer = event
        .as_ref()
        .map_or(0, |event| core::ptr::from_ref(event) as usize);
    let args = [
        epfd as usize,
        operation as usize,
        fd as usize,
        pointer,
        0,
        0,
    ];
    // SAFETY: `event` is live, or the pointer is null.
    unsafe { call(libc::SYS_epoll_ctl, args) }
}

/// Waits for events of the epoll instance `epfd`, without a time limit if `timeout_ns` is `None`.
/// Returns the number of events in `into`. During the wait, the thread's signal mask is `mask`.
pub(crate) fn epoll_wait(
    epfd: RawFd,
    into: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    if timeout_ns != Some(0) || mask.is_some() {
        return suspended(|| epoll_pwait(epfd, into, timeout_ns, mask));
    }
    epoll_pwait(epfd, into, timeout_ns, mask)
}

fn epoll_pwait(
    epfd: RawFd,
    into: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let millis = match timeout_ns {
        None => -1isize,
        Some(ns) if ns % 1_000_000 == 0 => (ns / 1_000_000).min(i32::MAX as u64) as isize,
        Some(ns) => return epoll_pwait2(epfd, into, ns, mask),
    };
    let mask_pointer = mask.map_or(0, |mask| core::ptr::from_ref(mask) as usize);
    let args = [
        epfd as usize,
        into.as_mut_ptr() as usize,
        into.len(),
        millis as usize,
        mask_pointer,
        SIGNAL_MASK_LEN,
    ];
    // SAFETY: `into` and `mask` are live and have the given lengths.
    unsafe { cancellation_unsafe::call(libc::SYS_epoll_pwait, args) }
}

fn epoll_pwait2(
    epfd: RawFd,
    into: &mut [libc::epoll_event],
    timeout_ns: u64,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let timeout = timespec(timeout_ns);
    let mask_pointer = mask.map_or(0, |mask| core::ptr::from_ref(mask) as usize);
    let args = [
        epfd as usize,
        into.as_mut_ptr() as usize,
        into.len(),
        &raw const timeout as usize,
        mask_pointer,
        SIGNAL_MASK_LEN,
    ];
    // SAFETY: `into`, `timeout` and `mask` are live and have the given lengths.
    unsafe { cancellation_unsafe::call(libc::SYS_epoll_pwait2, args) }
}

/// A kernel signal set: bit `signal - 1` for each signal.
pub type SignalMask = u64;

const SIGNAL_MASK_LEN: usize = size_of::<SignalMask>();

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// Waits for events of `fds`, without a time limit if `timeout_ns` is `None`. Returns the number of
/// ready entries. During the wait, the thread's signal mask is `mask`.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    timeout_ns: Option<u64>,
    mask: Option<&SignalMask>,
) -> Result<usize, Errno> {
    let timeout = timespec(timeout_ns.unwrap_or(0));
    let timeout_pointer = if timeout_ns.is_some() {
        &raw const timeout as usize
    } else {
        0
    };
    let mask_pointer = mask.map_or(0, |mask| core::ptr::from_ref(mask) as usize);
    let args = [
        fds.as_mut_ptr() as usize,
        fds.len(),
        timeout_pointer,
        mask_pointer,
        SIGNAL_MASK_LEN,
        0,
    ];
    // SAFETY: `fds`, `timeout` and `mask` are live and have the given lengths.
    let poll = || unsafe { cancellation_unsafe::call(libc::SYS_ppoll, args) };
    if timeout_ns != Some(0) || mask.is_some() {
        return suspended(poll);
    }
    poll()
}

/// Registers functions to run before `fork`, and after it in the parent and in the child.
pub(crate) fn at_fork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    let [before, parent, child] = [before, parent, child].map(|handler| Some(as_unsafe(handler)));
    // SAFETY: the functions have the expected type and live as long as the library.
    unsafe { libc::pthread_atfork(before, parent, child) };
}

fn as_unsafe(function: extern "C" fn()) -> unsafe extern "C" fn() {
    function
}

/// Closes all descriptors from `first` to `last`.
pub(crate) fn close_range(first: u32, last: u32, flags: i32) {
    let _ = call3(
        libc::SYS_close_range,
        first as usize,
        last as usize,
        flags as usize,
    );
}

/// Returns the soft limit RLIMIT_NOFILE: new descriptors of this process are below the limit.
/// If `prlimit64` fails, returns 1024, the usual limit.
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let args = [
        0,
        libc::RLIMIT_NOFILE as usize,
        0,
        &raw mut limit as usize,
        0,
        0,
    ];
    // SAFETY: only reads the limit into a live structure.
    match unsafe { call(libc::SYS_prlimit64, args) } {
        Ok(_) => limit.rlim_cur,
        Err(_) => 1024,
    }
}

/// Borrows a descriptor for the duration of one call of `tidelane-client`, such as
/// `Program::listen`.
pub(crate) fn borrow(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: `fd` is not -1: the program just passed it in a call. The kernel checks the
    // descriptor again at its use. Nothing keeps the descriptor beyond the call.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}
