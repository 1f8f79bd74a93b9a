//! Which packets come to the service, and what the kernel knows about the network.
//!
//! * [`Demux`] loads the eBPF program that sends claimed packets to AF_XDP sockets, and feeds it
//!   claims. All use of the eBPF loader is in one module, `bpf`, since its interface moves.
//! * [`mirror::Mirror`] follows the kernel's links, addresses, routes and neighbors over netlink,
//!   and asks the kernel to resolve a neighbor: the service has no ARP of its own.
//! * [`firewall::Firewall`] names the hooks of the kernel that packets of the service do not pass.
//! * [`PortReservation`] holds a port in the kernel, so that nobody else gets it.
//! * [`features::Features`] are what `ethtool -k` shows of an interface.
//! * [`Heartbeats`] are signs of life, without which the demux leaves the packets to the kernel.
//! * [`Lookup`] asks the kernel to which listening socket it would deliver.
//!
//! All of it acts on the network namespace of the calling thread.
#![deny(unsafe_code)]

mod bpf;
mod demux;
mod error;
pub mod features;
pub mod firewall;
mod heartbeats;
pub mod impair;
mod lookup;
pub mod mirror;
mod reservation;
#[expect(unsafe_code, reason = "memory that the kernel shares")]
mod shared_words_unsafe;
#[expect(unsafe_code, reason = "system calls without a safe wrapper")]
mod sys;

pub use bpf::{AttachMode, AttachWish};
pub use demux::{Buffers, Claim, Demux, DemuxCounters, Scope, StackId, Steering};
pub use error::SteeringError;
pub use heartbeats::{Heartbeat, Heartbeats};
pub use lookup::{FoundListener, Lookup};
pub use reservation::{PortReservation, Twin};
