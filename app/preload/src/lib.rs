//! `libtidelane.so`, the library that `LD_PRELOAD` loads into a program to interpose libc's socket
//! calls.
//!
//! A tracked descriptor refers to a TCP socket or an epoll instance that the library knows. An
//! exported function with a descriptor as its argument asks [`tidelane_sockets`] whether the
//! descriptor is tracked, at the cost of a load and a branch. If the descriptor is not tracked, the
//! function has the same effect as libc's function of the same name. If the library needs libc's
//! own definition of a function, it finds this definition with `dlsym` (`next_symbol_unsafe`).
//!
//! The library does not intercept the system calls that a program makes without libc (Go, static
//! binaries).

mod bytes_unsafe;
mod cancellation_unsafe;
mod close_unsafe;
mod control_unsafe;
mod cookie_stream_unsafe;
mod descriptors_unsafe;
mod exit_unsafe;
mod fast_open_unsafe;
mod files_unsafe;
mod forks_unsafe;
mod formatted_unsafe;
mod hand_over_unsafe;
mod io_uring_unsafe;
mod libc_abi_unsafe;
mod message_arrays_unsafe;
mod next_symbol_unsafe;
mod readiness_unsafe;
mod select_unsafe;
mod signals_unsafe;
mod spawn_unsafe;
mod standard_streams_unsafe;
mod stdio_unsafe;
mod syscall_unsafe;
mod vectors_unsafe;
