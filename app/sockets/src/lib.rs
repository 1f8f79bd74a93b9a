//! POSIX sockets over the ring API: descriptors, blocking, epoll, options, errno. Knows no TCP.
//!
//! The functions of [`calls`] are what `libtidelane.so` calls for descriptors that are ours; each
//! returns `None` where the system call shall be made instead. A socket starts as the kernel's
//! (`socket/state.rs` has the whole machine):
//!
//! ```text
//! socket() -> Fresh --connect()--> Connecting --> Stream          (accelerated)
//!               |  \--connect()--> the kernel's for good          (route, option, no service)
//!               \--listen()----> Listening --accept()--> Stream | a plain kernel descriptor
//! ```
//!
//! The layers, lowest first. A file imports from its own layer and from those before it; a lower
//! layer returns what is to be done, and never calls up. `tests/layers.rs` holds this.
//!
//! | layer | what |
//! |---|---|
//! | `sys` | system calls, never through libc's interposed names; locks, cells, names, errno |
//! | `table` | descriptor, slot and number -> object, whatever that is |
//! | `service` | the registration, its lanes of rings, the service that goes and comes back |
//! | `socket` | one socket: its state machine, its options, its error |
//! | `readiness` | who waits for which event, and who wakes |
//! | `calls` | one file for each family of calls |
//!
//! **Locks** are taken in this order, and never two of a kind, except that a new socket's is taken
//! under its listener's: an epoll instance's registrations (`readiness::interest`), a socket
//! (`socket::inner`), the registration with the service, a lane's ring (`service::lane`), and then
//! at most one of the others. `sys/order.rs` asserts it in debug builds.

// The model checks of `tests/loom.rs` need one file only.
#![cfg(not(loom))]

pub mod calls;
mod readiness;
mod service;
mod socket;
pub mod sys;
mod table;

pub use calls::{
    away, connect, descriptors, epoll, exit, fast_open, file, listen, options, poll, process,
    programs, rings, transfer, urgent,
};
pub use readiness::Instance;
pub use socket::Socket;
pub use sys::{Address, Errno, Handled, TO_KERNEL};
