//! Loads of the mux, as in Figure 4 of the paper "MultiStack" (CCR 2014). The mux (`service/mux`)
//! passes packets between one NIC and the mux ports of many programs. Each program has a TCP/IP
//! stack of its own. A mux port is a pair of packet rings, through which one program shares the
//! NIC. In each turn of a load, every mux port sends or receives packets.

use tidelane_mux::{Mux, PortId, Tuple, copy_to};
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, MemPort, PacketIo};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TCP_HEADER_LEN,
    TcpFlags, TcpOptions, checksum, emit_tcp, write_tcp_checksum,
};

use crate::{Load, Tally, allocations_unsafe};

/// Number of packets in one turn: the sum over all mux ports. The number of mux ports must divide
/// this number.
const PACKETS: u32 = 1024;
/// Divisor of the numbers of turns in [`Load`]. The mux loads need fewer turns than other loads,
/// because each turn has [`PACKETS`] packets.
const PER_TURN: u32 = 100;
/// Length in bytes of the smallest Ethernet frame, without the frame check sequence (FCS).
const FRAME_LEN: usize = 60;
/// Link address of the interface.
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// IP addresses of the interface and of the peer.
const ADDRESSES: [IpAddress; 2] = [
    IpAddress::from_v4([10, 0, 0, 1]),
    IpAddress::from_v4([10, 0, 0, 2]),
];

/// Length in bytes of a packet ring with room for all packets of a turn. With several mux ports,
/// the packet rings of each port have only a share of this length.
const RING_LEN: u32 = 256 * 1024;
/// Smallest length in bytes of the packet rings in these loads.
const RING_LEN_MIN: u32 = 16 * 1024;

/// The measured mux. Its mux ports have packet rings. Links in memory take the place of its NIC and
/// of the host (the service's own TCP/IP stack).
pub type MemoryMux = Mux<MemPort, MemPort, ServiceEnd>;

/// The mux, and the far ends of its links and packet rings: the peer of the NIC, the host, and the
/// programs at the mux ports.
struct Net {
    mux: MemoryMux,
    nic: MemPort,
    _host: MemPort,
    ports: Vec<ProgramEnd>,
}

impl Net {
    fn new(ports: u32) -> Self {
        let config = MemConfig {
            partial_checksums: false,
            frames: 2 * PACKETS,
            ..MemConfig::default()
        };
        let (nic, mux_nic) = MemPort::pair(config);
        let (host, mux_host) = MemPort::pair(config);
        let mut mux = Mux::new(mux_nic, mux_host, MAC, vec![ADDRESSES[0]], ports as usize);
        let mut open = |number: u32| {
            let ring_len = (RING_LEN / ports).max(RING_LEN_MIN);
            let (service, program) = PortRegions::heap(number, ring_len).expect("there is memory");
            let opened = mux.open(ServiceEnd::new(&service, None));
            let (id, _doorbell) = opened.expect("there is room for the port");
            let local = local(number);
            let protocol = 6;
            let claimed = mux.ports_mut().claim(Tuple { protocol, local }, id);
            claimed.expect("the 3-tuple is free");
            assert_eq!(id, PortId(number));
            ProgramEnd::new(&program, 1514, false)
        };
        let ports = (0..ports).map(&mut open).collect();
        Self {
            mux,
            nic,
            _host: host,
            ports,
        }
    }
}

fn local(port: u32) -> Endpoint {
    Endpoint::new(ADDRESSES[0], 1024 + port as u16)
}

/// Returns an Ethernet frame of [`FRAME_LEN`] bytes with a TCP segment.
fn frame(src: Endpoint, dst: Endpoint) -> Vec<u8> {
    let template = HeaderTemplate::new(MAC, MAC, src.addr, dst.addr);
    let template = template.expect("both addresses are IPv4");
    let mut frame = vec![0; FRAME_LEN];
    let tcp_len = (FRAME_LEN - template.headers_len()) as u16;
    let start = template.write(&mut frame, tcp_len, Ecn::NotEct, 0);
    let (header, payload) = frame[start..].split_at_mut(TCP_HEADER_LEN);
    let fields = SegmentHeader {
        src_port: src.port,
        dst_port: dst.port,
        seq: SeqNumber(1),
        ack: SeqNumber(1),
        flags: TcpFlags::ACK,
        wnd: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
    };
    emit_tcp(header, &fields);
    let pseudo = template.pseudo_header(tcp_len);
    write_tcp_checksum(header, pseudo, checksum::sum(payload));
    frame
}

fn send(port: &mut impl PacketIo, frame: &[u8]) {
    assert!(copy_to(port, frame), "the link has a free frame");
}

/// Receives all frames that have arrived at `port`. Returns the number of the frames.
fn drain<P: PacketIo>(port: &mut P) -> usize {
    let (mut burst, mut count) = (port.new_burst(), 0);
    while port.rx_burst(&mut burst, BURST_MAX) > 0 {
        count += burst.len();
        port.rx_release(&mut burst);
    }
    count
}

/// Runs the load `mux-send`: the mux ports send packets to the NIC.
pub fn send_to_nic(load: Load) -> Tally {
    let peer = Endpoint::new(ADDRESSES[1], 9);
    let frames: Vec<_> = (0..load.connections)
        .map(|port| frame(local(port), peer))
        .collect();
    run(load, |net, step| {
        let each = PACKETS / load.connections;
        for (port, frame) in net.ports.iter_mut().zip(&frames) {
            (0..each).for_each(|_| send(port, frame));
            port.tx_flush();
        }
        let mut count = 0;
        while count < PACKETS as usize {
            step(&mut net.mux);
            count += drain(&mut net.nic);
        }
    })
}

/// Runs the load `mux-receive`: the NIC receives packets for the mux ports.
pub fn receive_from_nic(load: Load) -> Tally {
    let peer = Endpoint::new(ADDRESSES[1], 9);
    let frames: Vec<_> = (0..load.connections)
        .map(|port| frame(peer, local(port)))
        .collect();
    run(load, |net, step| {
        // Send only one burst before each step. If more than one burst were queued, `MemPort` would
        // move all remaining frames forward in its queue at each received burst.
        let mut next = frames.iter().cycle();
        for _ in 0..PACKETS as usize / BURST_MAX {
            for frame in next.by_ref().take(BURST_MAX) {
                send(&mut net.nic, frame);
            }
            net.nic.tx_flush();
            step(&mut net.mux);
        }
        let count: usize = net.ports.iter_mut().map(drain).sum();
        assert_eq!(count, PACKETS as usize, "each packet arrives");
    })
}

/// Runs one step of the mux, which passes packets between a NIC and the packet rings of many
/// programs.
#[unsafe(no_mangle)]
#[inline(never)]
fn tidelane_micro_mux(mux: &mut MemoryMux) {
    mux.step();
}

/// Runs the turns of a load. `turn` runs one turn, and gets a function that runs one step of the
/// mux.
fn run(load: Load, mut turn: impl FnMut(&mut Net, &mut dyn FnMut(&mut MemoryMux))) -> Tally {
    let mut net = Net::new(load.connections);
    let mut tally = Tally::default();
    for _ in 0..load.warmup / PER_TURN {
        turn(&mut net, &mut |mux| {
            mux.step();
        });
    }
    for _ in 0..load.count / PER_TURN {
        turn(&mut net, &mut |mux| {
            let before = allocations_unsafe::count();
            tidelane_micro_mux(mux);
            tally.allocations += allocations_unsafe::count() - before;
        });
        tally.count += u64::from(PACKETS);
    }
    tally
}
