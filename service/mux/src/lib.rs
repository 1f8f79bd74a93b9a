//! The mux: many isolated stacks and the host share one NIC and its addresses, as in the paper on
//! MultiStack (§3).
//!
//! A program with a TCP/IP stack of its own has a *mux port*: a pair of packet rings, through which
//! it shares the NIC. A mux port receives and sends only packets of the 3-tuples (protocol, local
//! address, local port) that it has claimed. The *host* is the stack that gets all other packets of
//! the local addresses. The mux copies each packet between mux ports, the NIC and the host. A mux
//! port therefore never sees a packet that is not for its 3-tuples, and a packet that the mux has
//! checked does not change afterwards.
//!
//! ```text
//!   port ── check of the source ──┐                    ┌── port, if it claims the destination
//!   port ── check of the source ──┼──> Mux ────────────┼── host, for other local destinations
//!   NIC  ─────────────────────────┤                    └── NIC, for remote destinations
//!   host ─────────────────────────┘
//! ```
//!
//! [`Ports`] is a set of mux ports. The set does not own the NIC. The service uses this type: the
//! host owns the NIC, passes received frames to the ports, and sends the frames of the ports.
//! [`Mux`] joins a set of ports with a NIC and a link to the host. Both types are deterministic and
//! do no I/O of their own: ports, NIC and the link to the host are [`PacketIo`]s.
//!
//! [`PacketIo`]: tidelane_packet_io::PacketIo
#![forbid(unsafe_code)]

mod address;
mod check;
mod claims;
mod directory;
mod egress;
mod filter;
mod gso;
mod lookahead;
mod mux;
mod port;
mod port_counters;
mod port_end;
mod port_table;
mod ports;
mod rate;
mod ready;
mod turn;
mod turn_queue;
mod waiting;

pub use crate::{
    check::SendRefusal,
    claims::{ClaimError, Claims, PortId, Tuple},
    egress::{Egress, copy_to},
    filter::{Filter, Reception, Verdict, Way},
    gso::GsoFrame,
    mux::{Counters, Mux},
    port::PortsFull,
    port_counters::PortCounters,
    port_end::PortEnd,
    ports::Ports,
    rate::SendRate,
    ready::{Doorbell, ProgramPort},
};
