//! A mux that owns its NIC and its link to the host. The mux shares the NIC between *mux ports*,
//! each of which is a pair of packet rings for a program that has its own TCP/IP stack. The *host*
//! is the stack that gets all packets that no mux port has claimed.

use tidelane_packet_io::{BURST_MAX, Burst, Capabilities, PacketIo};
use tidelane_time::Instant;
use tidelane_wire::{IpAddress, MacAddress};

use crate::{
    claims::PortId,
    egress::{Egress, copy_to},
    filter::{Filter, Reception},
    gso::GsoFrame,
    port::PortsFull,
    port_end::PortEnd,
    ports::Ports,
    ready::Doorbell,
};

/// Counters of the packets for the host and for the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets from the NIC that are for the host, because no mux port receives them. Packets in
    /// `host_overruns` also count.
    pub to_host: u64,
    /// Packets that were lost because the link to the host had no room, including packets of mux
    /// ports.
    pub host_overruns: u64,
    /// Packets of the host that were lost because the NIC had no room.
    pub nic_overruns: u64,
}

/// A mux with a NIC of type `N`, a link to the host of type `H`, and mux ports of type `P`.
pub struct Mux<N: PacketIo, H: PacketIo, P: PortEnd> {
    outside: Outside<N, H>,
    ports: Ports<P>,
    /// An empty burst for received frames of the NIC. `None` while the mux forwards the frames.
    nic_burst: Option<N::Burst>,
    /// Outcome for each frame of the most recent burst of the NIC or the host.
    receptions: Vec<Reception>,
    /// An empty burst for frames of the host. `None` while the mux forwards the frames.
    host_burst: Option<H::Burst>,
}

/// The NIC and the link to the host.
struct Outside<N, H> {
    nic: N,
    host: H,
    counters: Counters,
}

/// This mux has no filter.
impl<N: PacketIo, H: PacketIo> Filter for Outside<N, H> {}

impl<N: PacketIo, H: PacketIo> Egress for Outside<N, H> {
    fn nic_capabilities(&self) -> Capabilities {
        self.nic.capabilities()
    }

    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool {
        frame.send(&mut self.nic).is_ok()
    }

    fn send_to_nic(&mut self, frame: &[u8]) -> bool {
        copy_to(&mut self.nic, frame)
    }

    /// Returns true while the NIC is full, so that packets of mux ports wait for room. This mux has
    /// no clock, so the wait has no time limit.
    fn waits_for_nic(&mut self) -> bool {
        self.nic.tx_frame().is_none()
    }

    fn give_to_host(&mut self, frame: &[u8]) -> bool {
        let taken = copy_to(&mut self.host, frame);
        self.counters.host_overruns += u64::from(!taken);
        taken
    }
}

impl<N: PacketIo, H: PacketIo, P: PortEnd> Mux<N, H, P> {
    /// Makes a mux for at most `ports_max` mux ports. `mac` and `addresses` belong to the
    /// interface.
    pub fn new(
        nic: N,
        host: H,
        mac: MacAddress,
        addresses: Vec<IpAddress>,
        ports_max: usize,
    ) -> Self {
        Self {
            nic_burst: Some(nic.new_burst()),
            receptions: Vec::new(),
            host_burst: Some(host.new_burst()),
            outside: Outside {
                nic,
                host,
                counters: Counters::default(),
            },
            ports: Ports::new(mac, addresses, ports_max),
        }
    }

    /// Opens a mux port: see [`Ports::open`]. Returns the number of the mux port, and the doorbell
    /// with which the program's end of the port tells the mux that frames wait.
    pub fn open(&mut self, io: P) -> Result<(PortId, Doorbell), PortsFull> {
        let port = self.ports.open(io)?;
        let partial = self.outside.nic.capabilities().rx_checksum_may_be_partial;
        Ok((port, self.ports.doorbell(port, partial)))
    }

    /// Returns the NIC.
    pub fn nic(&self) -> &N {
        &self.outside.nic
    }

    /// Returns the mux ports.
    pub fn ports(&self) -> &Ports<P> {
        &self.ports
    }

    /// Returns the mux ports.
    pub fn ports_mut(&mut self) -> &mut Ports<P> {
        &mut self.ports
    }

    /// Returns the counters of the packets for the host and for the NIC.
    pub fn counters(&self) -> Counters {
        self.outside.counters
    }

    /// Forwards one burst of the NIC, one burst of the host, and at most one new burst of each mux
    /// port with packets (see [`Ports::take_turns`]). Returns true if there was a packet. This mux
    /// has no clock, so its mux ports must have no rate limit.
    pub fn step(&mut self) -> bool {
        let mut count = self.forward_from_nic();
        count += self.forward_from_host();
        count += self.ports.take_turns(Instant(0), &mut self.outside);
        self.outside.nic.tx_flush();
        self.outside.host.tx_flush();
        self.ports.flush();
        count > 0
    }

    fn forward_from_nic(&mut self) -> usize {
        let Some(mut burst) = self.nic_burst.take() else {
            return 0;
        };
        let count = self.outside.nic.rx_burst(&mut burst, BURST_MAX);
        let ports = &mut self.ports;
        ports.receive(burst.iter(), true, &mut (), &mut self.receptions);
        for (frame, reception) in burst.iter().zip(&self.receptions) {
            if *reception == Reception::Unclaimed {
                self.outside.counters.to_host += 1;
                self.outside.give_to_host(frame);
            }
        }
        self.outside.nic.rx_release(&mut burst);
        self.nic_burst = Some(burst);
        count
    }

    fn forward_from_host(&mut self) -> usize {
        let Some(mut burst) = self.host_burst.take() else {
            return 0;
        };
        let count = self.outside.host.rx_burst(&mut burst, BURST_MAX);
        let ports = &mut self.ports;
        ports.receive(burst.iter(), false, &mut (), &mut self.receptions);
        for (frame, reception) in burst.iter().zip(&self.receptions) {
            if *reception == Reception::Unclaimed {
                let taken = self.outside.send_to_nic(frame);
                self.outside.counters.nic_overruns += u64::from(!taken);
            }
        }
        self.outside.host.rx_release(&mut burst);
        self.host_burst = Some(burst);
        count
    }
}
