//! A host (the stack of one core of the service) with a listener, and the segments of *strangers*:
//! peers that the test plays.

use std::sync::Arc;

use tidelane_host::{Credentials, Host, HostRequest, Listen, ProgramId};
use tidelane_packet_io::MemPort;
use tidelane_ring::{Layout, ProgramRegion};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TcpFlags,
    TcpOptions, checksum, emit_tcp, parse_frame, parse_tcp, write_tcp_checksum,
};

use crate::{
    frames::OURS,
    rig::{Core, OUR_MAC},
};

/// Address of the host.
pub const LOCAL: IpAddress = IpAddress::from_v4(OURS);
/// Link address of the router of a new stage.
pub const THEIR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// TCP port of the listener.
pub const PORT: u16 = 80;

/// A host in virtual time. The stage plays the part of the kernel: it answers the host's neighbour
/// requests, which ask for the link address of a neighbour.
pub struct Stage {
    pub core: Core,
    /// The present virtual time.
    pub now: Instant,
    /// Link address of the router that forwards the strangers' frames.
    pub router: MacAddress,
    /// True if the stage answers the host's neighbour requests.
    pub is_resolved: bool,
    /// Addresses in the host's neighbour requests.
    asked: Vec<IpAddress>,
    /// The host's requests that are not neighbour requests.
    others: Vec<HostRequest>,
}

impl Stage {
    /// Makes a stage with a host in the subnet 10.0.0.0/8.
    pub fn new() -> Self {
        Self::with_core(Core::new())
    }

    /// Makes a stage around `core`.
    pub fn with_core(core: Core) -> Self {
        Self {
            core,
            now: Instant(1_000_000_000),
            router: THEIR_MAC,
            is_resolved: true,
            asked: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Sends a segment of `from` to the host, and runs the host. Returns the answers.
    pub fn exchange(&mut self, from: IpAddress, header: SegmentHeader) -> Vec<SegmentHeader> {
        self.send(from, header, &[]);
        self.run();
        self.answers(from)
    }

    /// Advances the time by 5 us, and runs a step of the host. Answers the host's neighbour
    /// requests. If there was an answer, runs another step.
    pub fn run(&mut self) {
        self.now += Duration::from_micros(5);
        self.core.host.step(self.now);
        if self.ask_kernel() {
            self.core.host.step(self.now);
        }
    }

    /// Takes the host's requests. Returns true if the stage has answered a neighbour request.
    fn ask_kernel(&mut self) -> bool {
        let mut answered = false;
        while let Some(request) = self.core.host.take_request() {
            let HostRequest::Resolve { addr } = request else {
                self.others.push(request);
                continue;
            };
            self.asked.push(addr);
            if self.is_resolved {
                let (now, mac) = (self.now, Some(self.router));
                self.core.host.set_neighbour(now, addr, mac);
                answered = true;
            }
        }
        answered
    }

    /// Returns the host's requests since the last call, except neighbour requests.
    pub fn requests(&mut self) -> Vec<HostRequest> {
        self.ask_kernel();
        std::mem::take(&mut self.others)
    }

    /// Returns the addresses in the host's neighbour requests since the last call.
    pub fn asked_about(&mut self) -> Vec<IpAddress> {
        self.ask_kernel();
        std::mem::take(&mut self.asked)
    }

    /// Puts a segment of `from` with the payload `text` into the host's receive queue.
    pub fn send(&mut self, from: IpAddress, header: SegmentHeader, text: &[u8]) {
        let frame = self.frame(from, header, text);
        self.core.receives(&frame);
    }

    /// Returns the frame of a segment of the peer `from`, which comes from the router.
    pub fn frame(&self, from: IpAddress, header: SegmentHeader, text: &[u8]) -> Vec<u8> {
        let template = HeaderTemplate::new(self.router, OUR_MAC, from, LOCAL)
            .expect("both addresses have one IP version");
        let (start, len) = (template.headers_len(), header.len());
        let tcp_len = (len + text.len()) as u16;
        let mut frame = vec![0; start + len];
        template.write(&mut frame, tcp_len, Ecn::NotEct, 0);
        let tcp = &mut frame[start..];
        emit_tcp(tcp, &header);
        write_tcp_checksum(tcp, template.pseudo_header(tcp_len), checksum::sum(text));
        frame.extend(text);
        frame
    }

    /// Takes the frames that the host has sent, all of which must go to the router. Returns the
    /// headers of the segments to `from`, and discards the other segments.
    pub fn answers(&mut self, from: IpAddress) -> Vec<SegmentHeader> {
        let sent = self.core.sent();
        let answers = sent.iter().filter_map(|frame| {
            let packet = parse_frame(frame).expect("a packet");
            let segment = parse_tcp(packet.payload).expect("a segment");
            assert_eq!(frame[..6], self.router.0);
            (packet.dst == from).then(|| segment.header())
        });
        answers.collect()
    }

    /// Opens a connection from `port` of stranger 1. The last segment of the handshake carries
    /// `text`. Returns the union of the flags of the host's answers to this segment.
    pub fn connect(&mut self, port: u16, text: &[u8]) -> TcpFlags {
        self.shake(port, text);
        self.run();
        let answers = self.answers(stranger(1));
        let acknowledged = |ack: u32| answers.iter().all(|answer| answer.ack.to_u32() == ack);
        assert!(acknowledged(8 + text.len() as u32), "{answers:?}");
        let flags = answers.iter().map(|answer| answer.flags.0);
        TcpFlags(flags.fold(0, |all, flags| all | flags))
    }

    /// Begins a connection from `port` of stranger 1. Puts the last segment of the handshake, which
    /// carries `text`, into the host's receive queue, but does not run the host. Returns the header
    /// of this segment.
    pub fn shake(&mut self, port: u16, text: &[u8]) -> SegmentHeader {
        let mut syn = segment(TcpFlags::SYN, 7, 0);
        syn.src_port = port;
        let answers = self.exchange(stranger(1), syn);
        assert_eq!(answers.len(), 1, "answers to the SYN from {port}");
        let mut ack = segment(TcpFlags::ACK, 8, answers[0].seq.to_u32().wrapping_add(1));
        ack.src_port = port;
        self.send(stranger(1), ack, text);
        ack
    }

    /// Resets the connection from `port` of stranger 1, who has sent `sent` bytes of data.
    pub fn reset(&mut self, port: u16, sent: usize) {
        let mut reset = segment(TcpFlags::RST, 8 + sent as u32, 0);
        reset.src_port = port;
        self.send(stranger(1), reset, &[]);
        self.run();
    }
}

/// Makes a program with a listener on [`PORT`]. The program has 16 slots (records of connections in
/// the memory that the program shares with the host), and `rx_len` bytes for receive buffers.
pub fn listen(host: &mut Host<MemPort>, rx_len: u64) -> (ProgramId, Arc<ProgramRegion>) {
    listen_as(host, rx_len, Credentials::default())
}

/// Makes the program of [`listen`] with the credentials of a user.
pub fn listen_as(
    host: &mut Host<MemPort>,
    rx_len: u64,
    credentials: Credentials,
) -> (ProgramId, Arc<ProgramRegion>) {
    let layout = Layout::new(16, rx_len, 1 << 20).expect("a possible layout");
    let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
    let id = host.add_program("test".to_owned(), 1, region.clone());
    host.set_credentials(id, credentials);
    let listen = Listen {
        number: 1,
        key: 1,
        local: Endpoint::new(LOCAL, PORT),
        v6_only: false,
        group: None,
        backlog: 16,
        within_host: false,
    };
    host.listen(id, &listen).expect("a listener");
    (id, region)
}

/// Returns the header of a segment from port 4242 of a peer to the listener's port.
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

/// Returns the address of stranger `number`. Stranger 0 is 10.0.0.2.
pub fn stranger(number: u32) -> IpAddress {
    let [_, b, c, d] = (2 + number).to_be_bytes();
    IpAddress::from_v4([10, b, c, d])
}
