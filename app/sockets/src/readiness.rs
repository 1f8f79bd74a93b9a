//! Waiting for events: epoll, poll, select and blocking calls.
//!
//! The service (the process `tidelaned`) reports the events of accelerated sockets over channels. A
//! channel consists of rings and a doorbell, an eventfd that wakes a sleeping thread.
//!
//! | module | contents |
//! |---|---|
//! | `registration` | one registration: level-triggered, edge-triggered, one-shot, exclusive |
//! | `interest` | the interest list of an epoll instance, and its ready list |
//! | `instance` | an epoll instance: its channel and its registrations |
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
