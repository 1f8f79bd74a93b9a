//! Tests of steering with the running kernel. The tests create network namespaces and need root.

mod bpf_unsafe;
mod demux;
mod firewall;
mod impair;
mod kernel_tables;
mod net;
#[path = "../../examples/tidelane-impair/wire.rs"]
mod wire;
