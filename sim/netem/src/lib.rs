//! A link in virtual time: what goes in at one end comes out at the other, late, or not, or twice.
//!
//! ```text
//! push --loss?--> queue (limit, ECN mark) --rate--> [corrupt? duplicate?] --delay, jitter--> poll
//! ```
//!
//! One [`Link`] is one direction. It has no clock: the driver passes `now` in, and asks
//! [`Link::next_arrival`] when to come back. Chance comes from one seed; each kind of mishap draws
//! from a stream of its own, so that a run with more loss has the same jitter, and one that
//! duplicates nothing loses the same frames. Equal seeds, configurations and pushes give equal
//! deliveries, on every machine. A [`Network`] joins links by switches and routers.
#![forbid(unsafe_code)]

mod config;
mod link;
mod network;
mod packets;
mod rng;

pub use crate::{
    config::{BurstLoss, LinkConfig, Ppm},
    link::{Link, LinkCounters},
    network::{Edge, Kind, Network, Node},
    rng::Rng,
};

#[cfg(test)]
mod tests;
