//! The packets of a hostile program on a mux port: valid packets of the program's own 3-tuples
//! (protocol, local address, local port), and forged packets. A mux port is a pair of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_mux::SendRefusal;
use tidelane_netem::Rng;
use tidelane_wire::{Endpoint, IpAddress, MacAddress, TcpFlags};

use super::{
    forge::{Draft, Tuple},
    frame::{TCP, UDP},
    oracle::Oracle,
    owners::PortKey,
};
use crate::{
    family::Family,
    scenario::Scenario,
    topology::{address, mac, mac_of},
};

/// Smallest segment size of a GSO frame that the mux accepts, in bytes.
pub const GSO_SEGMENT_MIN: u16 = 512;
/// Destination TCP or UDP port at which no program listens.
const CLOSED_PORT: u16 = 9;

/// The environment that a hostile program knows.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Link address of the host.
    pub mac: MacAddress,
    /// Addresses of the host.
    pub addresses: Vec<IpAddress>,
    /// Addresses of all hosts, each with the link address of the next hop.
    pub hops: Vec<(IpAddress, MacAddress)>,
    /// TCP ports of the listeners of the host: the listeners of programs on the service, and the
    /// listeners of programs on mux ports. In a run that is compared with a run without hostile
    /// programs, the list omits the listeners on mux ports.
    pub listeners: Vec<u16>,
    /// Length of the longest frame of the NIC, in bytes.
    pub frame_len_max: u32,
    /// The smallest MTU to which the MTU of the host changes, in bytes. The mux may refuse a longer
    /// packet. `None` if the MTU does not change.
    pub mtu_min: Option<u32>,
}

/// Draws the frames of a hostile program.
pub struct Drafts<'a> {
    /// Number of the program's mux port in the run.
    pub key: PortKey,
    /// 3-tuples that the program has claimed.
    pub tuples: &'a [Tuple],
    /// The surroundings of the program.
    pub around: &'a Surroundings,
}

impl Surroundings {
    /// Returns the environment of the programs on mux ports of `host`.
    pub fn new(scenario: &Scenario, host: usize) -> Self {
        let families = &Family::BOTH[..1 + usize::from(scenario.hosts[host].ipv6)];
        let own = families.iter().map(|family| address(*family, host));
        let hop = |family, to| {
            let addr = address(family, to);
            let gateway = scenario.topology.gateway(family, host, to);
            (addr, mac_of(gateway.unwrap_or(addr)).unwrap_or_default())
        };
        let hosts = 0..scenario.hosts.len();
        let hops = hosts.flat_map(|to| families.iter().map(move |family| hop(*family, to)));
        let listeners = scenario.listeners.iter();
        // A hostile program can flood the packet ring of another program, as a sender on the link
        // can. The flood may slow the other program below its fair share, and a comparison with a
        // run without hostile programs would then report a violation. In a compared run, hostile
        // programs therefore do not know the listeners of programs on mux ports.
        let is_spared = |program: usize| {
            let ports = scenario.ports.as_ref().filter(|ports| ports.is_compared);
            ports.is_some_and(|ports| ports.index_of(program).is_some())
        };
        let here = listeners.filter(|spec| {
            let program = spec.programs[0];
            scenario.programs[program].host == host && !is_spared(program)
        });
        Self {
            mac: mac(host),
            addresses: own.collect(),
            hops: hops.collect(),
            listeners: here.map(|spec| spec.port).collect(),
            frame_len_max: scenario.hosts[host].mtu + 14,
            mtu_min: scenario.smallest_mtu_of(host),
        }
    }
}

impl Drafts<'_> {
    /// Draws a valid packet. Returns `None` if the program has no 3-tuple.
    pub fn genuine(&self, rng: &mut Rng) -> Option<Draft> {
        let (protocol, mut local) = *rng.pick(self.tuples)?;
        if local.addr.is_unspecified() {
            local.addr = *rng.pick(&self.around.addresses)?;
        }
        let is_same = |(addr, _): &&(IpAddress, MacAddress)| addr.is_v4() == local.addr.is_v4();
        let hops: Vec<_> = self.around.hops.iter().filter(is_same).collect();
        let (addr, dst_mac) = **rng.pick(&hops)?;
        let is_here = self.around.addresses.contains(&addr);
        // A SYN to a listener would open an unplanned connection.
        let (port, flags) = match is_here {
            true => (
                *rng.pick(&self.around.listeners).unwrap_or(&CLOSED_PORT),
                TcpFlags::ACK,
            ),
            false => (CLOSED_PORT, new_flags(rng)),
        };
        Some(Draft {
            mac: self.around.mac,
            dst_mac,
            src: (protocol, local),
            dst: Endpoint::new(addr, port),
            flags,
            payload_len: 8 + rng.below(400) as usize,
        })
    }

    /// Draws a frame with a forged source or an impossible destination. Returns the frame and the
    /// reason for which the mux must refuse the frame. Returns `None` if the drawn frame is valid
    /// or cannot be built.
    pub fn forged(&self, oracle: &Oracle, rng: &mut Rng) -> Option<(Draft, SendRefusal)> {
        let mut draft = self.genuine(rng)?;
        draft.flags = new_flags(rng);
        let own = draft.src.1;
        let is_v4 = own.addr.is_v4();
        let kind = rng.below(8);
        match kind {
            0..3 => {
                let others = oracle.owners.all();
                let others: Vec<_> = others.filter(|(owner, ..)| *owner != self.key).collect();
                let (_, protocol, local) = rng.pick(&others)?;
                let addr = match local.addr.is_unspecified() {
                    true => own.addr,
                    false => local.addr,
                };
                draft.src = (*protocol, Endpoint::new(addr, local.port));
            }
            3 => draft.src.1.port = *rng.pick(&self.around.listeners)?,
            4 => {
                let protocol = if draft.src.0 == TCP { UDP } else { TCP };
                draft.src = (protocol, Endpoint::new(own.addr, own.port + 4));
            }
            5 => {
                let foreign = self.around.hops.iter().map(|(addr, _)| *addr);
                let foreign = foreign.filter(|addr| !self.around.addresses.contains(addr));
                draft.src.1.addr = *rng.pick(&foreign.collect::<Vec<_>>())?;
            }
            6 => draft.mac.0[rng.below(6) as usize] ^= 1 << rng.below(8),
            _ if is_v4 => {
                let wrong = [[127, 0, 0, 1], [0, 0, 0, 0], [0, 1, 2, 3]];
                draft.dst.addr = IpAddress::from_v4(wrong[rng.below(3) as usize]);
            }
            _ => draft.dst.addr = IpAddress::UNSPECIFIED_V6,
        }
        let owner = oracle.owners.owner(draft.src.0, draft.src.1);
        let is_own = owner == Some(self.key) && self.around.addresses.contains(&draft.src.1.addr);
        let dst = draft.dst.addr;
        let no_peer = dst.is_unspecified() || dst.is_loopback() || dst.is_this_network_v4();
        let is_wrong = !is_own || draft.mac != self.around.mac || no_peer;
        let refusal = match kind {
            0..5 => SendRefusal::SourcePort,
            5 => SendRefusal::SourceAddress,
            6 => SendRefusal::SourceMac,
            _ => SendRefusal::Destination,
        };
        (is_wrong && draft.src.1.addr.is_v4() == dst.is_v4()).then_some((draft, refusal))
    }

    /// Draws a valid GSO frame, with its segment size in bytes. Returns `None` if the drawn 3-tuple
    /// is not of TCP, or if a frame has no room for a segment of [`GSO_SEGMENT_MIN`] bytes.
    pub fn gso(&self, rng: &mut Rng) -> Option<(Draft, u16)> {
        let mut draft = self.genuine(rng)?;
        let headers = if draft.dst.addr.is_v4() { 54 } else { 74 };
        let most = self.around.frame_len_max.min(2048) as u64 - headers;
        let size = rng.between(u64::from(GSO_SEGMENT_MIN), most);
        draft.payload_len = (size + 1 + rng.below(2500)) as usize;
        draft.flags = TcpFlags::ACK.union([TcpFlags::PSH, TcpFlags::FIN][rng.below(2) as usize]);
        (draft.src.0 == TCP && most >= size).then_some((draft, size as u16))
    }
}

fn new_flags(rng: &mut Rng) -> TcpFlags {
    let flags = [
        TcpFlags::SYN,
        TcpFlags::RST,
        TcpFlags::ACK,
        TcpFlags::FIN,
        TcpFlags::NONE,
    ];
    let second = flags[rng.below(flags.len() as u64) as usize];
    flags[rng.below(flags.len() as u64) as usize].union(second)
}
