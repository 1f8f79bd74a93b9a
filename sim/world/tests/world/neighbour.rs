//! An active open waits for the link address of its next hop (RFC 1122 §2.3.2.2). The test drives a
//! host, which is the stack of one core of the service.

use std::sync::Arc;

use tidelane_client::{Connect, Program};
use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Bell, Host, HostRequest, Interface, Route};
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, MemPort, PacketIo};
use tidelane_ring::{Layout, ProgramRegion, ServicePageMap};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{IpAddress, MacAddress, TcpFlags, parse_frame, parse_tcp};

const OURS: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
const PEER: IpAddress = IpAddress::from_v4([10, 0, 0, 2]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// A doorbell without effect, because the test drives the host itself.
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) -> bool {
        true
    }
}

/// Returns the TCP flags and the destination MAC address of each frame that the host has sent since
/// the last call.
fn sent(far: &mut MemPort) -> Vec<(TcpFlags, [u8; 6])> {
    let mut burst = far.new_burst();
    far.rx_burst(&mut burst, BURST_MAX);
    let seen = burst.iter().map(|bytes| {
        let packet = parse_frame(bytes).expect("a packet");
        let segment = parse_tcp(packet.payload).expect("a segment");
        (segment.flags, bytes[..6].try_into().expect("six bytes"))
    });
    let seen = seen.collect();
    far.rx_release(&mut burst);
    seen
}

#[test]
fn an_open_waits_until_the_link_address_is_known() {
    let (near, mut far) = MemPort::pair(MemConfig::default());
    let interface = Interface {
        link: LinkId(1),
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        addresses: vec![OURS],
    };
    let config = EngineConfig::default();
    let mut host = Host::new(config, [7; 16], interface, vec![near]).expect("there is memory");
    let on_link = Route {
        prefix: IpAddress::from_v4([10, 0, 0, 0]),
        prefix_len: 96 + 24,
        gateway: None,
        source: OURS,
    };
    let mut now = Instant(1_000_000_000);
    host.set_routes(now, vec![OURS], vec![on_link]);
    host.add_ports(now, OURS, &[40_000]);
    let layout = Layout::new(16, 1 << 20, 1 << 20).expect("a possible layout");
    let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
    let page = Arc::new(ServicePageMap::heap(1).expect("there is memory"));
    let program = Program::in_memory(region.clone(), page, || ());
    let id = host.add_program("test".to_owned(), 1, region);
    assert!(host.add_context(id, 0, Box::new(NoBell)));
    let mut context = program.new_context().expect("a context");
    let request = Connect {
        peer_addr: PEER.0,
        peer_port: 80,
        ..Connect::default()
    };
    context.connect(&request).expect("the ring has room");
    context.flush();
    for _ in 0..10 {
        now += Duration::from_millis(1);
        host.step(now);
        assert_eq!(sent(&mut far), []);
    }
    let asked: Vec<HostRequest> = std::iter::from_fn(|| host.take_request()).collect();
    let resolves =
        |request: &HostRequest| matches!(request, HostRequest::Resolve { addr } if *addr == PEER);
    assert!(asked.iter().any(resolves), "{asked:?}");
    host.set_neighbour(now, PEER, Some(PEER_MAC));
    now += Duration::from_millis(1);
    host.step(now);
    assert_eq!(sent(&mut far), [(TcpFlags::SYN, PEER_MAC.0)]);
}
