//! A host of one core, a listener, and the segments that strangers send it.

use std::sync::Arc;

use tidelane_engine::{EngineConfig, LinkId};
use tidelane_host::{Host, Interface, Listen, ProgramId, Route};
use tidelane_packet_io::{BURST_MAX, Burst, MemConfig, MemPort, PacketIo, TxChecksum};
use tidelane_ring::{Layout, ProgramRegion};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TcpFlags,
    TcpOptions, checksum, emit_tcp, parse_frame, parse_tcp, write_tcp_checksum,
};

const OURS: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THEIR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PORT: u16 = 80;

pub struct Stage {
    pub host: Host<MemPort>,
    pub far: MemPort,
    pub now: Instant,
}

impl Stage {
    /// A host in a large subnet.
    pub fn new() -> Self {
        let (near, far) = MemPort::pair(MemConfig::default());
        let interface = Interface {
            link: LinkId(1),
            mac: OUR_MAC,
            mtu: 1500,
            addresses: vec![OURS],
        };
        let mut host = Host::new(EngineConfig::default(), [7; 16], interface, vec![near])
            .expect("there is memory");
        let on_link = Route {
            prefix: IpAddress::from_v4([10, 0, 0, 0]),
            prefix_len: 96 + 8,
            gateway: None,
            source: OURS,
        };
        let now = Instant(1_000_000_000);
        host.set_routes(now, vec![OURS], vec![on_link]);
        Self { host, far, now }
    }

    /// Sends a segment of `from` to the host, and lets it run; what it answers.
    pub fn exchange(&mut self, from: IpAddress, header: SegmentHeader) -> Vec<SegmentHeader> {
        self.send(from, header, &[]);
        self.run();
        self.answers(from)
    }

    /// The host runs, a little later.
    pub fn run(&mut self) {
        self.now += Duration::from_micros(5);
        self.host.step(self.now);
    }

    /// A segment of `from` waits in the host's port.
    pub fn send(&mut self, from: IpAddress, header: SegmentHeader, text: &[u8]) {
        let template = HeaderTemplate::new(THEIR_MAC, OUR_MAC, from, OURS).expect("one version");
        let frame = self.far.tx_frame().expect("a frame");
        let (start, len) = (template.headers_len(), header.len());
        let end = start + len + text.len();
        template.write(frame, (end - start) as u16, Ecn::NotEct, 0);
        let tcp = &mut frame[start..start + len];
        emit_tcp(tcp, &header);
        let pseudo = template.pseudo_header((end - start) as u16);
        write_tcp_checksum(tcp, pseudo, checksum::sum(text));
        frame[start + len..end].copy_from_slice(text);
        self.far.tx_commit(end, TxChecksum::Done);
        self.far.tx_flush();
    }

    /// What the host has sent to `from`.
    pub fn answers(&mut self, from: IpAddress) -> Vec<SegmentHeader> {
        let mut burst = self.far.new_burst();
        self.far.rx_burst(&mut burst, BURST_MAX);
        let answers = burst.iter().map(|frame| {
            let packet = parse_frame(frame).expect("a packet");
            let segment = parse_tcp(packet.payload).expect("a segment");
            (packet.dst, segment.header())
        });
        let answers: Vec<_> = answers.collect();
        self.far.rx_release(&mut burst);
        let mine = answers.into_iter().filter(|(to, _)| *to == from);
        mine.map(|(_, header)| header).collect()
    }

    pub fn counter(&self, wanted: &str) -> u64 {
        let counters = self.host.counters().into_iter();
        let found = counters.filter(|(name, _)| name == wanted);
        found.map(|(_, value)| value).sum()
    }
}

/// A program with 16 slots and `rx_len` bytes for what it receives holds the listener.
pub fn listen(host: &mut Host<MemPort>, rx_len: u64) -> (ProgramId, Arc<ProgramRegion>) {
    let layout = Layout::new(16, rx_len, 1 << 20).expect("a possible layout");
    let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
    let id = host.add_program("test".to_owned(), 1, region.clone());
    let listen = Listen {
        number: 1,
        key: 1,
        local: Endpoint::new(OURS, PORT),
        v6_only: false,
        backlog: 16,
    };
    host.listen(id, &listen).expect("a listener");
    (id, region)
}

pub fn segment(flags: TcpFlags, seq: u32, ack: u32) -> SegmentHeader {
    SegmentHeader {
        src_port: 4242,
        dst_port: PORT,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        wnd: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
    }
}

pub fn stranger(number: u32) -> IpAddress {
    let [_, b, c, d] = (2 + number).to_be_bytes();
    IpAddress::from_v4([10, b, c, d])
}
