//! Hosts without a service around them, with handmade frames and programs, in virtual time.

mod acceptor;
mod frames;
mod rig;
mod stage;

mod accept;
mod addresses;
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
mod mtu;
mod mux_ports;
mod rules;
mod strangers;
