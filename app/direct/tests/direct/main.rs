//! Tests of contexts on the direct back end, in virtual time.

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
