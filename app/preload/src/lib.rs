//! `libtidelane.so`, which interposes libc's socket calls by `LD_PRELOAD`.
//!
//! A tracked descriptor refers to a TCP socket or an epoll instance that the library knows. Each
//! exported function asks [`tidelane_sockets`] whether the descriptor is tracked, at the cost of a
//! load and a branch. If the descriptor is not tracked, the function makes the same system call as
//! libc. The library never calls a libc function that it interposes, except through `next_symbol`
//! of `hand_over_unsafe`.
//!
//! The library does not intercept all calls. The library misses system calls that a program makes
//! without libc (Go, static binaries). The library also misses stdio on `stdin`, `stdout` and
//! `stderr` after a connection was duplicated to their descriptors (`dup2`).

mod bytes_unsafe;
mod cancellation_unsafe;
mod control_unsafe;
mod descriptors_unsafe;
mod fast_open_unsafe;
mod files_unsafe;
mod forks_unsafe;
mod hand_over_unsafe;
mod io_uring_unsafe;
mod libc_abi_unsafe;
mod readiness_unsafe;
mod select_unsafe;
mod signals_unsafe;
mod spawn_unsafe;
mod stdio_unsafe;
mod syscall_unsafe;
