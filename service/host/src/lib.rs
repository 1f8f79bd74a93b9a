//! A host: the TCP engine, the programs that use the engine, and the ports that carry the frames.
//!
//! Each fast-path core (polling thread) of the service has one [`Host`]. A *program* is a process
//! that shares memory with the service. A *port* is a [`PacketIo`](tidelane_packet_io::PacketIo),
//! for example the AF_XDP socket of a NIC queue. A *mux port* belongs to a program with a TCP/IP
//! stack of its own. The *local path* carries segments in memory between two programs of the host.
//! A *slot* is the record of one connection in the memory that a program and the service share.
//!
//! The host is deterministic and does no I/O of its own. Its *driver*, the daemon `tidelaned` or
//! the simulator, calls [`Host::step`] in a loop. One step processes frames, segments of the local
//! path and requests of programs in batches. The step then sends the resulting frames, and notifies
//! the programs by events. `Driver` in the diagram is not the driver of the host, but the trait
//! through which the engine calls the host.
//!
//! ```text
//!   ports ──frames──> ip_input ──segments──> engine <──requests── programs' rings
//!     ^                                        │ Driver (io.rs)         ^
//!     └────────────── frames, local path <─────┴──> slots, events ──────┘
//! ```
#![forbid(unsafe_code)]

mod accept;
pub mod accounts;
mod active_open;
mod admission;
mod bindings;
mod buffer_copy;
mod capture;
mod congestion;
mod contexts;
mod counters;
mod credentials;
mod driver_requests;
mod ephemeral_ports;
mod fragments;
mod hand_back;
mod hash;
mod host;
mod icmp_error;
mod idle_pages;
mod ids;
mod io;
mod ip_input;
mod journal;
mod links;
mod listen;
mod listeners;
mod local_ports;
mod memory;
mod mux_ports;
mod neighbours;
mod options;
mod parked_opens;
mod port_rules;
mod program;
mod report;
mod rules;
mod shared;
mod siblings;
mod slots;
mod sockets;
mod stack;
mod strays;
mod sweep;
mod tcp_input;
mod timer_hold;
mod within_host;

pub use crate::{
    capture::{CaptureFilter, CapturePoint},
    congestion::AllowedCongestion,
    contexts::Bell,
    credentials::Credentials,
    driver_requests::HostRequest,
    ephemeral_ports::PORTS_PER_REQUEST,
    hand_back::Stray,
    host::Host,
    idle_pages::IdlePages,
    ids::ProgramId,
    journal::{FlowJournal, JournalEntry, JournalMemory},
    links::LOCAL_PATH_LINK,
    listen::{Listen, ListenError, ListenerFastOpen},
    memory::{MemoryLimits, StreamMemory},
    mux_ports::{MUX_PORTS_MAX, MuxPorts},
    neighbours::{
        IngressPolicy, Interface, KernelRoute, ReversePathFilter, Route, SourceChecks, Way,
    },
    port_rules::{Associations, PortOwner},
    report::{SocketReport, SocketState},
    rules::{Action, BadPrefix, Direction, Opening, Prefix, Rule, RuleSet},
    shared::{Holder, Take, TakeError, Taken},
    siblings::{CoreIndex, Siblings},
    within_host::AddressesWithin,
};
