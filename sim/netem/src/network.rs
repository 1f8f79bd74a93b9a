//! Hosts, switches and routers, joined by links.
//!
//! ```text
//!  host --link--> switch --link--> router --link--> router --link--> switch --link--> host
//!       <--link--        <--link--        <--link--        <--link--        <--link--
//! ```
//!
//! Each direction of an edge is a [`Link`] of its own, with its own queue. A switch looks at the
//! link address, a router at the IPv4 destination: it counts TTL down and writes new link
//! addresses. Nobody learns or floods: the ways are known from the start.

use std::collections::VecDeque;

use tidelane_time::Instant;
use tidelane_wire::{
    ETHERNET_HEADER_LEN, IPV4_HEADER_LEN, IpAddress, MacAddress, checksum, parse_frame,
};

use crate::{
    config::LinkConfig,
    link::{Link, LinkCounters},
    rng::Rng,
};

/// What joins links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An end: frames come from it and go to it.
    Host,
    /// Forwards by link address.
    Switch,
    /// Forwards by IPv4 destination.
    Router,
}

/// A host, switch or router.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Its link address; of no meaning for a switch.
    pub mac: MacAddress,
    /// Its address; of no meaning for a switch.
    pub addr: IpAddress,
}

/// A cable between two nodes.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// Indices of the nodes.
    pub ends: [usize; 2],
    /// From the first to the second, and back.
    pub ways: [LinkConfig; 2],
}

/// One direction of an edge.
#[derive(Debug)]
struct Way {
    link: Link,
    config: LinkConfig,
    to: usize,
}

/// Nodes and what lies between them: see the module's documentation.
///
/// [`Network::send`] takes input, [`Network::arrive`] gives output.
#[derive(Debug)]
pub struct Network {
    nodes: Vec<Node>,
    ways: Vec<Way>,
    /// By node and destination: the way to take.
    next: Vec<Vec<Option<usize>>>,
    /// By node: the host has no room, what comes to it waits.
    blocked: Vec<bool>,
    /// Frames that no node could forward.
    unroutable: u64,
}

impl Network {
    /// A network with the mishaps of `seed`. A host has one edge.
    pub fn new(nodes: Vec<Node>, edges: &[Edge], seed: u64) -> Self {
        let root = Rng::new(seed);
        let mut ways = Vec::new();
        let mut leaving = vec![Vec::new(); nodes.len()];
        for edge in edges {
            for (from, config) in edge.ways.into_iter().enumerate() {
                let name = ways.len() as u64;
                leaving[edge.ends[from]].push(ways.len());
                ways.push(Way {
                    link: Link::new(config, root.fork(name).next_u64()),
                    config,
                    to: edge.ends[1 - from],
                });
            }
        }
        let next = (0..nodes.len())
            .map(|from| ways_from(from, &ways, &leaving))
            .collect();
        Self {
            blocked: vec![false; nodes.len()],
            nodes,
            ways,
            next,
            unroutable: 0,
        }
    }

    /// Node `host` sends a frame.
    pub fn send(&mut self, now: Instant, host: usize, frame: &[u8]) {
        if let Some(way) = self.next[host].iter().flatten().next() {
            self.ways[*way].link.push(now, frame);
        }
    }

    /// When the next frame arrives anywhere, and by which way.
    pub fn next_arrival(&self) -> Option<(Instant, usize)> {
        let open = self.ways.iter().enumerate();
        open.filter(|(_, way)| !self.blocked[way.to])
            .filter_map(|(index, way)| Some((way.link.next_arrival()?, index)))
            .min()
    }

    /// Takes what has arrived by `way`. Returned is what came to a host, and to which.
    pub fn arrive(&mut self, now: Instant, way: usize) -> Option<(usize, Vec<u8>)> {
        let node = self.ways[way].to;
        let mut frame = self.ways[way].link.poll(now)?;
        let onward = match self.nodes[node].kind {
            Kind::Host => return Some((node, frame)),
            Kind::Switch => self.switch(node, &frame),
            Kind::Router => self.route(node, &mut frame),
        };
        match onward {
            Some(onward) => self.ways[onward].link.push(now, frame),
            None => self.unroutable += 1,
        }
        None
    }

    /// Whether what comes to `host` waits.
    pub fn block(&mut self, host: usize, blocked: bool) {
        self.blocked[host] = blocked;
    }

    /// Cuts all links, or joins them again. What is under way arrives.
    pub fn set_cut(&mut self, cut: bool) {
        for way in &mut self.ways {
            let loss = if cut { 1_000_000 } else { way.config.loss };
            way.link.set_config(LinkConfig { loss, ..way.config });
        }
    }

    /// The sums of all links. Their `pushed` and `delivered` count each hop.
    pub fn counters(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        for way in &self.ways {
            sum.add(way.link.counters());
        }
        sum
    }

    /// Frames that no node could forward.
    pub const fn unroutable(&self) -> u64 {
        self.unroutable
    }

    fn find(&self, is_it: impl Fn(&Node) -> bool) -> Option<usize> {
        let ends = self.nodes.iter().enumerate();
        ends.filter(|(_, node)| node.kind != Kind::Switch)
            .find(|(_, node)| is_it(node))
            .map(|(index, _)| index)
    }

    fn switch(&self, node: usize, frame: &[u8]) -> Option<usize> {
        let to = frame.first_chunk::<6>()?;
        let end = self.find(|node| node.mac.0 == *to)?;
        self.next[node][end]
    }

    fn route(&self, node: usize, frame: &mut [u8]) -> Option<usize> {
        let packet = parse_frame(frame).ok()?;
        if packet.dst_mac != self.nodes[node].mac || packet.ttl <= 1 {
            return None;
        }
        let end = self.find(|node| node.addr == packet.dst)?;
        let onward = self.next[node][end]?;
        // The next one that has a link address: behind a switch, or right there.
        let mut hop = self.ways[onward].to;
        while self.nodes[hop].kind == Kind::Switch {
            hop = self.ways[self.next[hop][end]?].to;
        }
        frame[..6].copy_from_slice(&self.nodes[hop].mac.0);
        frame[6..12].copy_from_slice(&self.nodes[node].mac.0);
        count_down(frame)?;
        Some(onward)
    }
}

/// TTL is one less, and the header's checksum is that of the new header.
fn count_down(frame: &mut [u8]) -> Option<()> {
    let header = frame.get_mut(ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + IPV4_HEADER_LEN)?;
    header[8] -= 1;
    header[10..12].fill(0);
    let sum = checksum::sum(header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// By destination: the first way of the shortest path from `from`.
fn ways_from(from: usize, ways: &[Way], leaving: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut first = vec![None; leaving.len()];
    let mut queue = VecDeque::from([(from, None)]);
    while let Some((node, by)) = queue.pop_front() {
        for &way in &leaving[node] {
            let (to, by) = (ways[way].to, by.unwrap_or(way));
            if to != from && first[to].is_none() {
                first[to] = Some(by);
                queue.push_back((to, Some(by)));
            }
        }
    }
    first
}

#[cfg(test)]
mod tests;
