//! POSIX sockets over the ring API: descriptors, blocking, epoll, options, errno. Knows no TCP.
//!
//! The functions here are what `libtidelane.so` calls for descriptors that are ours; each returns
//! `None` where the system call shall be made instead. A socket starts as the kernel's:
//!
//! ```text
//! socket() -> Fresh --connect()--> Connecting --> Stream          (accelerated)
//!               |  \--connect()--> the kernel's for good          (route, option, no service)
//!               \--listen()----> Listening --accept()--> Stream | a plain kernel descriptor
//! ```
//!
//! | module | what |
//! |---|---|
//! | `table` | descriptor -> socket, slot -> socket, epoll descriptor -> lane |
//! | `socket`, `transfer`, `connect`, `listen`, `options`, `option_values`, `file` | one socket |
//! | `lane`, `watch`, `epoll`, `poll`, `wait` | readiness and waiting |
//! | `session`, `fork`, `exit`, `away` | the process and the service, and other processes |
//! | `sys` | system calls, never through libc's interposed names |

mod address;
mod arrive;
pub mod away;
mod cc_info;
pub mod connect;
pub mod descriptors;
pub mod epoll;
mod errno;
pub mod exit;
pub mod fast_open;
mod few;
pub mod file;
mod fork;
mod lane;
pub mod listen;
mod lock_unsafe;
mod option_values;
pub mod options;
pub mod poll;
mod report;
pub mod rings;
mod session;
mod socket;
mod static_cell_unsafe;
pub mod sys;
pub mod table;
mod tcp_info;
pub mod transfer;
pub mod urgent;
mod wait;
mod watch;

use std::os::fd::{BorrowedFd, RawFd};

pub use address::Address;
pub use errno::{Errno, Handled, TO_KERNEL};
pub use lane::Lane;
pub use socket::Socket;

/// The descriptor as the ring API takes it.
pub(crate) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    sys::borrow(fd)
}
