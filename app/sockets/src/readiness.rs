//! Waiting for events: epoll, poll, select and blocking calls.
//!
//! An accelerated socket has a connection that the service (the process `tidelaned`) carries. The
//! service reports events of these sockets over channels. A channel consists of rings and a
//! doorbell, which is an eventfd that wakes a sleeping thread.
//!
//! The interest list of an epoll instance contains its registrations, one for each descriptor of a
//! socket that the program has added. The ready list contains the registrations that the next wait
//! checks.
//!
//! | module | contents |
//! |---|---|
//! | `registration` | one registration: level-triggered, edge-triggered or one-shot |
//! | `interest` | the interest list of an epoll instance, and its ready list |
//! | `instance` | an epoll instance: its channel and its interest list |
//! | `events` | distribution of a channel's events to sockets and ready lists |
//! | `nested` | epoll instances that are registered with another epoll instance |
//! | `kernel_events` | the events that the kernel's epoll instance reports |
//! | `wait` | a thread that sleeps until a socket or a kernel descriptor has an event |
//! | `wake` | the wake-ups of waiting threads |

mod events;
pub(crate) mod instance;
pub(crate) mod interest;
pub(crate) mod kernel_events;
pub(crate) mod nested;
pub(crate) mod registration;
pub(crate) mod wait;
pub(crate) mod wake;

pub use instance::Instance;
