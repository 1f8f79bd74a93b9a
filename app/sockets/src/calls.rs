//! The socket calls of the program, one module for each family of calls.
//!
//! The preloaded library `libtidelane.so` (crate `tidelane-preload`) exports functions with libc's
//! names, which call the functions of these modules. A function that carries out a call returns the
//! result of the call or an errno, or `None` if the kernel has to handle the call.
//!
//! | module | calls |
//! |---|---|
//! | `connect` | `socket`, `bind`, `connect`, `shutdown` |
//! | `names` | `getsockname`, `getpeername` |
//! | `listen` | `listen`, `accept` |
//! | `disconnect` | `shutdown` of a listener, `connect` to no address (AF_UNSPEC) |
//! | `fast_open` | active opens with TCP Fast Open (MSG_FASTOPEN) |
//! | `transfer`, `urgent`, `file` | payload; urgent data; `sendfile` and `splice` |
//! | `options` | `setsockopt`, `getsockopt` |
//! | `epoll`, `poll` | epoll; `poll` and `select` |
//! | `descriptors` | `close`, `dup`, `fcntl` |
//! | `process`, `exit` | `fork`; the end of the process |
//! | `hand_over` | `exec` and SCM_RIGHTS, which pass connections to another program |
//! | `io_uring` | `io_uring_setup`, which usually fails |
//! | `programs` | `exec` and `posix_spawn` of programs that `libtidelane.so` cannot serve |

mod bounce;
pub mod connect;
pub mod descriptors;
pub mod disconnect;
pub mod epoll;
pub mod exit;
pub mod fast_open;
pub mod file;
pub mod hand_over;
pub mod io_uring;
pub mod listen;
pub mod names;
pub mod options;
pub mod poll;
pub mod process;
pub mod programs;
pub mod transfer;
pub mod urgent;
