//! Contexts on the direct back end in virtual time.

mod behaviour;
mod kit;
mod nic_unsafe;
mod swarm;
mod waits;
