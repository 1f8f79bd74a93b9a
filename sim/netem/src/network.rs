//! Hosts, switches and routers, joined by links.
//!
//! ```text
//!  host --link--> switch --link--> router --link--> router --link--> switch --link--> host
//!       <--link--        <--link--        <--link--        <--link--        <--link--
//! ```
//!
//! Each direction of an edge is a [`Link`] of its own, with its own queue. A switch looks at the
//! link address, a router at the packet's destination: it counts TTL or hop limit down and writes
//! new link addresses. A packet that is too long for the way it has to go, it answers with an ICMP
//! error. Nobody learns or floods: the ways are known from the start.

use std::collections::VecDeque;

use tidelane_time::Instant;
use tidelane_wire::{ETHERNET_HEADER_LEN, IpAddress, MacAddress, parse_frame};

use crate::{
    config::LinkConfig,
    link::{Link, LinkCounters},
    packets::{count_down, too_big},
    rng::Rng,
};

/// What joins links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An end: frames come from it and go to it.
    Host,
    /// Forwards by link address.
    Switch,
    /// Forwards by the packet's destination.
    Router,
}

/// A host, switch or router.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Its link address; of no meaning for a switch.
    pub mac: MacAddress,
    /// Its addresses, an IPv4 one and an IPv6 one; of no meaning for a switch.
    pub addrs: [IpAddress; 2],
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
    /// Packets that were too long for the way they had to go.
    too_big: u64,
}

/// Where a router sends what came, and as what.
struct Onward {
    way: usize,
    frame: Vec<u8>,
    too_big: bool,
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
            too_big: 0,
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
        let frame = self.ways[way].link.poll(now)?;
        let onward = match self.nodes[node].kind {
            Kind::Host => return Some((node, frame)),
            Kind::Switch => self.switch(node, frame),
            Kind::Router => self.route(node, frame),
        };
        match onward {
            Some(onward) => {
                self.too_big += u64::from(onward.too_big);
                self.ways[onward.way].link.push(now, onward.frame);
            }
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

    /// Packets that were too long for the way they had to go: the sender was told.
    pub const fn too_big(&self) -> u64 {
        self.too_big
    }

    fn find(&self, is_it: impl Fn(&Node) -> bool) -> Option<usize> {
        let ends = self.nodes.iter().enumerate();
        ends.filter(|(_, node)| node.kind != Kind::Switch)
            .find(|(_, node)| is_it(node))
            .map(|(index, _)| index)
    }

    fn switch(&self, node: usize, frame: Vec<u8>) -> Option<Onward> {
        let to = frame.first_chunk::<6>()?;
        let end = self.find(|node| node.mac.0 == *to)?;
        Some(Onward {
            way: self.next[node][end]?,
            frame,
            too_big: false,
        })
    }

    fn route(&self, node: usize, mut frame: Vec<u8>) -> Option<Onward> {
        let packet = parse_frame(&frame).ok()?;
        let router = &self.nodes[node];
        if packet.dst_mac != router.mac || packet.ttl <= 1 {
            return None;
        }
        let (src, dst) = (packet.src, packet.dst);
        let (way, hop) = self.towards(node, dst)?;
        let mtu = self.ways[way].config.mtu;
        if mtu > 0 && frame.len() > mtu as usize + ETHERNET_HEADER_LEN {
            let (way, hop) = self.towards(node, src)?;
            return Some(Onward {
                way,
                frame: too_big(&frame, router, hop, mtu)?,
                too_big: true,
            });
        }
        frame[..6].copy_from_slice(&hop.0);
        frame[6..12].copy_from_slice(&router.mac.0);
        count_down(&mut frame)?;
        Some(Onward {
            way,
            frame,
            too_big: false,
        })
    }

    /// The way from `node` to the one with this address, and whose link address comes next.
    fn towards(&self, node: usize, addr: IpAddress) -> Option<(usize, MacAddress)> {
        let end = self.find(|node| node.addrs.contains(&addr))?;
        let way = self.next[node][end]?;
        // The next one that has a link address: behind a switch, or right there.
        let mut hop = self.ways[way].to;
        while self.nodes[hop].kind == Kind::Switch {
            hop = self.ways[self.next[hop][end]?].to;
        }
        Some((way, self.nodes[hop].mac))
    }
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
