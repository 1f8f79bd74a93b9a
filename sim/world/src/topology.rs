//! Links, switches and routers between the hosts of a run.
//!
//! ```text
//!  one switch:    host ==access== switch ==access== host
//!  two switches:  host ==access== switch ==middle== switch ==access== host
//!  two routers:   host ==access== switch == router ==middle== router == switch ==access== host
//! ```
//!
//! Each connection in the drawing has a link in each direction. The connections between a switch
//! and a router, which have no name in the drawing, are ideal.

use tidelane_host::Route;
use tidelane_netem::{BurstLoss, Cable, LinkConfig, Network, Node, NodeKind, Rng};
use tidelane_time::Duration;
use tidelane_wire::{IpAddress, MacAddress};

use crate::family::Family;

/// The connection between the two sides of a topology. A side is a switch with its hosts and, if
/// `routed` is true, a router.
#[derive(Clone, Debug)]
pub struct Middle {
    /// True if routers terminate the connection. False if the switches do.
    pub routed: bool,
    /// The links of the connection: from the first side to the second, and from the second side to
    /// the first.
    pub links: [LinkConfig; 2],
    /// By host: true if the host is on the second side.
    pub far: Vec<bool>,
}

/// The links between the hosts of a run.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Links from each host to its switch and back, by host.
    pub access: Vec<[LinkConfig; 2]>,
    /// Connection between two sides, or `None` if all hosts are on one switch.
    pub middle: Option<Middle>,
}

/// Returns the address of host `index`.
pub fn address(family: Family, index: usize) -> IpAddress {
    match family {
        Family::V4 => IpAddress::from_v4([10, 0, 0, index as u8 + 1]),
        Family::V6 => v6(UNIQUE_LOCAL, 0, index),
    }
}

/// Prefix of the unicast addresses of hosts and routers.
const UNIQUE_LOCAL: [u8; 2] = [0xfd, 0];
/// Prefix of the link-local addresses that routes use for routers.
const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];

fn v6(start: [u8; 2], kind: u8, index: usize) -> IpAddress {
    let mut address = [0; 16];
    address[..2].copy_from_slice(&start);
    (address[14], address[15]) = (kind, index as u8 + 1);
    IpAddress(address)
}

/// Returns the link address of host `index`.
pub fn mac(index: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, index as u8 + 1])
}

/// Returns the IPv4 and IPv6 addresses of a side's router. The router's ICMP errors have these
/// source addresses.
fn router_addresses(side: usize) -> [IpAddress; 2] {
    let v4 = IpAddress::from_v4([10, 0, 1, side as u8 + 1]);
    [v4, v6(UNIQUE_LOCAL, 1, side)]
}

/// Returns the address that routes use for a side's router.
fn gateway_address(family: Family, side: usize) -> IpAddress {
    match family {
        Family::V4 => router_addresses(side)[0],
        Family::V6 => v6(LINK_LOCAL, 1, side),
    }
}

fn router_mac(side: usize) -> MacAddress {
    MacAddress([2, 0, 0, 0, 1, side as u8 + 1])
}

/// Returns the link address of the host or router with the address `addr`. Returns `None` if the
/// last two bytes of `addr` can belong neither to a host nor to a router.
pub fn mac_of(addr: IpAddress) -> Option<MacAddress> {
    let [.., kind, number] = addr.0;
    let index = usize::from(number).checked_sub(1)?;
    match kind {
        0 => Some(mac(index)),
        1 => Some(router_mac(index)),
        _ => None,
    }
}

impl Topology {
    /// Creates a topology with all hosts on one ideal switch. `wire` is the link from each host to
    /// the switch. The links from the switch to the hosts are ideal.
    pub fn star(hosts: usize, wire: LinkConfig) -> Self {
        Self {
            access: vec![[wire, LinkConfig::PERFECT]; hosts],
            middle: None,
        }
    }

    /// Draws a random topology.
    pub fn random(rng: &mut Rng, hosts: usize) -> Self {
        let common = new_wire(&mut rng.fork(1));
        let differ = rng.chance_ppm(250_000);
        let queues = rng.chance_ppm(250_000);
        let mut access = Vec::new();
        for host in 0..hosts as u64 {
            let own = rng.fork(10 + host);
            let up = if differ {
                new_wire(&mut own.fork(1))
            } else {
                common
            };
            let down = if queues {
                new_queue(&mut own.fork(2))
            } else {
                LinkConfig::PERFECT
            };
            access.push([up, down]);
        }
        let middle = rng.chance_ppm(350_000).then(|| Middle {
            routed: rng.chance_ppm(500_000),
            links: [20, 21].map(|name| new_queue(&mut rng.fork(name))),
            far: (0..hosts).map(|_| rng.chance_ppm(500_000)).collect(),
        });
        Self { access, middle }
    }

    /// Builds the network. The hosts are the first nodes.
    pub fn build(&self, seed: u64) -> Network {
        let hosts = self.access.len();
        let host = |index| Node {
            kind: NodeKind::Host,
            mac: mac(index),
            addrs: Family::BOTH.map(|family| address(family, index)),
        };
        let mut nodes: Vec<Node> = (0..hosts).map(host).collect();
        let switch = Node {
            kind: NodeKind::Switch,
            mac: MacAddress::default(),
            addrs: [IpAddress::UNSPECIFIED_V6; 2],
        };
        nodes.push(switch);
        let mut cables: Vec<Cable> = (0..hosts)
            .map(|index| Cable {
                ends: [index, hosts + usize::from(self.is_far(index))],
                links: self.access[index],
            })
            .collect();
        if let Some(middle) = &self.middle {
            nodes.push(switch);
            let mut ends = [hosts, hosts + 1];
            if middle.routed {
                ends = [hosts + 2, hosts + 3];
                for (side, end) in ends.into_iter().enumerate() {
                    nodes.push(Node {
                        kind: NodeKind::Router,
                        mac: router_mac(side),
                        addrs: router_addresses(side),
                    });
                    cables.push(Cable {
                        ends: [hosts + side, end],
                        links: [LinkConfig::PERFECT; 2],
                    });
                }
            }
            let links = middle.links;
            cables.push(Cable { ends, links });
        }
        Network::new(nodes, &cables, seed)
    }

    fn is_far(&self, host: usize) -> bool {
        let middle = self.middle.as_ref();
        middle.is_some_and(|middle| middle.far[host])
    }

    /// Returns the gateway from `host` to host `to`. Returns `None` if no router is between the two
    /// hosts.
    pub fn gateway(&self, family: Family, host: usize, to: usize) -> Option<IpAddress> {
        let routed = self.middle.as_ref().is_some_and(|middle| middle.routed);
        let far = self.is_far(host);
        (routed && far != self.is_far(to)).then(|| gateway_address(family, usize::from(far)))
    }

    /// Returns the routes of `host` for one address family.
    pub fn routes(&self, family: Family, host: usize) -> impl Iterator<Item = Route> {
        (0..self.access.len()).map(move |to| Route {
            prefix: address(family, to),
            prefix_len: 128,
            gateway: self.gateway(family, host, to),
            source: address(family, host),
        })
    }

    /// Returns all links, in no particular order.
    pub fn links(&self) -> impl Iterator<Item = &LinkConfig> {
        let middle = self.middle.iter().flat_map(|middle| &middle.links);
        self.access.iter().flatten().chain(middle)
    }

    /// Returns an upper bound of the probability that a frame is lost or corrupted on the worst
    /// path, in ppm. Losses in bursts and in full queues are not included.
    pub fn loss(&self) -> u32 {
        let impairment = |links: &mut dyn Iterator<Item = &LinkConfig>| {
            let losses = links.map(|link| link.loss + link.corrupt);
            losses.max().unwrap_or(0)
        };
        let middle = self.middle.iter().flat_map(|middle| &middle.links);
        impairment(&mut self.access.iter().map(|access| &access[0]))
            + impairment(&mut self.access.iter().map(|access| &access[1]))
            + impairment(&mut middle.into_iter())
    }

    /// Returns true if a queue may overflow. Queues of 10,000 frames and more count as unlimited.
    pub fn has_queue(&self) -> bool {
        self.links()
            .any(|link| link.rate > 0 && link.limit < 10_000)
    }

    /// Returns true if frames may be lost in bursts.
    pub fn has_bursts(&self) -> bool {
        self.links().any(|link| link.burst_loss.enter > 0)
    }
}

/// Rates of random links in bits per second. Zero means no limit.
const RATES: [u64; 6] = [0, 0, 1_000_000_000, 100_000_000, 10_000_000, 2_000_000];

/// Draws a link with a bottleneck queue and without other impairments.
fn new_queue(rng: &mut Rng) -> LinkConfig {
    let rate = RATES[2 + rng.below(3) as usize];
    LinkConfig {
        delay: Duration::from_nanos(1 << rng.between(10, 24)),
        rate,
        limit: [10, 50, 200, 1000][rng.below(4) as usize],
        ecn_threshold: rng.chance_ppm(500_000).then(|| 1 + rng.below(40) as u32),
        ..LinkConfig::PERFECT
    }
}

/// Draws a link with random delay, rate and impairments.
fn new_wire(rng: &mut Rng) -> LinkConfig {
    let delay = Duration::from_nanos(1 << rng.between(10, 26));
    let rate = RATES[rng.below(6) as usize];
    let marks = rate > 0 && rng.chance_ppm(300_000);
    let mut wire = LinkConfig {
        delay,
        jitter: Duration(rng.below(delay.0 / 2 + 1)),
        rate,
        limit: [20, 100, 1000, 10_000][rng.below(4) as usize],
        ecn_threshold: marks.then(|| 1 + rng.below(60) as u32),
        ..LinkConfig::PERFECT
    };
    let impairment = match rng.below(8) {
        0..2 => 0,
        2..5 => 10_000,
        5..7 => 80_000,
        _ => {
            wire.burst_loss = BurstLoss {
                enter: rng.below(10_000) as u32,
                leave: 100_000 + rng.below(500_000) as u32,
                loss: 500_000,
            };
            1_000
        }
    };
    let draw = |rng: &mut Rng| {
        let some = rng.below(impairment + 1) as u32;
        if rng.chance_ppm(700_000) { some } else { 0 }
    };
    wire.loss = draw(rng);
    wire.reorder = 2 * draw(rng);
    wire.reorder_delay = Duration(rng.below(2 * delay.0));
    wire.duplicate = draw(rng);
    wire.corrupt = draw(rng) / 4;
    wire.jitter_reorders = impairment > 0 && rng.chance_ppm(200_000);
    wire
}
