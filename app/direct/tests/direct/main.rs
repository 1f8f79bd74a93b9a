//! Tests of direct contexts (`tidelane-direct`), in virtual time. A direct context provides the
//! ring API with TCP in the program's process.

mod accounts;
mod behaviour;
mod datagrams;
mod http;
mod kit;
mod neighbours;
mod nic_unsafe;
#[allow(dead_code)]
#[path = "../../../kernel/examples/ring-http/server.rs"]
mod server;
mod swarm;
mod waits;
