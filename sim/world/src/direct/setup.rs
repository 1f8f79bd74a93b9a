//! The place of a direct host in its world, and the options of its context. A direct host uses the
//! direct back end of the ring API (`app/direct`), which runs TCP within the calls of a context.

use std::net::SocketAddr;

use tidelane_direct::DirectOptions;
use tidelane_embedded::StackConfig;
use tidelane_engine::SocketOptions;
use tidelane_netem::Rng;
use tidelane_wire::{Endpoint, IpAddress};

use super::spec::DirectSpec;
use crate::{
    family::{Bound, Family},
    program_spec::ListenerSpec,
    topology::{Topology, address, mac},
};

/// Place of a direct host in its world.
pub struct Place<'a> {
    /// Index of the host.
    pub index: usize,
    /// Links of the world.
    pub topology: &'a Topology,
    /// Listeners of the host's programs.
    pub listeners: Vec<&'a ListenerSpec>,
}

/// Returns the options of the context of host `index`.
pub fn options(spec: &DirectSpec, index: usize, rng: &Rng) -> DirectOptions {
    let mut secret = [0; 16];
    rng.fork(1).fill(&mut secret);
    let families = &Family::BOTH[..1 + usize::from(spec.ipv6)];
    let addresses: Vec<IpAddress> = families.iter().map(|of| address(*of, index)).collect();
    DirectOptions {
        stack: StackConfig {
            engine: spec.engine.clone(),
            addresses,
            mac: mac(index),
            options: SocketOptions {
                nodelay: spec.nodelay,
                ..SocketOptions::default()
            },
            ..StackConfig::new(address(Family::V4, index), secret)
        },
        buffers: spec.buffers,
        buffer_len: spec.buffer_len,
        send_queue_max: spec.send_queue_max,
        mtu: spec.mtu,
    }
}

/// Converts an endpoint to a socket address of the ring API.
pub fn socket(endpoint: Endpoint) -> SocketAddr {
    (std::net::IpAddr::from(endpoint.addr), endpoint.port).into()
}

/// Returns the local addresses at which the context of host `index` listens for `listener`. The
/// context opens one listening socket for each address.
pub fn locals(listener: &ListenerSpec, index: usize) -> Vec<SocketAddr> {
    let at = |addr| socket(Endpoint::new(addr, listener.port));
    match listener.bound {
        Bound::ToV4 => vec![at(address(Family::V4, index))],
        Bound::ToBoth => vec![at(IpAddress::UNSPECIFIED_V6)],
        Bound::Twice => Family::BOTH.map(|family| at(address(family, index))).into(),
    }
}
