//! Tests of AF_XDP ports (each has an AF_XDP socket on one NIC queue) on a veth pair, with a kernel
//! at the other end. The tests need root.

#[path = "../../../steering/tests/kernel/net.rs"]
mod net;

mod frames;
mod gso;
mod jumbo;
mod ports;
