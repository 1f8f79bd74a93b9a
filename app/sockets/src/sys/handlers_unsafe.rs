//! SA_RESTART: after a signal whose handler has this flag, a blocking call such as `recv` continues
//! instead of failing with EINTR.

use super::{SIGNAL_MASK_LEN, SignalMask, call};

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct KernelSigaction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: SignalMask,
}

/// Returns true if all signal handlers of the process were installed with SA_RESTART. Handlers of
/// libc and of this library count, too.
pub(crate) fn handlers_restart() -> bool {
    (1..=64).all(|signal| {
        let mut action = KernelSigaction::default();
        let args = [signal, 0, &raw mut action as usize, SIGNAL_MASK_LEN, 0, 0];
        // SAFETY: only reads the present action into a live structure of the kernel's layout.
        let known = unsafe { call(libc::SYS_rt_sigaction, args) }.is_ok();
        // 0 is SIG_DFL, and 1 is SIG_IGN.
        let caught = known && action.handler > 1;
        !caught || action.flags & libc::SA_RESTART as u64 != 0
    })
}
