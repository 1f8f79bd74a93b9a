//! Tests of AF_XDP ports on a veth pair. An AF_XDP port has an AF_XDP socket on one NIC queue. The
//! kernel's network stack is at the other end of the pair. The tests need root.

#[path = "../../../steering/tests/kernel/net.rs"]
mod net;

mod frames;
mod gso;
mod jumbo;
mod ports;
