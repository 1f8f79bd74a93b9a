//! Ports on a veth pair with a kernel at the other end. Needs root.

#[path = "../../../steering/tests/kernel/net.rs"]
mod net;

mod frames;
mod gso;
mod jumbo;
mod ports;
