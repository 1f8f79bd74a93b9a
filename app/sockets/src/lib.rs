//! POSIX sockets over `tidelane-client`: descriptors, blocking calls, epoll, options and errno.
//! This crate contains no TCP code, because TCP runs in the service, the process `tidelaned`.
//!
//! This crate is a part of `libtidelane.so`, the library that `tidelane run` preloads into a
//! program. The library exports libc's socket calls. For tracked descriptors, which are the TCP
//! sockets and epoll instances of the program, the library calls the functions of [`calls`]. A
//! function returns `None` if its caller has to make the system call instead.
//!
//! Every socket starts as a kernel socket. `socket/state.rs` has the whole state machine; its main
//! transitions are:
//!
//! ```text
//! socket() -> Fresh --connect()--> Connecting --> Stream          (accelerated)
//!               |  \--connect()--> Kernel                         (route, option, no service)
//!               \--listen()----> Listening --accept()--> Stream | a plain kernel descriptor
//! ```
//!
//! The service carries the connection of a socket in the state `Stream`. A socket becomes `Kernel`,
//! for example, if the route to the peer or an option requires the kernel's TCP, or if no service
//! runs.
//!
//! The layers follow, lowest first. A file imports only from its own layer and from lower layers. A
//! lower layer never calls up, but returns the remaining work to its caller. `tests/layers.rs`
//! checks the imports. A session is the registration of this process with the service. A channel is
//! a set of rings that this process shares with the service.
//!
//! | layer | contents |
//! |---|---|
//! | `sys` | system calls, never through interposed symbols; locks, cells, addresses, errno |
//! | `table` | lookup of objects by descriptor and by number |
//! | `service` | the session, the channels, and times without a service |
//! | `socket` | one socket: its state machine, options and pending error |
//! | `readiness` | waiters and wake-ups: epoll, poll and blocking calls |
//! | `calls` | the system calls, one file for each family |
//!
//! **Locks** are taken in this order: the interest list of an epoll instance
//! (`readiness::interest`), a socket (`socket::inner`), the session (`service::session`), the rings
//! of a channel (`service::channel`), and then at most one other lock. A thread holds at most one
//! lock of each kind, with one exception: `accept` takes the lock of the new socket while the
//! thread holds the lock of the listener. A `try_lock`, which does not wait, need not keep the
//! order. `sys/order.rs` asserts the order in debug builds.

// The loom tests (`tests/loom.rs`) include one file of this crate by its path, so the crate itself
// is empty if the `cfg` option `loom` is set.
#![cfg(not(loom))]

pub mod calls;
mod readiness;
mod service;
mod socket;
pub mod sys;
mod table;

pub use calls::{
    connect, descriptors, disconnect, epoll, exit, fast_open, file, hand_over, io_uring, listen,
    names, options, poll, process, programs, transfer, urgent,
};
pub use readiness::Instance;
pub use socket::Socket;
pub use sys::{Address, Errno, Handled, TO_KERNEL};
