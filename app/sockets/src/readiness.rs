//! Which thread waits for which event: epoll, poll, select and blocking calls over one set.
//!
//! | module | what |
//! |---|---|
//! | `watch` | one registration: level, edge, once, exclusive |
//! | `interest` | the registrations of an epoll instance, and its ready list |
//! | `instance` | an epoll instance: its lane and its registrations |
//! | `events` | a lane's events, sorted to sockets and ready lists |
//! | `nested` | epoll instances within another one |
//! | `kernel_events` | what the kernel's epoll instance reports beside them |
//! | `wait` | a thread that sleeps, for sockets and the kernel's descriptors |
//! | `wake` | whom news wake |

mod events;
pub(crate) mod instance;
pub(crate) mod interest;
pub(crate) mod kernel_events;
pub(crate) mod nested;
pub(crate) mod wait;
pub(crate) mod wake;
pub(crate) mod watch;

pub use instance::Instance;
