//! Ports on a veth pair against the kernel at the other end. Needs root.

#[path = "../../../steering/tests/kernel/net.rs"]
mod net;

mod frames;
mod jumbo;
mod ports;
mod super_frames;
