//! Tests of hosts, links and mux ports (packet interfaces of programs with their own stacks) in
//! virtual time. All files form one test binary, so that tests of different files run at the same
//! time.

mod bbr;
mod black_hole;
mod bufferbloat;
mod clean;
mod direct_latency;
mod mux;
mod mux_gso;
mod neighbour;
mod path_mtu;
mod seeds;
mod swarm;
