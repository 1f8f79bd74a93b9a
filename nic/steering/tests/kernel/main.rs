//! Steering with the running kernel, in network namespaces of the test. Needs root.

mod bpf_unsafe;
mod demux;
mod firewall;
mod impair;
mod mirror;
mod net;
#[path = "../../examples/tidelane-impair/wire.rs"]
mod wire;
