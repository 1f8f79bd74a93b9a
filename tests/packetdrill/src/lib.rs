//! A library with which packetdrill tests Tidelane's TCP in virtual time. packetdrill runs scripts
//! of socket calls and packets, and checks the packets that a stack sends.
//!
//! packetdrill loads this crate as a shared library, and calls its C functions (packetdrill's
//! interface for stacks under test). The conformance tests of this project link this crate instead,
//! and call the same [`stack`] from Rust. `docs/design/packetdrill.md` describes the use of the
//! library, the virtual clock and blocking calls. Only the modules whose names end in `_unsafe`
//! contain unsafe code.

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
