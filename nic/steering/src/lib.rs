//! Steering of packets to the service, and a copy of the kernel's network configuration.
//!
//! The service is the process `tidelaned`, a TCP/IP stack in user space. A claim is a 3-tuple
//! (local address, protocol and local port) whose packets go to the service instead of the kernel.
//! The kernel keeps the packets of all other 3-tuples.
//!
//! * [`Demux`] loads the XDP program that redirects claimed packets to AF_XDP sockets, and updates
//!   the program's table of claims. Only the modules `bpf` and `firewall` use the eBPF loader
//!   `aya`, because the loader's interface changes often.
//! * [`kernel_tables::KernelTables`] copies the kernel's links, addresses, routes and neighbors
//!   over netlink. `KernelTables` also asks the kernel to resolve neighbors, because the service
//!   has no ARP of its own.
//! * [`firewall::Firewall`] lists the hooks of the kernel that packets of the service bypass.
//! * [`PortReservation`] holds a port in the kernel, so that no other program can bind the port.
//! * [`features::Features`] reads and changes the features that `ethtool -k` shows.
//! * [`Heartbeats`] let the demux (the XDP program of [`Demux`]) leave packets to the kernel when a
//!   core (a polling thread of the service) stops.
//! * [`links`] says which kinds of interfaces can be served, and knows special cases of drivers.
//! * [`Lookup`] queries the kernel for the listening socket that receives a SYN, and for
//!   connections.
//! * [`impair`] joins two interfaces by a link that drops and delays packets, for tests.
//!
//! Functions act on the network namespace of the calling thread. The methods of a value with a
//! socket (for example `KernelTables`, `Lookup` or `Features`) are an exception: these methods act
//! on the namespace of the thread that opened the value.
#![deny(unsafe_code)]

mod answers;
mod bpf;
mod demux;
mod error;
pub mod features;
pub mod firewall;
mod heartbeats;
pub mod impair;
pub mod kernel_tables;
pub mod links;
mod lookup;
mod reservation;
#[expect(unsafe_code, reason = "memory that the kernel shares")]
mod shared_words_unsafe;
#[expect(unsafe_code, reason = "system calls without a safe wrapper")]
mod sys;

pub use bpf::{AttachMode, AttachRequest};
pub use demux::{Buffers, Claim, Demux, DemuxCounters, Scope, StackId, Steering};
pub use error::SteeringError;
pub use heartbeats::{Heartbeat, Heartbeats};
pub use lookup::{FoundListener, Lookup};
pub use reservation::{BoundSocket, PortReservation};
