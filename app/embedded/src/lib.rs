//! A TCP stack that a program links, like UTCP in §4 of the MultiStack paper ("Rekindling Network
//! Protocol Innovation with User-Level Stacks", 2014).
//!
//! [`Stack`] runs the TCP engine (`tidelane-engine`) in the program's thread, on one port (packet
//! interface): a NIC queue, one end of a link in memory, or functions of the program that move
//! packets ([`FnPort`]). In its event loop, the program calls [`Stack::poll`], or
//! [`Stack::poll_input`] and then [`Stack::flush`]. These calls receive packets, run TCP and the
//! timers, and send. The stack has no thread and no lock, and makes no system call except in the
//! port. The stack's state changes only in calls of the program.
//!
//! ```text
//!   program ── listen, connect, read, write, events ──> Stack
//!                                                        ├── engine: TCP
//!                                                        └── Io: buffers, headers, events ──> port
//! ```
//!
//! The time is an argument of `poll`, so a test can run the stack in virtual time. A program with
//! several event sources waits for the descriptor of its port, for at most the time until
//! [`Stack::next_timeout`].
#![forbid(unsafe_code)]

mod accept_queue;
mod addresses;
mod binding;
mod buffer;
mod drops;
mod ephemeral_ports;
mod fn_port;
mod frame_writer;
mod handles;
mod io;
mod link_addresses;
mod options;
mod stack;
mod status;

pub use tidelane_engine::{
    Algorithm, CloneBoxed, CloseCause, CongestionControl, Counters, CustomAlgorithm, Duration,
    Endpoint, EngineConfig, FastOpenKeys, FastOpenPolicy, FlowInfo, Instant, IpAddress,
    ListenError, OpenError, SocketOptions, State, Window,
};
pub use tidelane_packet_io::{MemConfig, MemPort, PacketIo};
pub use tidelane_wire::{DropReason, FlowKey, MacAddress, TcpFlags};

pub use crate::{
    addresses::Addresses,
    drops::Drops,
    ephemeral_ports::EphemeralPorts,
    fn_port::{FnBurst, FnPort},
    handles::{Connection, Event, Listener, StackConfig},
    link_addresses::LinkAddresses,
    options::{OPTION_LEN_MAX, OptionHandler, find_option},
    stack::Stack,
    status::{Status, Urgent},
};
