//! Tests of the host (crate `tidelane-host`, the TCP/IP stack of one core of the service) without
//! the daemon `tidelaned`. The tests make the frames, act as programs and kernel, and set the time.

mod acceptor;
mod frames;
mod rig;
mod stage;

mod aborts;
mod accept;
mod addresses;
mod capture;
mod cores;
mod foreign_bytes;
mod fragments;
mod give_back;
mod identification;
mod journal;
mod late_resets;
mod limits;
mod martians;
mod memory;
mod moves;
mod mtu;
mod mux_ports;
mod port_rules;
mod rewritten_bytes;
mod rules;
mod strangers;
