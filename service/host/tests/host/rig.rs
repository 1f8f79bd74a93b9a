//! One core of a service: a host (the stack of the core) and its NIC queue. The core has no thread:
//! a test runs the steps of the host.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Bell, Host, Interface, Route, Siblings};
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, MemPort, PacketIo, TxChecksum};
use tidelane_time::Instant;
use tidelane_wire::{IpAddress, MacAddress};

use crate::frames::OURS;

/// Link address of the host's interface.
pub const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

/// A doorbell that counts how often it is rung. A host rings a doorbell to wake the sleeping thread
/// of a program or of a core.
pub struct Count(pub Arc<AtomicU32>);

impl Bell for Count {
    fn ring(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// A host, and the far end of a NIC queue.
pub struct Core {
    pub host: Host<MemPort>,
    /// The far end of the queue, where the test sends and receives frames.
    queue: MemPort,
}

impl Core {
    pub fn new() -> Self {
        Self::with_port(MemConfig::default())
    }

    /// Makes a core whose NIC queue has the configuration `port`.
    pub fn with_port(port: MemConfig) -> Self {
        Self::with(EngineConfig::default(), port)
    }

    pub fn with_config(config: EngineConfig) -> Self {
        Self::with(config, MemConfig::default())
    }

    fn with(config: EngineConfig, port: MemConfig) -> Self {
        let (near, queue) = MemPort::pair(port);
        Self::with_queues(config, vec![near], queue)
    }

    fn with_queues(config: EngineConfig, queues: Vec<MemPort>, queue: MemPort) -> Self {
        let interface = Interface {
            link: LinkId(1),
            mac: OUR_MAC,
            mtu: 1500,
            addresses: vec![IpAddress::from_v4(OURS)],
        };
        let host = Host::new(config, [7; 16], interface, queues);
        let mut host = host.expect("there is memory");
        let on_link = Route {
            prefix: IpAddress::from_v4([10, 0, 0, 0]),
            // In bits of the 128-bit form: the prefix is 10.0.0.0/8.
            prefix_len: 96 + 8,
            gateway: None,
            source: IpAddress::from_v4(OURS),
        };
        host.set_routes(Instant(0), vec![IpAddress::from_v4(OURS)], vec![on_link]);
        Self { host, queue }
    }

    /// Makes a core with two NIC queues. The test sends and receives frames at the far end of the
    /// second queue.
    pub fn with_two_queues() -> Self {
        let (first, _) = MemPort::pair(MemConfig::default());
        let (second, queue) = MemPort::pair(MemConfig::default());
        let config = EngineConfig::default();
        Self::with_queues(config, vec![first, second], queue)
    }

    /// Makes the cores of one service, one core for each counter in `rings`. The counter of a core
    /// counts the rings of its doorbell.
    pub fn several(rings: &[Arc<AtomicU32>]) -> Vec<Self> {
        let siblings = Siblings::of(rings.len(), |core| Box::new(Count(rings[core].clone())));
        let core = |siblings| {
            let Self { host, queue } = Self::new();
            let host = host.beside(siblings);
            Self { host, queue }
        };
        siblings.into_iter().map(core).collect()
    }

    /// Puts a frame into the receive queue of the core.
    pub fn receives(&mut self, frame: &[u8]) {
        self.queue.tx_frame().expect("a frame")[..frame.len()].copy_from_slice(frame);
        self.queue.tx_commit(frame.len(), TxChecksum::Done);
        self.queue.tx_flush();
    }

    /// Runs one step of the host. Returns the result of [`sent`](Self::sent).
    pub fn answers(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.host.step(now);
        self.sent()
    }

    /// Takes at most [`BURST_MAX`] frames that the host has sent over its queue, oldest first.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut burst = self.queue.new_burst();
        self.queue.rx_burst(&mut burst, BURST_MAX);
        let bytes = burst.iter().map(|frame| frame.to_vec());
        let bytes = bytes.collect();
        self.queue.rx_release(&mut burst);
        bytes
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.host.counters();
        let found = counters.into_iter().find(|(known, _)| known == name);
        found.expect("a counter of that name").1
    }
}
