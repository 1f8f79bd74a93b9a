//! Test rig: one TCP engine, whose peer and application are played by the test. Sequence numbers
//! are relative, as in tcpdump: 0 is the SYN, and 1 is the first byte. A flow is a connection. A
//! stream position is the offset of a byte in the stream of one direction. A batch is a group of
//! segments and requests that the rig passes to the engine before the rig calls `batch_end`. A
//! burst is one large segment, which the link splits into segments of one MSS.

use tidelane_engine::{
    Arrival, Driver, Duration, Ecn, Endpoint, Engine, EngineConfig, Event, FlowId, FlowKey,
    FlowRoute, IcmpError, IcmpErrorKind, Instant, IpChange, IpFields, LinkId, NewFlow, Origin,
    Segment, SegmentOut, SeqNumber, SocketOptions, TcpFlags, TcpOptions, TxFull,
};

pub const LINK: LinkId = LinkId(1);
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const SYN: TcpFlags = TcpFlags::SYN;
pub const RST: TcpFlags = TcpFlags::RST;
/// Initial sequence number of the peer, 4096 before the wrap.
const IRS: SeqNumber = SeqNumber(0xffff_f000);
/// Number of segments that the engine must not exceed in one batch. An engine that sends more
/// probably never stops.
const SENT_MAX: usize = 100_000;
/// Source of the payload bytes of the peer's segments.
static ZEROES: [u8; 65_536] = [0; 65_536];

/// A segment that the peer sends. `seq` is relative to the peer's initial sequence number, and
/// `ack` to the engine's.
#[derive(Clone, Copy, Debug)]
pub struct In {
    pub seq: u32,
    pub ack: u32,
    pub flags: TcpFlags,
    /// Window field, not scaled.
    pub wnd: u16,
    /// Length of the payload in bytes.
    pub len: usize,
    pub options: TcpOptions,
    pub ecn: Ecn,
    /// Urgent pointer field.
    pub urgent: u16,
}

/// A segment that the engine has sent. `seq` is relative to the engine's initial sequence number,
/// and `ack` to the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Out {
    pub seq: u32,
    pub ack: u32,
    pub flags: TcpFlags,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Window field, not scaled.
    pub wnd: u16,
    pub options: TcpOptions,
    pub ecn: Ecn,
    /// Urgent pointer, if URG is set.
    pub urgent: Option<u16>,
    /// Transmission time in ms since the creation of the rig.
    pub at_ms: u64,
}

/// Returns a pure ACK.
pub fn ack(seq: u32, ack: u32) -> In {
    In {
        seq,
        ack,
        flags: ACK,
        wnd: 60_000,
        len: 0,
        options: TcpOptions::NONE,
        ecn: Ecn::NotEct,
        urgent: 0,
    }
}

/// Returns a data segment.
pub fn data(seq: u32, ack_number: u32, len: usize) -> In {
    In {
        len,
        ..ack(seq, ack_number)
    }
}

/// Returns a SYN with these options.
pub fn syn(options: TcpOptions) -> In {
    In {
        flags: SYN,
        options,
        ..ack(0, 0)
    }
}

impl In {
    /// Replaces the flags.
    pub fn with(self, flags: TcpFlags) -> Self {
        Self { flags, ..self }
    }

    /// Adds URG and this pointer.
    pub fn urgent(self, urgent: u16) -> Self {
        let flags = self.flags | TcpFlags::URG;
        Self {
            flags,
            urgent,
            ..self
        }
    }

    pub fn wnd(self, wnd: u16) -> Self {
        Self { wnd, ..self }
    }

    pub fn ecn(self, ecn: Ecn) -> Self {
        Self { ecn, ..self }
    }

    /// Adds SACK blocks. Their numbers are relative to the engine's initial sequence number.
    pub fn sack(mut self, rig: &Rig, blocks: &[(u32, u32)]) -> Self {
        for (left, right) in blocks {
            self.options
                .sack
                .push(rig.iss.add(*left), rig.iss.add(*right));
        }
        self
    }

    /// Adds timestamps.
    pub fn ts(mut self, tsval: u32, tsecr: u32) -> Self {
        self.options.timestamps = TcpOptions::timestamps(tsval, tsecr).timestamps;
        self
    }
}

/// The driver (the program that runs the engine), which records all output of the engine.
#[derive(Default)]
pub struct Side {
    pub out: Vec<SegmentOut>,
    pub events: Vec<(FlowId, Event)>,
    /// Stream position and length of each payload that the engine stored by [`Driver::place`].
    pub placed: Vec<(u32, usize)>,
    /// IP fields of new flows, if the fields are not the default, and later changes of the IP
    /// fields of flows. Each element starts with the number of segments that the engine had sent
    /// earlier in the same batch.
    pub headers: Vec<(usize, IpFields)>,
    /// Value of each change [`IpChange::MayFragment`], in order.
    pub fragments: Vec<bool>,
    /// Number of events [`Event::NegativeAdvice`], which `events` leaves out.
    pub negative_advice: u32,
    /// MTU of the link in bytes.
    pub mtu: u32,
    /// Largest burst in bytes that the link splits; zero if the link does not split bursts.
    pub burst_len: u32,
    /// IP fields of the engine's answers to segments that belong to no flow.
    pub replies: Vec<IpFields>,
}

impl Driver for Side {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        assert!(self.out.len() < SENT_MAX, "the engine never stops sending");
        assert!(out.flags.contains(TcpFlags::URG) || out.urgent == 0);
        if let Origin::NoFlow(fields) = out.origin {
            self.replies.push(fields);
        }
        self.out.push(*out);
        Ok(())
    }

    fn place(&mut self, _: FlowId, pos: u32, payload: &[u8]) -> bool {
        self.placed.push((pos, payload.len()));
        true
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::NegativeAdvice => self.negative_advice += 1,
            event => self.events.push((flow, event)),
        }
    }

    fn route(&mut self, _: &FlowKey, link: LinkId) -> FlowRoute {
        let mtu = self.mtu;
        FlowRoute { link, mtu }
    }

    fn created(&mut self, _: FlowId, new: &NewFlow) {
        if new.ip != IpFields::default() {
            self.headers.push((self.out.len(), new.ip));
        }
    }

    fn set_ip(&mut self, _: FlowId, change: IpChange) {
        match change {
            IpChange::Fields(fields) => self.headers.push((self.out.len(), fields)),
            IpChange::MayFragment(allowed) => self.fragments.push(allowed),
        }
    }

    fn burst_len(&self, _: FlowId, _: u32) -> u32 {
        self.burst_len
    }
}

/// One engine with its driver. The methods play the peer, the application, and the clock.
pub struct Rig {
    pub engine: Engine,
    pub driver: Side,
    pub now: Instant,
    /// Time of the creation of the rig.
    start: Instant,
    /// 4-tuple of the peer's segments and of active opens. A test may change this 4-tuple.
    pub key: FlowKey,
    /// Initial sequence number in the last SYN or SYN,ACK of the engine; zero before the first.
    pub iss: SeqNumber,
    /// Bytes that the application has written.
    pub written: u32,
}

impl Rig {
    /// Creates a rig whose engine has a listener with these options.
    pub fn listening(config: EngineConfig, options: SocketOptions) -> Self {
        Self::with_backlog(config, options, 16)
    }

    /// Creates a rig whose engine has a listener with these options and this backlog.
    pub fn with_backlog(config: EngineConfig, options: SocketOptions, backlog: u32) -> Self {
        let local = Endpoint::v4([10, 0, 0, 1], 80);
        let peer = Endpoint::v4([10, 0, 0, 2], 4242);
        let start = Instant(1_000_000_000_000);
        let mut engine = Engine::new(config, [7; 16]);
        engine.listen(local, backlog, options).unwrap();
        let driver = Side {
            mtu: 1500,
            ..Side::default()
        };
        Self {
            engine,
            driver,
            now: start,
            start,
            key: FlowKey { local, peer },
            iss: SeqNumber(0),
            written: 0,
        }
    }

    /// Creates an established connection that the peer has opened with the options `peer`, and
    /// with an MSS of 1000 if `peer` has no MSS.
    pub fn established_with(
        config: EngineConfig,
        options: SocketOptions,
        peer: TcpOptions,
    ) -> Self {
        let mss = peer.mss.or(Some(1000));
        Self::established_by(config, options, syn(TcpOptions { mss, ..peer }))
    }

    /// Creates an established connection that the peer has opened with this SYN. The handshake
    /// takes 10 ms.
    pub fn established_by(config: EngineConfig, options: SocketOptions, opening: In) -> Self {
        Self::established_after(config, options, opening, 10)
    }

    /// Creates an established connection, as [`established_by`](Self::established_by) does, whose
    /// handshake takes `rtt_ms` ms.
    pub fn established_after(
        config: EngineConfig,
        options: SocketOptions,
        opening: In,
        rtt_ms: u64,
    ) -> Self {
        let mut rig = Self::listening(config, options);
        let reply = rig.push(opening);
        assert_eq!(reply.len(), 1, "one SYN,ACK");
        assert!(reply[0].flags.contains(SYN | ACK));
        rig.wait_ms(rtt_ms);
        let mut done = ack(1, 1);
        if let Some(timestamps) = reply[0].options.timestamps {
            done = done.ts(1, timestamps.tsval);
        }
        assert_eq!(rig.push(done), []);
        assert!(rig.flow_id().is_some(), "the engine has no flow");
        rig
    }

    /// Creates a rig whose engine starts an active open. Also returns the SYN.
    pub fn opening(config: EngineConfig, options: SocketOptions) -> (Self, Out) {
        let mut rig = Self::listening(config, options);
        rig.key.local.port = 999;
        let sent = rig.open(options);
        (rig, sent)
    }

    /// Opens a connection with the rig's 4-tuple. Returns the SYN.
    pub fn open(&mut self, options: SocketOptions) -> Out {
        let route = FlowRoute {
            link: LINK,
            mtu: self.driver.mtu,
        };
        let (local, peer) = (self.key.local, self.key.peer);
        self.engine
            .open(self.now, local, peer, route, options, &mut self.driver)
            .unwrap();
        let sent = self.batch_end();
        assert_eq!(sent.len(), 1, "one SYN");
        sent[0]
    }

    /// Creates an established connection whose peer has sent no TCP option but an MSS of 1000.
    pub fn established(options: SocketOptions) -> Self {
        Self::established_with(EngineConfig::default(), options, TcpOptions::NONE)
    }

    /// Creates an established connection with SACK.
    pub fn established_sack() -> Self {
        let sack = TcpOptions {
            sack_permitted: true,
            ..TcpOptions::NONE
        };
        Self::established_with(EngineConfig::default(), SocketOptions::default(), sack)
    }

    /// Returns the first flow of the engine.
    pub fn flow_id(&self) -> Option<FlowId> {
        self.engine.flows().next()
    }

    /// Converts a sequence number of the peer to a relative sequence number.
    pub fn relative(&self, seq: SeqNumber) -> u32 {
        seq.distance_from(IRS)
    }

    /// Returns the time in ms since the creation of the rig.
    pub fn ms(&self) -> u64 {
        (self.now - self.start).as_millis()
    }

    /// Passes a segment to the engine and ends the batch. Returns the engine's segments.
    pub fn push(&mut self, segment: In) -> Vec<Out> {
        self.arrive(segment);
        self.batch_end()
    }

    /// Passes a segment to the engine without ending the batch.
    pub fn arrive(&mut self, segment: In) {
        let bits = Segment {
            src_port: self.key.peer.port,
            dst_port: self.key.local.port,
            seq: IRS.add(segment.seq),
            ack: self.iss.add(segment.ack),
            flags: segment.flags,
            wnd: segment.wnd,
            urgent: segment.urgent,
            options: segment.options,
            payload: &ZEROES[..segment.len],
        };
        let arrival = Arrival {
            key: self.key,
            link: LINK,
            ecn: segment.ecn,
        };
        self.engine
            .segment_arrives(self.now, &arrival, &bits, &mut self.driver);
    }

    /// Ends the batch. Returns the engine's segments.
    pub fn batch_end(&mut self) -> Vec<Out> {
        self.engine.batch_end(self.now, &mut self.driver);
        let at_ms = self.ms();
        let sent = std::mem::take(&mut self.driver.out);
        let relative = |out: &SegmentOut| {
            if out.flags.contains(SYN) {
                self.iss = out.seq;
            }
            Out {
                seq: out.seq.distance_from(self.iss),
                ack: if out.flags.contains(ACK) {
                    out.ack.distance_from(IRS)
                } else {
                    0
                },
                flags: out.flags,
                len: out.payload_len,
                wnd: out.wnd,
                options: out.options,
                ecn: out.ecn,
                urgent: (out.urgent > 0).then_some(out.urgent),
                at_ms,
            }
        };
        sent.iter().map(relative).collect()
    }

    /// Advances the time by `ms`, and lets the engine's timers expire. Returns the engine's
    /// segments.
    pub fn wait_ms(&mut self, ms: u64) -> Vec<Out> {
        let end = self.now + Duration::from_millis(ms);
        let mut sent = Vec::new();
        while let Some(at) = self.engine.next_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.engine.advance_time(self.now, &mut self.driver);
            sent.extend(self.batch_end());
        }
        self.now = end;
        sent
    }

    /// Lets the application write `len` bytes. Returns the engine's segments.
    pub fn write(&mut self, len: u32) -> Vec<Out> {
        self.written += len;
        let flow = self.flow_id().expect("a flow");
        self.engine.tx_advance(flow, self.written).unwrap();
        self.batch_end()
    }

    /// Lets the application write `len` bytes, the last of which is urgent. Returns the engine's
    /// segments.
    pub fn write_urgent(&mut self, len: u32) -> Vec<Out> {
        let flow = self.flow_id().expect("a flow");
        let up = self.written + len;
        self.engine
            .tx_urgent(self.now, flow, up, &mut self.driver)
            .unwrap();
        self.write(len)
    }

    /// Lets the application change its socket options. Returns the engine's segments.
    pub fn set_options(&mut self, options: SocketOptions) -> Vec<Out> {
        let flow = self.flow_id().expect("a flow");
        self.engine
            .set_options(self.now, flow, options, &mut self.driver);
        self.batch_end()
    }

    /// Lets the application read up to this stream position. Returns the engine's segments.
    pub fn read(&mut self, rx_read: u32) -> Vec<Out> {
        let flow = self.flow_id().expect("a flow");
        self.engine.rx_advance(flow, rx_read).unwrap();
        self.batch_end()
    }

    /// Lets the application close the socket. Returns the engine's segments.
    pub fn close(&mut self) -> Vec<Out> {
        let flow = self.flow_id().expect("a flow");
        self.engine.close(self.now, flow, &mut self.driver);
        self.batch_end()
    }

    /// Passes an ICMP error to the engine. The error quotes the segment with this sequence number.
    /// Returns the engine's segments.
    pub fn icmp(&mut self, seq: u32, kind: IcmpErrorKind) -> Vec<Out> {
        let error = IcmpError {
            kind,
            key: self.key,
            seq: self.iss.add(seq),
        };
        self.engine.icmp_error(self.now, &error, &mut self.driver);
        self.batch_end()
    }

    /// Returns the events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let events = std::mem::take(&mut self.driver.events);
        events.into_iter().map(|(_, event)| event).collect()
    }

    /// Returns the state of the first flow.
    pub fn info(&self) -> tidelane_engine::FlowInfo {
        let flow = self.flow_id().expect("a flow");
        self.engine.info(flow).unwrap()
    }
}

/// Returns sequence number and length of each segment.
pub fn spans(sent: &[Out]) -> Vec<(u32, u32)> {
    sent.iter().map(|out| (out.seq, out.len)).collect()
}

/// Returns the transmission time of each segment, in ms after `start`.
pub fn times(sent: &[Out], start: u64) -> Vec<u64> {
    sent.iter().map(|out| out.at_ms - start).collect()
}
