//! The calls of the `epoll` and `poll` families.
//!
//! A tracked descriptor refers to a TCP socket that this library (`libtidelane.so`) may accelerate,
//! or to an epoll instance. The kernel handles calls without tracked descriptors. The crate
//! `tidelane_sockets` handles calls with tracked descriptors. If the crate returns `None` for a
//! call, the kernel handles this call, too.

use std::{ffi::c_int, slice};

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};
use tidelane_sockets::{Handled, descriptors, epoll, poll, sys::SignalMask};

use crate::cancellation_unsafe::cancellation_point;
use crate::libc_abi_unsafe::{fail_with_errno, handled_or_system_call, system_call};

/// Nanoseconds per millisecond.
const NS_PER_MS: u64 = 1_000_000;
/// Length of the kernel's signal mask in bytes.
pub(crate) const SIGNAL_MASK_LEN: usize = size_of::<SignalMask>();

/// Interposes libc's `epoll_create(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return fail_with_errno(libc::EINVAL) as c_int;
    }
    // SAFETY: the call takes no pointers.
    unsafe { epoll_create1(0) }
}

/// Interposes libc's `epoll_create1(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    let args = [flags as usize, 0, 0, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    let epfd = unsafe { system_call(libc::SYS_epoll_create1, args) as c_int };
    if epfd >= 0 {
        epoll::on_created(epfd);
    }
    epfd
}

/// Interposes libc's `epoll_ctl(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let args = [
        epfd as usize,
        operation as usize,
        fd as usize,
        event as usize,
        0,
        0,
    ];
    let read_event = || {
        // SAFETY: the caller upholds the safety contract.
        unsafe { event.as_ref() }.copied()
    };
    let handled = match (descriptors::socket(fd), descriptors::epoll(fd)) {
        (Some(socket), _) => epoll::control(socket, epfd, operation, fd, read_event()),
        (None, Some(inner)) => epoll::control_nested(inner, epfd, operation, fd, read_event()),
        (None, None) => None,
    };
    // SAFETY: the caller upholds the safety contract.
    unsafe { handled_or_system_call(handled, libc::SYS_epoll_ctl, args) as c_int }
}

/// Waits for events of the epoll instance `epfd`. Returns `None` if the kernel must handle the
/// call, for example because the library does not track the instance or an argument is invalid.
///
/// # Safety
///
/// `events` must be valid for `max` elements, or null. `mask` must be valid or null.
unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Handled {
    let instance = descriptors::epoll(epfd)?;
    if events.is_null() || max <= 0 {
        return None;
    }
    // SAFETY: the caller upholds the safety contract.
    let events = unsafe { slice::from_raw_parts_mut(events, max as usize) };
    // SAFETY: the caller upholds the safety contract. libc's `sigset_t` starts with the kernel's
    // 64-bit signal mask.
    let mask = unsafe { mask.cast::<SignalMask>().as_ref() };
    epoll::wait(instance, events, timeout_ns, mask)
}

/// Converts a timeout from milliseconds to nanoseconds. Returns `None` for a negative timeout,
/// which means to wait without a timeout.
fn ms_to_ns(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * NS_PER_MS)
}

/// Interposes libc's `epoll_wait(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe { epoll_pwait(epfd, events, max, timeout, std::ptr::null()) }
}

/// Interposes libc's `epoll_pwait(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    cancellation_point();
    let args = [
        epfd as usize,
        events as usize,
        max as usize,
        timeout as usize,
        mask as usize,
        SIGNAL_MASK_LEN,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = wait(epfd, events, max, ms_to_ns(timeout), mask);
        handled_or_system_call(handled, libc::SYS_epoll_pwait, args) as c_int
    }
}

/// Interposes libc's `epoll_pwait2(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancellation_point();
    let args = [
        epfd as usize,
        events as usize,
        max as usize,
        timeout as usize,
        mask as usize,
        SIGNAL_MASK_LEN,
    ];
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let handled = match timeout_ns(timeout) {
            Some(timeout_ns) => wait(epfd, events, max, timeout_ns, mask),
            None => None,
        };
        handled_or_system_call(handled, libc::SYS_epoll_pwait2, args) as c_int
    }
}

/// Converts a timeout to nanoseconds. Returns `Some(None)` for a null pointer, which means to wait
/// without a timeout. Returns `None` for an invalid `timespec`.
///
/// # Safety
///
/// `timeout` must be valid or null.
pub(crate) unsafe fn timeout_ns(timeout: *const timespec) -> Option<Option<u64>> {
    // SAFETY: the caller upholds the safety contract.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else {
        return Some(None);
    };
    if timeout.tv_sec < 0 || !(0..1_000_000_000).contains(&timeout.tv_nsec) {
        return None;
    }
    let ns = (timeout.tv_sec as u64).saturating_mul(1_000_000_000);
    Some(Some(ns.saturating_add(timeout.tv_nsec as u64)))
}

/// Returns the `pollfd` array of a call as a slice. A null pointer yields an empty slice.
///
/// # Safety
///
/// `fds` must be valid for `count` elements, or null.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller upholds the safety contract.
    unsafe { slice::from_raw_parts_mut(fds, count as usize) }
}

/// Interposes libc's `poll(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    cancellation_point();
    // SAFETY: the caller upholds the safety contract.
    let entries = unsafe { entries(fds, count) };
    let handled = if poll::has_tracked(entries) {
        poll::poll(entries, ms_to_ns(timeout), None)
    } else {
        None
    };
    let timeout_ns = ms_to_ns(timeout);
    let mut spec = timespec {
        tv_sec: (timeout_ns.unwrap_or(0) / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns.unwrap_or(0) % 1_000_000_000) as i64,
    };
    let spec_pointer = if timeout_ns.is_some() {
        &raw mut spec as usize
    } else {
        0
    };
    let args = [
        fds as usize,
        count as usize,
        spec_pointer,
        0,
        SIGNAL_MASK_LEN,
        0,
    ];
    // SAFETY: the caller upholds the safety contract. `spec` outlives the call, in which the kernel
    // writes the remaining time to `spec`.
    unsafe { handled_or_system_call(handled, libc::SYS_ppoll, args) as c_int }
}

/// Interposes libc's `poll(2)` in programs built with `_FORTIFY_SOURCE`. `len` is the size of the
/// array in bytes.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    len: usize,
) -> c_int {
    abort_if_too_short(count, len);
    // SAFETY: the caller upholds the safety contract.
    unsafe { poll(fds, count, timeout) }
}

/// Aborts the process if an array of `len` bytes is too short for `count` elements.
fn abort_if_too_short(count: nfds_t, len: usize) {
    if len / size_of::<pollfd>() < count as usize {
        // Unlike glibc's `__chk_fail`, print no message.
        std::process::abort();
    }
}

/// Interposes libc's `ppoll(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancellation_point();
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let entries = entries(fds, count);
        let handled = match timeout_ns(timeout) {
            Some(timeout_ns) if poll::has_tracked(entries) => {
                let mask = mask.cast::<SignalMask>().as_ref().copied();
                poll::poll(entries, timeout_ns, mask)
            }
            _ => None,
        };
        // The kernel writes the remaining time to the timeout. libc's `ppoll` must not change the
        // caller's timeout, so the kernel gets a copy.
        let mut spec = timeout.as_ref().copied();
        let spec_pointer = spec.as_mut().map_or(0, |spec| &raw mut *spec as usize);
        let args = [
            fds as usize,
            count as usize,
            spec_pointer,
            mask as usize,
            SIGNAL_MASK_LEN,
            0,
        ];
        handled_or_system_call(handled, libc::SYS_ppoll, args) as c_int
    }
}

/// Interposes libc's `ppoll(2)` in programs built with `_FORTIFY_SOURCE`. `len` is the size of the
/// array in bytes.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    len: usize,
) -> c_int {
    abort_if_too_short(count, len);
    // SAFETY: the caller upholds the safety contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}
