//! The library of the Tidelane service. The daemon `tidelaned` (`main.rs`) is built from the
//! library's modules, and tests call the modules directly.
//!
//! A core is a polling thread that drives one TCP/IP host (crate `tidelane-host`) over some of the
//! NIC's queues. A session is the service's record of one program that has connected to the
//! registration socket. A claim is a 3-tuple (address, protocol, port) whose packets go to the
//! service instead of the kernel.
//!
//! ```text
//!   registration sockets --> session --+--> claims --> Steering (demux)
//!   admin socket, netlink --> control -+--> cores --> CoreLink --> Host<P> on its thread (core)
//! ```
//!
//! The control plane ([`control`], [`session`], [`claims`]) does not depend on AF_XDP or eBPF. The
//! control plane reaches the cores through the trait [`core_link::CoreLink`]. The demux is the XDP
//! program that decides whether the service or the kernel gets a packet. The control plane reaches
//! the demux through the trait [`tidelane_steering::Steering`]. The daemon supplies implementations
//! of both traits that use AF_XDP and eBPF.

pub mod access;
pub mod accounts;
pub mod admin;
pub mod agenda;
pub mod boost;
pub mod captures;
pub mod claims;
pub mod clock;
pub mod config;
pub mod confine;
pub mod congestion;
pub mod control;
pub mod core;
pub mod core_link;
pub mod cores;
pub mod descriptors;
pub mod fast_open;
pub mod firewall;
pub mod kernel;
pub mod kernel_connections;
pub mod kernel_sockets;
pub mod memory;
pub mod names;
pub mod netns;
pub mod network;
pub mod offloads;
pub mod orphans;
pub mod pace;
pub mod panics;
pub mod peer;
pub mod port_book;
pub mod reclaimer;
pub mod restorer;
pub mod rules;
pub mod runtime;
pub mod service_state;
pub mod session;
pub mod settings;
pub mod short_lived;
pub mod sockets;
pub mod somaxconn;
pub mod source_settings;
pub mod sys;
pub mod sysctl;
pub mod udp_sockets;
pub mod watchdog;
