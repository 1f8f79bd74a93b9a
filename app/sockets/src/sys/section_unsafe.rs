//! Sections: parts of the library (`libtidelane.so`, which contains this crate) that no signal
//! handler of the program interrupts.
//!
//! A handler may use sockets, fork, allocate, or jump out of the interrupted call. A handler that
//! ran within a section would find locks that its own thread holds, and half-changed data. The
//! library therefore installs its own handler in front of the program's handlers (`signals_unsafe`
//! in the crate `tidelane-preload`). The library's handler defers a signal that arrives within a
//! section to the end of the section. Two kinds of handlers also run within a section: one-shot
//! handlers (SA_RESETHAND), and handlers of signals that an instruction raises, such as SIGSEGV.
//!
//! ```text
//! signal -> handler -> not in a section: call the program's handler
//!                  \-> in a section: block the signals, send the signal again, return
//! end of the section, if a signal was deferred: unblock -> the kernel delivers the signal
//! ```
//!
//! A section needs no system call unless a signal arrives within it. The kernel delivers the signal
//! again with the mask, stack and flags that the program set for its handler.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::{Errno, SIGNAL_MASK_LEN, SignalMask, call, process_id};

/// The state of a thread's sections.
#[repr(C)]
#[derive(Debug)]
struct SectionState {
    /// Nesting depth of sections; 0 outside of sections.
    depth: AtomicU32,
    /// Not zero after a signal was deferred. All signals that a section can defer are then blocked.
    deferred: AtomicU32,
    /// The thread's signal mask before the library's handler blocked the signals that a section can
    /// defer. `deliver` restores this mask.
    mask: AtomicU64,
    /// The state of a request of `pthread_cancel`: see `cancellation_unsafe`.
    cancellation: AtomicU32,
    /// The number of the thread's own channel (rings and a doorbell that this process shares with
    /// the service) plus one, or 0 if the thread has no own channel: see
    /// `service::thread_channels`.
    channel: AtomicU32,
}

// The thread's `SectionState` is in the static TLS block of libraries that are loaded with the
// program. An access takes two instructions there. `thread_local!` would call a function for each
// access.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".p2align 3",
    ".globl tidelane_section_state",
    ".hidden tidelane_section_state",
    ".type tidelane_section_state,@object",
    ".size tidelane_section_state,24",
    "tidelane_section_state:",
    ".zero 24",
    ".popsection",
);

/// Returns the offset of `SectionState` from the thread pointer, which is the same in all threads.
#[cfg(target_arch = "x86_64")]
#[inline]
fn offset() -> usize {
    let offset: usize;
    // SAFETY: loads the state's offset from the thread pointer.
    unsafe {
        core::arch::asm!(
            "movq tidelane_section_state@gottpoff(%rip), {}",
            out(reg) offset,
            options(nostack, pure, readonly, preserves_flags, att_syntax)
        );
    }
    offset
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn state() -> &'static SectionState {
    let address = super::thread_identity().wrapping_add(offset());
    // SAFETY: the state has this size and alignment. Its initial zeros are valid. The state lives
    // as long as its thread, and only this thread uses the reference.
    unsafe { &*(address as *const SectionState) }
}

#[cfg(not(target_arch = "x86_64"))]
fn state() -> &'static SectionState {
    thread_local! {
        static STATE: SectionState = const {
            SectionState {
                depth: AtomicU32::new(0),
                deferred: AtomicU32::new(0),
                mask: AtomicU64::new(0),
                cancellation: AtomicU32::new(0),
                channel: AtomicU32::new(0),
            }
        };
    }
    // SAFETY: the state has no destructor. The state lives as long as its thread, and only this
    // thread uses the reference.
    STATE.with(|state| unsafe { &*core::ptr::from_ref(state) })
}

/// Returns the cancellation word of the calling thread.
#[inline]
pub(super) fn cancellation() -> &'static AtomicU32 {
    &state().cancellation
}

/// Returns the word in which the calling thread keeps the number of its own channel plus one. The
/// word is 0 if the thread has no own channel.
#[inline]
pub(crate) fn channel_word() -> &'static AtomicU32 {
    &state().channel
}

/// Returns the cancellation word of another thread.
///
/// # Safety
///
/// `thread` is the thread pointer of a thread that was not joined, and `'a` ends before the join.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn cancellation_of<'a>(thread: usize) -> &'a AtomicU32 {
    let address = thread.wrapping_add(offset());
    // SAFETY: static thread-local memory is at the same offset in all threads, and the C library
    // keeps a thread's memory until the thread is joined.
    unsafe { &(*(address as *const SectionState)).cancellation }
}

/// Signals that the thread's own instructions raise. A section cannot defer these signals, because
/// the instruction would raise the signal again.
pub const OF_INSTRUCTIONS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Returns the set of all signals that a section can defer.
fn all() -> SignalMask {
    let bit = |signal: &i32| 1 << (signal - 1);
    !OF_INSTRUCTIONS
        .iter()
        .map(bit)
        .fold(0, |all, bit: u64| all | bit)
}

/// Returns true if the thread is within a section.
pub(super) fn is_inside() -> bool {
    state().depth.load(Ordering::Relaxed) != 0
}

/// Begins a section, which `leave` ends.
#[inline]
pub(crate) fn enter() {
    let depth = &state().depth;
    depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Ends a section. At the end of the outermost section, delivers the deferred signals.
#[inline]
pub(crate) fn leave() {
    compiler_fence(Ordering::SeqCst);
    let state = state();
    let left = state.depth.load(Ordering::Relaxed).wrapping_sub(1);
    state.depth.store(left, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if left == 0 && state.deferred.load(Ordering::Relaxed) != 0 {
        deliver(state);
    }
}

/// Unblocks the signals, so that the kernel delivers the deferred signals.
#[cold]
fn deliver(state: &SectionState) {
    state.deferred.store(0, Ordering::Relaxed);
    let mask = state.mask.load(Ordering::Relaxed);
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
    // SAFETY: both masks are live and have the given length.
    unsafe { call(libc::SYS_rt_sigprocmask, args) }.map(|_| before)
}

/// An open section, which ends when the value is dropped.
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

/// Suspends the thread's sections while `sleep` makes a blocking system call, so that a signal can
/// interrupt the call. Returns the result of `sleep`.
///
/// If a signal was deferred before, delivers the signal and returns EINTR, as if the signal had
/// arrived during the call. The signal's handler may jump out and never return here.
#[inline]
pub(crate) fn suspended<R>(sleep: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let state = state();
    let depth = state.depth.load(Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    state.depth.store(0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = if state.deferred.load(Ordering::Relaxed) != 0 {
        deliver(state);
        Err(Errno(libc::EINTR))
    } else {
        sleep()
    };
    state.depth.store(depth, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    result
}

/// Defers a signal if it interrupted a section. Returns true if the signal was deferred. The caller
/// is the library's handler, which then returns without calling the program's handler.
///
/// # Safety
///
/// The caller is a signal handler and passes the arguments from the kernel.
pub unsafe fn defer_signal(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    let state = state();
    if state.depth.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // No handler of a signal that a section can defer runs from here on.
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
    // SAFETY: the caller guarantees that `info` is live.
    let sent = unsafe { call(libc::SYS_rt_tgsigqueueinfo, args) }.is_ok();
    // SAFETY: the caller guarantees that `context` is live. The kernel uses the first word of the
    // mask.
    let mask = unsafe { &raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask };
    let mask = mask.cast::<SignalMask>();
    // SAFETY: as above. The kernel takes the mask over when the handler returns.
    unsafe {
        // This handler may have interrupted another call of this function before that call blocked
        // the signals. In this case, the interrupted call later replaces this value by the thread's
        // original mask.
        state.mask.store(*mask, Ordering::Relaxed);
        *mask |= all();
    }
    state.deferred.store(1, Ordering::Relaxed);
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_counted_and_suspended() {
        let depth = || state().depth.load(Ordering::Relaxed);
        assert_eq!(depth(), 0);
        {
            let _outer = Section::enter();
            let _inner = Section::enter();
            assert_eq!(depth(), 2);
            assert_eq!(suspended(|| Ok(depth())), Ok(0));
            assert_eq!(depth(), 2);
        }
        assert_eq!(depth(), 0);
        // Each thread has its own sections.
        let _here = Section::enter();
        let there = std::thread::spawn(|| state().depth.load(Ordering::Relaxed));
        assert_eq!(there.join().expect("a thread"), 0);
    }
}
