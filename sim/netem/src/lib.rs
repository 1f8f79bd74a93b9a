//! Simulated links that delay, lose, duplicate, reorder, corrupt and mark frames in virtual time.
//!
//! ```text
//! push --loss?--> queue (limit, ECN mark) --rate--> [corrupt? duplicate?] --delay, jitter--> poll
//! ```
//!
//! A [`Link`] is one direction. A link has no clock: the caller passes `now`, and calls
//! [`Link::next_arrival`] for the time of the next poll. All random numbers derive from one seed.
//!
//! Each impairment draws from its own random stream. A change of one probability therefore does not
//! change the random numbers of the other impairments. For example, the loss probability does not
//! affect the jitter. Equal seeds, configurations and pushes give equal deliveries on every
//! machine. A [`Network`] joins links by switches and routers.
#![forbid(unsafe_code)]

mod config;
mod link;
mod network;
mod node;
mod packets;
mod rng;

pub use crate::{
    config::{BurstLoss, LinkConfig, Ppm},
    link::{Link, LinkCounters},
    network::{Cable, Network},
    node::{Node, NodeKind},
    rng::Rng,
};

#[cfg(test)]
mod tests;
