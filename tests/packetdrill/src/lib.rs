//! Tidelane's TCP behind packetdrill's interface for stacks under test, in virtual time.
//!
//! `docs/design/packetdrill.md` describes its use, its clock, and blocking calls. Only the C
//! functions are unsafe. The conformance scripts of this project also use [`stack`] and the modules
//! below it.

pub mod address;
mod bytes_unsafe;
mod c_unsafe;
pub mod calls;
pub mod clock;
pub mod epoll;
pub mod errno;
pub mod fast_open;
pub mod info;
mod interface_unsafe;
pub mod ip6;
pub mod notices;
pub mod offload;
pub mod options;
pub mod packet;
mod preload_unsafe;
pub mod queue;
mod ready_unsafe;
pub mod records;
pub mod rtt;
pub mod settings;
pub mod shared;
pub mod socket;
pub mod stack;
pub mod stats;
pub mod streams;
pub mod transfer;
pub mod urgent;
pub mod wire;

#[cfg(test)]
mod tests;
