//! `libtidelane.so`: libc's socket calls, for `LD_PRELOAD`.
//!
//! Each exported function asks [`tidelane_sockets`] whether the descriptor is ours. If it is not,
//! which takes a load and a branch to see, the system call is made as libc would make it. No
//! function of libc that is interposed here is ever called from here, but for those that `next` of
//! `away_unsafe` finds.
//!
//! Not covered, because nothing calls these names: system calls made directly (Go, static
//! binaries), and stdio on `stdin`, `stdout` and `stderr` once a connection is there (`dup2`).

mod answer_unsafe;
mod away_unsafe;
mod bytes_unsafe;
mod cancellation_unsafe;
mod control_unsafe;
mod descriptors_unsafe;
mod fast_open_unsafe;
mod files_unsafe;
mod forks_unsafe;
mod readiness_unsafe;
mod rings_unsafe;
mod select_unsafe;
mod signals_unsafe;
mod spawn_unsafe;
mod stdio_unsafe;
mod syscall_unsafe;
