//! The calls, a file for each family: each asks the modules below, and answers "done", an errno, or
//! "the call is the kernel's" (`None`).
//!
//! | module | calls |
//! |---|---|
//! | `connect` | `socket`, `bind`, `connect`, `shutdown`, names |
//! | `listen` | `listen`, `accept` |
//! | `fast_open` | MSG_FASTOPEN |
//! | `transfer`, `urgent`, `file` | bytes, urgent data, `sendfile` and `splice` |
//! | `options` | `setsockopt`, `getsockopt` |
//! | `epoll`, `poll` | epoll; `poll` and `select` |
//! | `descriptors` | `close`, `dup`, `fcntl` |
//! | `process`, `exit`, `away`, `rings` | `fork`, the end, what cannot be passed on, io_uring |
//! | `programs` | `exec`, `posix_spawn`: programs that the library cannot serve |

pub mod away;
mod bounce;
pub mod connect;
pub mod descriptors;
pub mod epoll;
pub mod exit;
pub mod fast_open;
pub mod file;
pub mod listen;
pub mod options;
pub mod poll;
pub mod process;
pub mod programs;
pub mod rings;
pub mod transfer;
pub mod urgent;
