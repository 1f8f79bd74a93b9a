//! Sections: stretches of the library's code that no signal handler of the program interrupts.
//!
//! A handler may use sockets, fork, allocate or jump out of the call that it interrupted. Within a
//! section it would find locks that its own thread has, and memory that is half changed. The
//! library therefore stands between the kernel and the program's handlers (`preload`), and a signal
//! that arrives within a section is put off until the section's end.
//!
//! ```text
//! signal -> handler -> the thread is in no section: the program's handler
//!                  \-> in a section: blocks all signals, sends this one again, returns
//! end of the section: was a signal put off? unblock -> the kernel delivers it here
//! ```
//!
//! A section costs no system call unless a signal comes within it. The kernel does the rest: masks,
//! stacks and flags are those that the program asked for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::{Errno, SIGNAL_MASK_LEN, SignalMask, call, process_id};

/// What a thread knows of its sections.
#[repr(C)]
#[derive(Debug)]
struct Place {
    /// Sections within sections; 0: none.
    depth: AtomicU32,
    /// Not zero: a signal was put off, and all are blocked.
    put_off: AtomicU32,
    /// What was blocked before.
    mask: AtomicU64,
    /// The state of a request of `pthread_cancel`: see `cancellation_unsafe`.
    cancellation: AtomicU32,
}

// The thread's `Place`, in the block of thread-local memory that a library has which is loaded with
// the program: two instructions away. (`thread_local!` calls a function for each access.)
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".p2align 3",
    ".globl tidelane_section_place",
    ".hidden tidelane_section_place",
    ".type tidelane_section_place,@object",
    ".size tidelane_section_place,24",
    "tidelane_section_place:",
    ".zero 24",
    ".popsection",
);

/// The distance of each thread's place from its thread pointer.
#[cfg(target_arch = "x86_64")]
#[inline]
fn offset() -> usize {
    let offset: usize;
    // SAFETY: loads the place's distance from the thread pointer.
    unsafe {
        core::arch::asm!(
            "movq tidelane_section_place@gottpoff(%rip), {}",
            out(reg) offset,
            options(nostack, pure, readonly, preserves_flags, att_syntax)
        );
    }
    offset
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn place() -> &'static Place {
    let address = super::thread_identity().wrapping_add(offset());
    // SAFETY: the place has this size and alignment, is zero at first, which is valid, and lives as
    // long as its thread, which is the only one that has the reference.
    unsafe { &*(address as *const Place) }
}

#[cfg(not(target_arch = "x86_64"))]
fn place() -> &'static Place {
    thread_local! {
        static PLACE: Place = const {
            Place { depth: AtomicU32::new(0), put_off: AtomicU32::new(0), mask: AtomicU64::new(0),
                cancellation: AtomicU32::new(0) }
        };
    }
    // SAFETY: it has no destructor, and lives as long as its thread, which keeps the reference.
    PLACE.with(|place| unsafe { &*core::ptr::from_ref(place) })
}

/// The calling thread's state of cancellation.
#[inline]
pub(super) fn cancellation() -> &'static AtomicU32 {
    &place().cancellation
}

/// Another thread's state of cancellation.
///
/// # Safety
///
/// `thread` is the thread pointer of a thread that nobody has joined, and `'a` ends before that.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn cancellation_of<'a>(thread: usize) -> &'a AtomicU32 {
    let address = thread.wrapping_add(offset());
    // SAFETY: static thread-local memory has the same place in all threads, and the C library keeps
    // a thread's memory until the thread is joined.
    unsafe { &(*(address as *const Place)).cancellation }
}

/// Signals that the thread's own instructions raise: they cannot wait.
pub const OF_INSTRUCTIONS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// All signals that can wait.
fn all() -> SignalMask {
    let bit = |signal: &i32| 1 << (signal - 1);
    !OF_INSTRUCTIONS
        .iter()
        .map(bit)
        .fold(0, |all, bit: u64| all | bit)
}

/// Returns true if the thread is within a section.
pub(super) fn is_inside() -> bool {
    place().depth.load(Ordering::Relaxed) != 0
}

/// A section begins. `leave` ends it.
#[inline]
pub(crate) fn enter() {
    let depth = &place().depth;
    depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// The reverse of `enter`.
#[inline]
pub(crate) fn leave() {
    compiler_fence(Ordering::SeqCst);
    let place = place();
    let left = place.depth.load(Ordering::Relaxed).wrapping_sub(1);
    place.depth.store(left, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if left == 0 && place.put_off.load(Ordering::Relaxed) != 0 {
        deliver(place);
    }
}

/// The signals that were put off come now.
#[cold]
fn deliver(place: &Place) {
    place.put_off.store(0, Ordering::Relaxed);
    let mask = place.mask.load(Ordering::Relaxed);
    let _ = change_mask(libc::SIG_SETMASK, mask);
}

fn change_mask(how: i32, mask: SignalMask) -> Result<SignalMask, Errno> {
    let mut before: SignalMask = 0;
    let args = [
        how as usize,
        &raw const mask as usize,
        &raw mut before as usize,
        SIGNAL_MASK_LEN,
        0,
        0,
    ];
    // SAFETY: both masks are live and as long as said.
    unsafe { call(libc::SYS_rt_sigprocmask, args) }.map(|_| before)
}

/// A section while this lives.
#[derive(Debug)]
pub(crate) struct Section(());

impl Section {
    /// Begins a section.
    #[inline]
    pub(crate) fn enter() -> Self {
        enter();
        Self(())
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        leave();
    }
}

/// A system call that sleeps, within sections: they are suspended meanwhile. EINTR if a signal was
/// put off before, as if it had come during the call. (A handler may never return here.)
#[inline]
pub(crate) fn suspended<R>(sleep: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let place = place();
    let depth = place.depth.load(Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    place.depth.store(0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = if place.put_off.load(Ordering::Relaxed) != 0 {
        deliver(place);
        Err(Errno(libc::EINTR))
    } else {
        sleep()
    };
    place.depth.store(depth, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    result
}

/// The kernel delivers `signal`. Returns true if it was put off, and the handler has to return.
///
/// # Safety
///
/// To be called within a handler, with what the kernel gave it.
pub unsafe fn puts_off(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    let place = place();
    if place.depth.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // No other handler comes between from here on.
    if change_mask(libc::SIG_BLOCK, all()).is_err() {
        return false;
    }
    let thread = super::call1(libc::SYS_gettid, 0).unwrap_or(0);
    let args = [
        process_id() as usize,
        thread,
        signal as usize,
        info as usize,
        0,
        0,
    ];
    // SAFETY: the caller's promise: `info` is live.
    let sent = unsafe { call(libc::SYS_rt_tgsigqueueinfo, args) }.is_ok();
    // SAFETY: the caller's promise. The kernel's mask is the first word of libc's.
    let mask = unsafe { &raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    let mask = mask.cast::<SignalMask>();
    // SAFETY: as above. The kernel takes the mask over when the handler returns.
    unsafe {
        // Where this handler interrupted another one of these, that one's mask counts: it comes
        // later.
        place.mask.store(*mask, Ordering::Relaxed);
        *mask |= all();
    }
    place.put_off.store(1, Ordering::Relaxed);
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_counted_and_suspended() {
        let depth = || place().depth.load(Ordering::Relaxed);
        assert_eq!(depth(), 0);
        {
            let _outer = Section::enter();
            let _inner = Section::enter();
            assert_eq!(depth(), 2);
            assert_eq!(suspended(|| Ok(depth())), Ok(0));
            assert_eq!(depth(), 2);
        }
        assert_eq!(depth(), 0);
        // Each thread has its own.
        let _here = Section::enter();
        let there = std::thread::spawn(|| place().depth.load(Ordering::Relaxed));
        assert_eq!(there.join().expect("a thread"), 0);
    }
}
