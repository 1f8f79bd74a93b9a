//! Runs a host (the TCP/IP stack of one polling thread of the Tidelane service) and its programs in
//! one thread, with virtual time and with a link in memory instead of a NIC.

use std::sync::Arc;

use tidelane_client::{Context, ListenerHandle, Program};
use tidelane_engine::{EngineConfig, Instant, IpAddress, LinkId};
use tidelane_host::{Bell, Host, HostRequest, Interface, Listen, Route};
use tidelane_packet_io::MemPort;
use tidelane_ring::{Layout, ProgramRegion, ServicePageMap};
use tidelane_wire::{Endpoint, MacAddress};

/// Number of slots of a program. A slot is the record of a connection in shared memory.
const SLOTS: u32 = 1024;
/// Length in bytes of the memory for a program's send buffers, and of the memory for its receive
/// buffers.
const AREA_LEN: u64 = 64 << 20;
/// First TCP port for active opens.
const PORT_FIRST: u16 = 40_000;

/// A doorbell without an effect. A doorbell wakes a sleeping program, and no program sleeps in
/// these loads.
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) -> bool {
        true
    }
}

/// A host, with a substitute for the service's control plane. The substitute resolves neighbours
/// and assigns ports.
pub struct Machine {
    /// The host that the load drives.
    pub host: Host<MemPort>,
    /// The page that the service shares with all programs.
    page: Arc<ServicePageMap>,
    /// True after the host has got its TCP ports for active opens.
    ports_given: bool,
}

/// Returns the IPv4 address of the machine with this number.
pub fn address(number: u8) -> IpAddress {
    IpAddress::from_v4([10, 0, 0, number])
}

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

impl Machine {
    /// Returns the machine with this number. `port` takes the place of the host's NIC.
    pub fn new(number: u8, port: MemPort) -> Self {
        let interface = Interface {
            link: LinkId(1),
            mac: mac(number),
            mtu: 1500,
            addresses: vec![address(number)],
        };
        let on_link = Route {
            prefix: IpAddress::from_v4([10, 0, 0, 0]),
            // `prefix_len` counts bits of the IPv4-mapped IPv6 address.
            prefix_len: 96 + 24,
            gateway: None,
            source: address(number),
        };
        let config = EngineConfig::default();
        let mut host =
            Host::new(config, [number; 16], interface, vec![port]).expect("there is memory");
        host.set_routes(Instant::ZERO, vec![address(number)], vec![on_link]);
        Self {
            host,
            page: Arc::new(ServicePageMap::heap(1).expect("there is memory")),
            ports_given: false,
        }
    }

    /// Adds a program with one context. A context has the request and event rings of one thread of
    /// the program. If `listen_at` is given, the program listens at that address and port.
    pub fn program(&mut self, listen_at: Option<Endpoint>) -> (Program, Context) {
        let layout = Layout::new(SLOTS, AREA_LEN, AREA_LEN).expect("a possible layout");
        let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
        let program = Program::in_memory(region.clone(), self.page.clone(), || ());
        let id = self.host.add_program("micro".to_owned(), 1, region);
        assert!(self.host.add_context(id, 0, Box::new(NoBell)));
        let mut context = program.new_context().expect("a context");
        if let Some(local) = listen_at {
            let listen = Listen {
                number: 1,
                key: 1,
                local,
                v6_only: false,
                group: None,
                backlog: 1024,
                within_host: false,
            };
            self.host.listen(id, &listen).expect("the port is free");
            context
                .listener_join(ListenerHandle(listen.number), 0)
                .expect("the ring has room");
            context.flush();
        }
        (program, context)
    }

    /// Runs one step of the host, and answers the host's requests for link addresses and TCP ports.
    /// Ignores the host's other requests.
    pub fn step(&mut self, now: Instant) {
        self.host.step(now);
        while let Some(request) = self.host.take_request() {
            match request {
                HostRequest::Resolve { addr } => {
                    let number = addr.as_v4().map_or(0, |v4| v4[3]);
                    self.host.set_neighbour(now, addr, Some(mac(number)));
                }
                HostRequest::MorePorts { addr } => {
                    let ports: Vec<u16> = (PORT_FIRST..PORT_FIRST + 1024).collect();
                    let ports = if self.ports_given { &[] } else { &ports[..] };
                    self.ports_given = true;
                    self.host.add_ports(now, addr, ports);
                }
                HostRequest::PortIdle { .. }
                | HostRequest::Strays
                | HostRequest::CorruptPorts
                | HostRequest::IdleMemory => {}
            }
        }
    }
}
