//! `select` and `pselect`. If a set contains a tracked descriptor, the calls are implemented with
//! `poll` of the crate `tidelane_sockets`. A tracked descriptor refers to a TCP socket that this
//! library (`libtidelane.so`) may accelerate, or to an epoll instance.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use libc::{pollfd, sigset_t, timespec, timeval};
use tidelane_sockets::{Handled, descriptors, poll, sys, sys::SignalMask};

use crate::{
    cancellation_unsafe::cancellation_point,
    libc_abi_unsafe::{fail_with_errno, handled_or_system_call, system_call},
    readiness_unsafe::{SIGNAL_MASK_LEN, timeout_ns},
};

/// Number of bits in a word of an `fd_set`.
const WORD_BITS: usize = usize::BITS as usize;

/// The three descriptor sets of a `select`, as arrays of words.
struct Sets<'a> {
    /// `readfds`, `writefds` and `exceptfds`, or `None` for a null pointer.
    sets: [Option<&'a mut [usize]>; 3],
}

/// Events that make a descriptor ready in each set (Linux: POLLIN_SET, POLLOUT_SET, POLLEX_SET).
const SET_EVENTS: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
    libc::POLLPRI,
];

impl<'a> Sets<'a> {
    /// Borrows the program's sets. `count` is the argument `nfds` of `select`: the highest
    /// descriptor in the sets, plus one.
    ///
    /// # Safety
    ///
    /// Each pointer must be null, or valid for `count` bits in whole words.
    unsafe fn new(pointers: [*mut c_void; 3], count: usize) -> Self {
        let words = count.div_ceil(WORD_BITS);
        let sets = pointers.map(|pointer| {
            // SAFETY: the caller upholds the safety contract.
            (!pointer.is_null())
                .then(|| unsafe { slice::from_raw_parts_mut(pointer.cast::<usize>(), words) })
        });
        Self { sets }
    }

    /// Returns true if the set with the index `set` in `sets` contains `fd`.
    fn contains(&self, set: usize, fd: usize) -> bool {
        let words = self.sets[set].as_ref();
        words.is_some_and(|words| words[fd / WORD_BITS] & (1 << (fd % WORD_BITS)) != 0)
    }

    /// Returns a `pollfd` for each descriptor that is in a set. `count` is the argument `nfds`.
    fn entries(&self, count: usize) -> Vec<pollfd> {
        let mut entries = Vec::new();
        for fd in 0..count {
            let mut events = 0;
            for (set, bits) in SET_EVENTS.iter().enumerate() {
                if self.contains(set, fd) {
                    events |= bits;
                }
            }
            if events != 0 {
                entries.push(pollfd {
                    fd: fd as c_int,
                    events,
                    revents: 0,
                });
            }
        }
        entries
    }

    /// Returns true if a set contains a tracked descriptor, or a descriptor of the library itself.
    /// Does not allocate, because most calls of `select` have no tracked descriptor.
    fn has_tracked(&self, count: usize) -> bool {
        let is_tracked = |fd: usize| !descriptors::is_foreign(fd as c_int);
        (0..count).any(|fd| (0..3).any(|set| self.contains(set, fd)) && is_tracked(fd))
    }

    /// Clears the bits of all descriptors that are not ready. `entries` has the events that `poll`
    /// found. Returns the number of bits that stay set.
    fn keep_ready(&mut self, count: usize, entries: &[pollfd]) -> usize {
        let asked: Vec<[bool; 3]> = entries
            .iter()
            .map(|entry| [0, 1, 2].map(|set| self.contains(set, entry.fd as usize)))
            .collect();
        for words in self.sets.iter_mut().flatten() {
            words[..count.div_ceil(WORD_BITS)].fill(0);
        }
        let mut ready = 0;
        for (entry, asked) in entries.iter().zip(asked) {
            let fd = entry.fd as usize;
            for set in 0..3 {
                if asked[set]
                    && entry.revents & SET_EVENTS[set] != 0
                    && let Some(words) = &mut self.sets[set]
                {
                    words[fd / WORD_BITS] |= 1 << (fd % WORD_BITS);
                    ready += 1;
                }
            }
        }
        ready
    }
}

/// Implements `select` and `pselect` if a set contains a tracked descriptor. Returns `None` if the
/// kernel must handle the call. This is so if `count` is negative, if no set contains a tracked
/// descriptor, or if all events of the descriptors come from the kernel.
///
/// # Safety
///
/// Each pointer must be null, or valid for `count` bits in whole words.
unsafe fn select_tracked(
    count: c_int,
    pointers: [*mut c_void; 3],
    timeout_ns: Option<u64>,
    mask: Option<SignalMask>,
) -> Handled {
    let count = usize::try_from(count).ok()?;
    // SAFETY: the caller upholds the safety contract.
    let mut sets = unsafe { Sets::new(pointers, count) };
    if !sets.has_tracked(count) {
        return None;
    }
    let mut entries = sets.entries(count);
    match poll::poll(&mut entries, timeout_ns, mask)? {
        Ok(_)
            if entries
                .iter()
                .any(|entry| entry.revents & libc::POLLNVAL != 0) =>
        {
            Some(Err(tidelane_sockets::Errno(libc::EBADF)))
        }
        Ok(_) => Some(Ok(sets.keep_ready(count, &entries))),
        Err(error) => Some(Err(error)),
    }
}

/// Interposes libc's `select(2)`. As in Linux, writes the remaining time to `timeout`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: *mut timeval,
) -> c_int {
    cancellation_point();
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let timeout_ns = timeout.as_ref().map(|time| {
            let seconds = (time.tv_sec.max(0) as u64).saturating_mul(1_000_000_000);
            seconds.saturating_add(time.tv_usec.max(0) as u64 * 1_000)
        });
        let invalid = timeout
            .as_ref()
            .is_some_and(|t| t.tv_sec < 0 || t.tv_usec < 0);
        let begin = if timeout_ns.is_some() {
            sys::monotonic_ns()
        } else {
            0
        };
        let handled = if invalid {
            None
        } else {
            select_tracked(count, [read, write, except], timeout_ns, None)
        };
        if handled.is_none() {
            return select_in_kernel(count, [read, write, except], timeout);
        }
        if let (Some(timeout), Some(all)) = (timeout.as_mut(), timeout_ns) {
            let left = all.saturating_sub(sys::monotonic_ns() - begin);
            timeout.tv_sec = (left / 1_000_000_000) as i64;
            timeout.tv_usec = (left % 1_000_000_000 / 1_000) as i64;
        }
        // `handled` is a result here, so `handled_or_system_call` makes no system call.
        handled_or_system_call(handled, 0, [0; 6]) as c_int
    }
}

/// Passes a `select` to the kernel as `pselect6`, because aarch64 has no system call `select`.
///
/// # Safety
///
/// The same as for `select`.
unsafe fn select_in_kernel(count: c_int, sets: [*mut c_void; 3], timeout: *mut timeval) -> c_int {
    // SAFETY: the caller upholds the safety contract, and the local structures are live during the
    // call.
    unsafe {
        // As in glibc, `tv_usec` may be a second or more, but must not be negative.
        if timeout.as_ref().is_some_and(|time| time.tv_usec < 0) {
            return fail_with_errno(libc::EINVAL) as c_int;
        }
        let spec = timeout.as_ref().map(|time| timespec {
            tv_sec: time.tv_sec + time.tv_usec / 1_000_000,
            tv_nsec: time.tv_usec % 1_000_000 * 1_000,
        });
        let spec_pointer = spec.as_ref().map_or(0, |spec| &raw const *spec as usize);
        let [read, write, except] = sets;
        let args = [
            count as usize,
            read as usize,
            write as usize,
            except as usize,
            spec_pointer,
            0,
        ];
        let result = system_call(libc::SYS_pselect6, args) as c_int;
        if let (Some(timeout), Some(spec)) = (timeout.as_mut(), &spec) {
            let left = std::ptr::read_volatile(spec);
            timeout.tv_sec = left.tv_sec;
            timeout.tv_usec = left.tv_nsec / 1_000;
        }
        result
    }
}

/// Interposes libc's `pselect(2)`.
///
/// # Safety
///
/// The arguments must be valid as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancellation_point();
    // SAFETY: the caller upholds the safety contract, and the local structures are live during the
    // call.
    unsafe {
        let handled = match timeout_ns(timeout) {
            Some(timeout_ns) => {
                let mask = mask.cast::<SignalMask>().as_ref().copied();
                select_tracked(count, [read, write, except], timeout_ns, mask)
            }
            None => None,
        };
        let spec = timeout.as_ref().copied();
        let spec_pointer = spec.as_ref().map_or(0, |spec| &raw const *spec as usize);
        let mask_and_len = [mask as usize, SIGNAL_MASK_LEN];
        let args = [
            count as usize,
            read as usize,
            write as usize,
            except as usize,
            spec_pointer,
            &raw const mask_and_len as usize,
        ];
        handled_or_system_call(handled, libc::SYS_pselect6, args) as c_int
    }
}

/// Handles the system call `pselect6`. Unlike the kernel, leaves `timeout` unchanged.
///
/// # Safety
///
/// The arguments must be valid as for the system call. `mask_and_len` must be null, or point to the
/// address and the length of a signal mask.
pub(crate) unsafe fn pselect6(
    count: c_int,
    sets: [usize; 3],
    timeout: *const timespec,
    mask_and_len: *const [usize; 2],
) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    let [mask, len] = unsafe { mask_and_len.as_ref() }
        .copied()
        .unwrap_or_default();
    if mask != 0 && len != SIGNAL_MASK_LEN {
        return fail_with_errno(libc::EINVAL) as c_int;
    }
    let [read, write, except] = sets.map(|set| set as *mut c_void);
    // SAFETY: the caller upholds the safety contract.
    unsafe { pselect(count, read, write, except, timeout, mask as *const sigset_t) }
}
