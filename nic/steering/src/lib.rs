//! Which packets come to the service, and what the kernel knows about the network.
//!
//! * [`Demux`] loads the eBPF program that sends claimed packets to AF_XDP sockets, and feeds it
//!   claims. All use of the eBPF loader is in one module, `bpf`, since its interface moves.
//! * [`mirror::Mirror`] follows the kernel's links, addresses, routes and neighbors over netlink,
//!   and asks the kernel to resolve a neighbor: the service has no ARP of its own.
//! * [`PortReservation`] holds a port in the kernel, so that nobody else gets it.
//!
//! All of it acts on the network namespace of the calling thread.
#![forbid(unsafe_code)]

mod bpf;
mod demux;
mod error;
pub mod impair;
pub mod mirror;
mod reservation;

pub use bpf::AttachMode;
pub use demux::{Claim, Demux, DemuxCounters, StackId};
pub use error::SteeringError;
pub use reservation::PortReservation;
