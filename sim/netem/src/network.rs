//! Hosts, switches and routers, joined by links.
//!
//! ```text
//!  host --link--> switch --link--> router --link--> router --link--> switch --link--> host
//!       <--link--        <--link--        <--link--        <--link--        <--link--
//! ```
//!
//! Each direction of a cable is a [`Link`] with its own queue. A switch forwards by link address. A
//! router forwards by the packet's destination, decrements TTL or hop limit, and writes new link
//! addresses. A router drops a packet that is longer than the next link's MTU. The router answers
//! the packet with an ICMP error, except if the packet is IPv4 without DF. The forwarding tables
//! are computed at the start, so no node learns addresses or floods frames.

use std::collections::VecDeque;

use tidelane_time::Instant;
use tidelane_wire::{ETHERNET_HEADER_LEN, IpAddress, MacAddress, parse_frame};

use crate::{
    config::LinkConfig,
    link::{Link, LinkCounters},
    node::{Node, NodeKind},
    packets::{decrement_ttl, too_big},
    rng::Rng,
};

/// A cable between two nodes, with a link in each direction.
#[derive(Clone, Copy, Debug)]
pub struct Cable {
    /// Indices of the two nodes.
    pub ends: [usize; 2],
    /// The two links: from the first node to the second, and from the second node to the first.
    pub links: [LinkConfig; 2],
}

/// One direction of a cable.
#[derive(Debug)]
struct Direction {
    link: Link,
    /// Configuration of the link while the network is not cut.
    config: LinkConfig,
    /// Index of the node at the sending end.
    from: usize,
    /// Index of the node at the receiving end.
    to: usize,
}

/// Nodes and the links between them. The module's documentation has a drawing.
///
/// [`Network::send`] takes input, [`Network::arrive`] gives output.
#[derive(Debug)]
pub struct Network {
    nodes: Vec<Node>,
    directions: Vec<Direction>,
    /// Forwarding tables. `next[node][destination]` is the index of the direction on which the node
    /// sends frames to the destination. The entry is `None` if there is no path, or if the
    /// destination is the node itself.
    next: Vec<Vec<Option<usize>>>,
    /// By node: true if the host has no room for frames. Frames for the host then wait in their
    /// link.
    blocked: Vec<bool>,
    /// Number of frames that switches and routers dropped without an answer. Such a frame was
    /// malformed, had a wrong link address, had no path, had an expired TTL or hop limit, or had an
    /// IPv4 packet without DF that was longer than the MTU.
    unroutable: u64,
    /// Number of ICMP errors that routers sent for packets longer than the next link's MTU.
    too_big: u64,
}

/// A frame that a switch or router sends, and the index of the direction on which the frame leaves.
struct Outgoing {
    direction: usize,
    frame: Vec<u8>,
    /// True if the frame is a router's ICMP error for a packet above the MTU.
    too_big: bool,
}

impl Network {
    /// Creates a network whose impairments derive from `seed`. Each host must have one cable.
    pub fn new(nodes: Vec<Node>, cables: &[Cable], seed: u64) -> Self {
        let root = Rng::new(seed);
        let mut directions = Vec::new();
        let mut leaving = vec![Vec::new(); nodes.len()];
        for cable in cables {
            for (from, config) in cable.links.into_iter().enumerate() {
                let name = directions.len() as u64;
                leaving[cable.ends[from]].push(directions.len());
                directions.push(Direction {
                    link: Link::new(config, root.fork(name).next_u64()),
                    config,
                    from: cable.ends[from],
                    to: cable.ends[1 - from],
                });
            }
        }
        let next = (0..nodes.len())
            .map(|from| first_directions(from, &directions, &leaving))
            .collect();
        Self {
            blocked: vec![false; nodes.len()],
            nodes,
            directions,
            next,
            unroutable: 0,
            too_big: 0,
        }
    }

    /// Sends a frame from node `host`.
    pub fn send(&mut self, now: Instant, host: usize, frame: &[u8]) {
        if let Some(direction) = self.next[host].iter().flatten().next() {
            self.directions[*direction].link.push(now, frame);
        }
    }

    /// Returns the time of the next arrival at any node that is not blocked, and the index of the
    /// direction on which the frame arrives.
    pub fn next_arrival(&self) -> Option<(Instant, usize)> {
        let open = self.directions.iter().enumerate();
        open.filter(|(_, direction)| !self.blocked[direction.to])
            .filter_map(|(index, direction)| Some((direction.link.next_arrival()?, index)))
            .min()
    }

    /// Takes the frame that has arrived on `direction`. If the receiving node is a host, returns
    /// the host and the frame. If the receiving node is a switch or router, forwards or drops the
    /// frame, and returns `None`.
    pub fn arrive(&mut self, now: Instant, direction: usize) -> Option<(usize, Vec<u8>)> {
        let node = self.directions[direction].to;
        let frame = self.directions[direction].link.poll(now)?;
        let outgoing = match self.nodes[node].kind {
            NodeKind::Host => return Some((node, frame)),
            NodeKind::Switch => self.switch(node, frame),
            NodeKind::Router => self.route(node, frame),
        };
        match outgoing {
            Some(outgoing) => {
                self.too_big += u64::from(outgoing.too_big);
                self.directions[outgoing.direction]
                    .link
                    .push(now, outgoing.frame);
            }
            None => self.unroutable += 1,
        }
        None
    }

    /// Blocks or unblocks `host`. While a host has no room for frames, the caller blocks the host,
    /// and frames for the host wait in their link.
    pub fn block(&mut self, host: usize, blocked: bool) {
        self.blocked[host] = blocked;
    }

    /// Cuts or restores all links. Frames in flight still reach the end of their link.
    pub fn set_cut(&mut self, cut: bool) {
        for direction in &mut self.directions {
            let loss = if cut {
                1_000_000
            } else {
                direction.config.loss
            };
            direction.link.set_config(LinkConfig {
                loss,
                ..direction.config
            });
        }
    }

    /// Sets the MTU of all links between two routers, in bytes.
    pub fn set_path_mtu(&mut self, mtu: u32) {
        let is_router = |node: usize| self.nodes[node].kind == NodeKind::Router;
        for direction in &mut self.directions {
            if is_router(direction.from) && is_router(direction.to) {
                direction.config.mtu = mtu;
            }
        }
    }

    /// Returns the sum of the counters of all links. `pushed` and `delivered` count a frame at each
    /// hop.
    pub fn counters(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        for direction in &self.directions {
            sum.add(direction.link.counters());
        }
        sum
    }

    /// Returns the number of frames that a switch or router dropped because it could not forward
    /// them.
    pub const fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Returns the number of ICMP errors that routers sent for packets longer than the next link's
    /// MTU.
    pub const fn too_big(&self) -> u64 {
        self.too_big
    }

    fn find(&self, matches: impl Fn(&Node) -> bool) -> Option<usize> {
        let ends = self.nodes.iter().enumerate();
        ends.filter(|(_, node)| node.kind != NodeKind::Switch)
            .find(|(_, node)| matches(node))
            .map(|(index, _)| index)
    }

    fn switch(&self, node: usize, frame: Vec<u8>) -> Option<Outgoing> {
        let to = frame.first_chunk::<6>()?;
        let end = self.find(|node| node.mac.0 == *to)?;
        Some(Outgoing {
            direction: self.next[node][end]?,
            frame,
            too_big: false,
        })
    }

    fn route(&self, node: usize, mut frame: Vec<u8>) -> Option<Outgoing> {
        let packet = parse_frame(&frame).ok()?;
        let router = &self.nodes[node];
        if packet.dst_mac != router.mac || packet.ttl <= 1 {
            return None;
        }
        let (src, dst) = (packet.src, packet.dst);
        let (direction, hop) = self.next_hop(node, dst)?;
        let mtu = self.directions[direction].config.mtu;
        if mtu > 0 && frame.len() > mtu as usize + ETHERNET_HEADER_LEN {
            let (direction, hop) = self.next_hop(node, src)?;
            return Some(Outgoing {
                direction,
                frame: too_big(&frame, router, hop, mtu)?,
                too_big: true,
            });
        }
        frame[..6].copy_from_slice(&hop.0);
        frame[6..12].copy_from_slice(&router.mac.0);
        decrement_ttl(&mut frame)?;
        Some(Outgoing {
            direction,
            frame,
            too_big: false,
        })
    }

    /// Returns the index of the direction from `node` towards `addr`, and the link address of the
    /// next hop.
    fn next_hop(&self, node: usize, addr: IpAddress) -> Option<(usize, MacAddress)> {
        let end = self.find(|node| node.addrs.contains(&addr))?;
        let direction = self.next[node][end]?;
        // The next hop is the next host or router, directly connected or behind switches.
        let mut hop = self.directions[direction].to;
        while self.nodes[hop].kind == NodeKind::Switch {
            hop = self.directions[self.next[hop][end]?].to;
        }
        Some((direction, self.nodes[hop].mac))
    }
}

/// Returns the first direction of the shortest path from `from` to each node. The element is `None`
/// for `from` itself and for a node without a path. `leaving` lists, by node, the directions that
/// start at the node.
fn first_directions(
    from: usize,
    directions: &[Direction],
    leaving: &[Vec<usize>],
) -> Vec<Option<usize>> {
    let mut first = vec![None; leaving.len()];
    let mut queue = VecDeque::from([(from, None)]);
    while let Some((node, by)) = queue.pop_front() {
        for &direction in &leaving[node] {
            let (to, by) = (directions[direction].to, by.unwrap_or(direction));
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
