//! A TCP stack that a program links, like UTCP in the paper MultiStack (§4).
//!
//! [`Stack`] runs the engine in the program's thread, on one port: a NIC queue, a memory link, or
//! functions of the program that move packets ([`FnPort`]). The program calls [`Stack::poll`] (or
//! [`Stack::poll_input`] and then [`Stack::flush`]) in its event loop. The call receives packets,
//! runs TCP and the timers, and sends. The stack has no thread, no lock, and no system call except
//! in the port, so its state changes only in calls.
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
