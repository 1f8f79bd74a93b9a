//! The network device of a smoltcp host. The device converts between smoltcp's IP packets and the
//! links' Ethernet frames.

use std::collections::VecDeque;

use smoltcp::{
    phy::{self, DeviceCapabilities, Medium},
    time::Instant,
};
use tidelane_wire::{
    ETHERNET_HEADER_LEN, Endpoint, IpAddress, MacAddress, Packet, TcpFlags, parse_ipv4, parse_ipv6,
    parse_tcp,
};

use crate::{
    family::Family,
    topology::{Topology, address, mac, mac_of},
};

/// Largest number of packets that wait for processing. The device drops further packets, like a
/// NIC.
const WAITING_MAX: usize = 1024;

/// The device of a smoltcp host, with its queues in both directions.
pub struct Device {
    own: MacAddress,
    mtu: usize,
    /// Address of each host, with the link address of the next hop to it.
    hops: Vec<(IpAddress, MacAddress)>,
    /// Received packets that wait for processing.
    waiting: VecDeque<Vec<u8>>,
    /// The packet that smoltcp's next poll receives.
    admitted: Option<Vec<u8>>,
    /// Packets that smoltcp has sent.
    sent: Vec<Vec<u8>>,
}

impl Device {
    /// Creates the device of host `index`.
    pub fn new(index: usize, mtu: u32, topology: &Topology) -> Self {
        let hop = |family, to| {
            let addr = address(family, to);
            let gateway = topology.gateway(family, index, to).unwrap_or(addr);
            (addr, mac_of(gateway).unwrap_or_default())
        };
        let hosts = 0..topology.access.len();
        Self {
            own: mac(index),
            mtu: mtu as usize,
            hops: hosts
                .flat_map(|to| Family::BOTH.map(|family| hop(family, to)))
                .collect(),
            waiting: VecDeque::new(),
            admitted: None,
            sent: Vec::new(),
        }
    }

    /// Queues the packet of a frame from the link. Drops the frame if it is longer than the MTU
    /// permits, if it has no IP packet, or if the queue is full.
    pub fn arrive(&mut self, frame: &[u8]) {
        let fits = frame.len() <= self.mtu + ETHERNET_HEADER_LEN;
        let is_ip = match frame.get(12..=ETHERNET_HEADER_LEN) {
            Some([0x08, 0x00, start]) => start >> 4 == 4,
            Some([0x86, 0xdd, start]) => start >> 4 == 6,
            _ => false,
        };
        if fits && is_ip && self.waiting.len() < WAITING_MAX {
            let packet = frame[ETHERNET_HEADER_LEN..].to_vec();
            self.waiting.push_back(packet);
        }
    }

    /// Makes the next waiting packet available to smoltcp's next poll. If the packet is a SYN
    /// without ACK and `known` returns true for its endpoints (the peer's endpoint is first), drops
    /// the packet and goes on to the next packet. Returns true if a packet is available.
    pub fn admit(&mut self, known: impl Fn((Endpoint, Endpoint)) -> bool) -> bool {
        while self.admitted.is_none() {
            let Some(packet) = self.waiting.pop_front() else {
                return false;
            };
            if !syn_ends(&packet).is_some_and(&known) {
                self.admitted = Some(packet);
            }
        }
        true
    }

    /// Takes the packets that smoltcp has sent, and converts them to frames. Drops a packet to an
    /// address that is in no entry of `hops`.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        let hops = &self.hops;
        let frame = |packet: Vec<u8>| {
            let (ethertype, to) = match packet.first()? >> 4 {
                4 => ([0x08, 0x00], parse(&packet)?.dst),
                _ => ([0x86, 0xdd], parse(&packet)?.dst),
            };
            let (_, hop) = hops.iter().find(|(addr, _)| *addr == to)?;
            let mut frame = hop.0.to_vec();
            frame.extend(self.own.0);
            frame.extend(ethertype);
            frame.extend(packet);
            Some(frame)
        };
        self.sent.drain(..).filter_map(frame).collect()
    }
}

fn parse(packet: &[u8]) -> Option<Packet<'_>> {
    parse_ipv4(packet).or_else(|_| parse_ipv6(packet)).ok()
}

/// Returns the endpoints of a SYN without ACK, the peer's endpoint first. Returns `None` for any
/// other packet.
fn syn_ends(packet: &[u8]) -> Option<(Endpoint, Endpoint)> {
    let packet = parse(packet)?;
    let segment = parse_tcp(packet.payload).ok()?;
    let opens = segment.flags.contains(TcpFlags::SYN) && !segment.flags.contains(TcpFlags::ACK);
    let peer = Endpoint::new(packet.src, segment.src_port);
    opens.then_some((peer, Endpoint::new(packet.dst, segment.dst_port)))
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken, TxToken<'_>)> {
        let packet = self.admitted.take()?;
        Some((RxToken(packet), TxToken(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        Some(TxToken(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// A received packet, which smoltcp consumes.
pub struct RxToken(Vec<u8>);

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

/// Room for one packet that smoltcp sends.
pub struct TxToken<'a>(&'a mut Vec<Vec<u8>>);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}
