//! Tidelane's TCP behind packetdrill's interface for stacks under test, in virtual time.
//! packetdrill runs scripts of socket calls and packets, and checks the packets that a stack sends.
//!
//! packetdrill loads this crate as a shared library and drives it through C functions. The
//! conformance scripts of this project use the same [`stack`] in process, without the C functions.
//! `docs/design/packetdrill.md` describes the use of the library, the virtual clock and blocking
//! calls. Only the modules ending in `_unsafe` contain unsafe code.

pub mod address;
mod bytes_unsafe;
mod c_unsafe;
pub mod calls;
pub mod clock;
pub mod errno;
pub mod inbound;
mod interface_unsafe;
pub mod ip6;
pub mod offload;
pub mod packet;
mod preload_unsafe;
pub mod queue;
mod ready_unsafe;
pub mod records;
pub mod role;
pub mod rtt;
pub mod settings;
pub mod shared;
pub mod stack;
pub mod streams;
pub mod wire;

pub use stack::{epoll, error_queue, fast_open, info, options, socket, stats, transfer, urgent};

#[cfg(test)]
mod tests;
