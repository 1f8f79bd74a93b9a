//! The engine's environment ([`Driver`]): all state of a host except the engine. In other comments,
//! the *driver* of the host is not this trait, but the daemon or the simulator that steps the host.

use std::collections::VecDeque;

use tidelane_abi::{ConnectionIds, ControlEvent, control_event, service_flags};
use tidelane_engine::{
    Admission, Driver, Event, FlowId, FlowRoute, IpChange, LinkId, ListenerId, NewFlow, Origin,
    SegmentOut, TxFull, Verdict,
};
use tidelane_packet_io::{PacketIo, Tapped};
use tidelane_ring::{Region, SlotHandle, StreamBuffer};
use tidelane_time::Instant;
use tidelane_wire::{ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, FlowKey, MacAddress, TcpFlags};

use crate::{
    HostCounters, HostRequest,
    accounts::Ledger,
    admission::Prepaid,
    binding::{Binding, Path, STAGING},
    buffered_flows::BufferedFlows,
    ephemeral_ports::EphemeralPorts,
    hand_back::HandBack,
    hash::label_seed,
    journal::JournalWriter,
    late_resets::LateResets,
    listeners::Listeners,
    local_path::{self, LocalPath},
    local_ports::LocalPorts,
    memory::{Staging, StreamMemory},
    mux_link::{self, MUX_LINK, MuxLink},
    program::Programs,
    routes::Routes,
    rules::RuleSet,
    transmit::{Source, is_cut, transmitter},
    within_host::AddressesWithin,
};

/// Link number of the local path, which joins programs of this host. NIC queue `n` is link `n + 1`.
pub const LOCAL_PATH_LINK: LinkId = LinkId(0);
/// Size in bytes of the staging area, which has the receive buffers of connections before accept.
const STAGING_LEN: u64 = 256 << 20;
/// Largest length in bytes of the Ethernet, IP and TCP headers of a frame together.
const HEADERS_LEN_MAX: u32 = (FRAME_HEADERS_LEN_MAX + 60) as u32;
/// Limit of requests that wait for the driver. The host drops further requests.
const REQUESTS_MAX: usize = 4096;

/// All state of a host except the engine, which calls this type through [`Driver`].
pub struct HostIo<P> {
    /// Ports, one per NIC queue.
    pub ports: Vec<Tapped<P>>,
    /// The local path: segments between programs of this host.
    pub local_path: LocalPath,
    /// The link to the ports of the mux.
    pub mux_link: MuxLink,
    /// The interface's routes and neighbours.
    pub routes: Routes,
    /// The host's addresses that are on other interfaces than the served interface.
    pub within: AddressesWithin,
    /// Registered programs.
    pub programs: Programs,
    /// The users' accounts on this core.
    pub ledger: Ledger,
    /// The charge for the flow that the engine makes next: see [`Driver::admit`].
    pub(crate) prepaid: Prepaid,
    /// Listeners of the kernel sockets that the service claimed.
    pub listeners: Listeners,
    /// Ephemeral ports that the driver reserved for active opens.
    pub ephemeral_ports: EphemeralPorts,
    /// Local ports that connections use or programs reserved.
    pub local_ports: LocalPorts,
    /// Bindings, by flow number.
    pub bindings: Vec<Option<Binding>>,
    /// Flows with a receive buffer.
    pub(crate) buffered_flows: BufferedFlows,
    /// Flows with changes to publish to their programs.
    pub dirty: Vec<FlowId>,
    /// Established connections that the end of the step assigns to a context of their listener.
    pub accepted: Vec<(FlowId, ListenerId)>,
    /// The journal of connections, if there is one.
    pub(crate) journal: JournalWriter,
    /// Flows that ended in this step. The end of the step removes their bindings.
    pub released: Vec<FlowId>,
    /// Receive buffers of connections before accept.
    pub staging: Staging,
    /// The memory for received data of all cores.
    pub stream_memory: StreamMemory,
    /// Link address of the sender of the present frame.
    pub arrival: Option<MacAddress>,
    /// The time of this step.
    pub now: Instant,
    /// Counters of frames, drops and events.
    pub counters: HostCounters,
    /// The operator's rules.
    pub rules: RuleSet,
    /// True during an active open that a rule drops: the new flow gets [`Path::Nowhere`].
    pub opens_without_path: bool,
    /// Requests to the driver.
    pub requests: VecDeque<HostRequest>,
    /// True if a port has a frame that is not flushed.
    pub tx_queued: bool,
    /// True if a port or the local path had no room for a segment. The engine then has to resume
    /// sending.
    pub blocked: bool,
    /// RSTs of ended flows for which a link had no room.
    pub late_resets: LateResets,
    /// Received segments without a flow, which may belong to connections of the kernel.
    pub(crate) hand_back: HandBack,
    /// Payload limit in bytes of a GSO frame on all ports; zero if a port has no GSO.
    super_payload_max: u32,
    /// Seed of IPv6 flow labels (RFC 6437).
    pub(crate) label_seed: [u64; 2],
    /// Secret key of the hashes that make IP identifications.
    pub(crate) secret: [u8; 16],
}

impl<P: PacketIo> HostIo<P> {
    /// Returns the environment of a host without programs.
    pub fn new(ports: Vec<P>, mut routes: Routes, secret: [u8; 16]) -> std::io::Result<Self> {
        routes.interface.mtu = routes.interface.mtu.min(mtu_of(&ports));
        let region = Region::heap(STAGING_LEN)?;
        let staging = Staging::new(region, StreamMemory::default());
        let super_len = ports.iter().map(|port| port.capabilities().tx_gso_len_max);
        let super_payload_max = super_len.min().unwrap_or(0).saturating_sub(HEADERS_LEN_MAX);
        Ok(Self {
            ports: ports.into_iter().map(Tapped::of_nic).collect(),
            super_payload_max,
            local_path: LocalPath::default(),
            mux_link: MuxLink::default(),
            routes,
            within: AddressesWithin::default(),
            programs: Programs::default(),
            ledger: Ledger::default(),
            prepaid: Prepaid::default(),
            listeners: Listeners::default(),
            ephemeral_ports: EphemeralPorts::new(secret),
            local_ports: LocalPorts::default(),
            bindings: Vec::new(),
            buffered_flows: BufferedFlows::default(),
            dirty: Vec::new(),
            accepted: Vec::new(),
            journal: JournalWriter::default(),
            released: Vec::new(),
            staging,
            stream_memory: StreamMemory::default(),
            arrival: None,
            now: Instant(0),
            counters: HostCounters::default(),
            rules: RuleSet::default(),
            opens_without_path: false,
            requests: VecDeque::new(),
            tx_queued: false,
            blocked: false,
            late_resets: LateResets::default(),
            hand_back: HandBack::default(),
            label_seed: label_seed(secret),
            secret,
        })
    }

    /// Returns the largest MTU that all ports support.
    pub fn ports_mtu(&self) -> u32 {
        mtu_of(&self.ports)
    }

    /// Queues a request to the driver.
    pub fn request(&mut self, request: HostRequest) {
        if self.requests.len() < REQUESTS_MAX {
            self.requests.push_back(request);
        }
    }

    /// Returns the binding of `flow`.
    #[inline]
    pub fn binding(&mut self, flow: FlowId) -> Option<&mut Binding> {
        self.bindings.get_mut(flow.index())?.as_mut()
    }

    /// Puts `flow` on the list of flows to publish.
    #[inline(always)]
    pub fn mark_dirty(&mut self, flow: FlowId) {
        if let Some(binding) = self.bindings.get_mut(flow.index()).and_then(Option::as_mut)
            && !binding.dirty
        {
            binding.dirty = true;
            if self.dirty.len() == self.dirty.capacity() {
                return self.grow_and_mark_dirty(flow);
            }
            self.dirty.push(flow);
        }
    }

    /// Adds `flow` to the list of dirty flows when the list has to grow. Not inlined, so that the
    /// common path saves no registers.
    #[cold]
    #[inline(never)]
    fn grow_and_mark_dirty(&mut self, flow: FlowId) {
        self.dirty.push(flow);
    }

    #[inline(never)]
    fn transmit_local(&mut self, flow: FlowId, out: &SegmentOut) -> Result<(), TxFull> {
        let (bindings, programs) = (&self.bindings, &self.programs);
        let pushed = self.local_path.push(out, |payload| {
            if let Some(Some(binding)) = bindings.get(flow.index())
                && let Some(buffer) = binding.tx
                && let Some(program) = programs.get(binding.home)
            {
                buffer.read(program.region.region(), out.payload_pos, payload);
            }
        });
        self.blocked |= !pushed;
        pushed.then_some(()).ok_or(TxFull)
    }

    /// Implements [`Driver::place`] for a flow whose receive buffer has to be allocated or
    /// enlarged, or lies in the staging area before accept.
    #[inline(never)]
    fn place_with_room(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return false;
        };
        if let Some(program) = self.programs.get_mut(binding.home) {
            let region = program.region.region();
            let slot = program.region.slot(binding.slot);
            self.buffered_flows.add(flow);
            return binding.place(region, slot, &mut program.rx, pos, payload);
        }
        let staged = binding.home == STAGING;
        self.buffered_flows.add(flow);
        staged && self.place_staged(flow, pos, payload)
    }
}

impl<P: PacketIo> Driver for HostIo<P> {
    #[inline(always)]
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        if let Origin::Flow(flow) = out.origin
            && let Some(Some(binding)) = self.bindings.get_mut(flow.index())
        {
            match &mut binding.path {
                Path::Port { template, .. }
                    if !out.flags.contains(TcpFlags::SYN) && !is_cut(out) =>
                {
                    let Some(source) = source_of(out, &binding.home_slot, binding.tx) else {
                        return Self::never_written();
                    };
                    return transmitter!(self).transmit_single(out, template, source);
                }
                Path::Local => return self.transmit_local(flow, out),
                _ => {}
            }
        }
        self.transmit_any(out)
    }

    #[inline(always)]
    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return false;
        };
        let Some(buffer) = binding.rx_for(pos, payload.len()) else {
            return self.place_with_room(flow, pos, payload);
        };
        let Some(home_slot) = &binding.home_slot else {
            return self.place_with_room(flow, pos, payload);
        };
        binding.active = true;
        buffer.write(home_slot.region().region(), pos, payload)
    }

    #[inline]
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Progress { .. } => self.mark_dirty(flow),
            rare => self.rare_event(flow, rare),
        }
    }

    fn burst_len(&self, flow: FlowId, _segment_size: u32) -> u32 {
        match self.bindings.get(flow.index()) {
            Some(Some(Binding {
                path: Path::Port { .. } | Path::Waiting { .. },
                ..
            })) => self.super_payload_max,
            _ => 0,
        }
    }

    fn filter(&mut self, key: &FlowKey, link: LinkId, listener: Option<ListenerId>) -> Verdict {
        match listener {
            None => self.check_source(key, link),
            Some(_) if self.rules.accepts_all() => Verdict::Accept,
            Some(listener) => self.judge_arrival(listener, key),
        }
    }

    fn admit(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        self.charge_flow(listener, half_open)
    }

    fn created(&mut self, flow: FlowId, new: &NewFlow) {
        let binding = self.bind_new(flow, &new.key, new.link);
        if let Some(template) = binding.path.template_mut() {
            template.set_fields(new.ip);
        }
        if new.listener.is_some() {
            self.hand_charge_to(flow);
        }
    }

    fn set_ip(&mut self, flow: FlowId, change: IpChange) {
        if let Some(binding) = self.binding(flow)
            && let Some(template) = binding.path.template_mut()
        {
            match change {
                IpChange::Fields(fields) => template.set_fields(fields),
                IpChange::MayFragment(allowed) => template.set_may_fragment(allowed),
            }
        }
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        let mtu = match link {
            LOCAL_PATH_LINK => local_path::MTU,
            MUX_LINK => mux_link::MTU,
            _ => self.routes.interface.mtu,
        };
        FlowRoute { link, mtu }
    }
}

impl<P: PacketIo> HostIo<P> {
    /// Implements [`Driver::transmit`] for all segments except a single segment over a NIC to a
    /// known neighbour: bursts, SYNs, answers without a flow, and segments of flows with another
    /// path.
    #[inline(never)]
    fn transmit_any(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        match out.origin {
            Origin::NoFlow(fields) => {
                if self.leaves_to_kernel(out) {
                    return Ok(());
                }
                self.transmit_back(out, fields)
            }
            Origin::Flow(flow) => self.transmit_of(flow, out),
            Origin::EndingFlow(flow) => {
                if self.transmit_of(flow, out).is_err() {
                    self.put_off_reset(out);
                }
                Ok(())
            }
        }
    }

    fn transmit_of(&mut self, flow: FlowId, out: &SegmentOut) -> Result<(), TxFull> {
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return Ok(());
        };
        let (hop, template) = match &mut binding.path {
            Path::Port { hop, template } => (hop, template),
            Path::Local => return self.transmit_local(flow, out),
            Path::Nowhere => return Ok(()),
            Path::Waiting { .. } => return Err(self.wait_for_hop(flow)),
            Path::Mux { template } => {
                let Some(source) = source_of(out, &binding.home_slot, binding.tx) else {
                    return Self::never_written();
                };
                let state = (&mut self.tx_queued, &mut self.blocked);
                return self
                    .mux_link
                    .transmit(&mut self.counters, state, out, template, source);
            }
        };
        if out.flags.contains(TcpFlags::SYN) && hop.is_none() {
            // The link address for the peer may have changed since the peer's first SYN.
            let to = self.routes.known_mac(out.key.peer.addr).or(self.arrival);
            if let Some(to) = to {
                template.set_link(self.routes.interface.mac, to);
            }
        }
        let Some(source) = source_of(out, &binding.home_slot, binding.tx) else {
            return Self::never_written();
        };
        if out.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
            return transmitter!(self).transmit_syn_ack(out, template);
        }
        transmitter!(self).transmit(out, template, source)
    }

    /// Drops a segment with payload whose flow has no send buffer. The engine never sends payload
    /// that the program has not written.
    #[cold]
    fn never_written() -> Result<(), TxFull> {
        debug_assert!(false, "the engine sends payload that was never written");
        Ok(())
    }

    /// Records an event other than [`Event::Progress`] in the flow's binding and in the lists of
    /// this step.
    #[inline(never)]
    fn rare_event(&mut self, flow: FlowId, event: Event) {
        self.journal.note(flow, event);
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return;
        };
        match event {
            Event::Progress { .. } => {}
            Event::NegativeAdvice => return self.probe_neighbour(flow),
            Event::Connected => binding.service_flags |= service_flags::ESTABLISHED,
            Event::Accepted(listener) => {
                binding.service_flags |= service_flags::ESTABLISHED;
                binding.listener = Some(listener);
                binding.half_open = None;
                self.accepted.push((flow, listener));
                self.join_hop(flow);
            }
            Event::PeerClosed => binding.service_flags |= service_flags::FIN_RECEIVED,
            Event::FinAcked => binding.service_flags |= service_flags::FIN_ACKED,
            Event::Urgent(pos) => self.note_urgent(flow, pos),
            Event::UrgentByte(byte) => self.note_urgent_byte(flow, byte),
            Event::Closed(cause) => {
                binding.cause = cause.to_u32();
                binding.service_flags |= service_flags::CLOSED;
            }
            Event::SoftError(cause) => self.note_soft_error(flow, cause),
            Event::Released => {
                self.released.push(flow);
                return;
            }
        }
        self.mark_dirty(flow);
    }
}

/// Returns the memory that holds the payload of `out`. Returns `None` if the segment has payload,
/// but the flow has no slot or no send buffer.
#[inline(always)]
fn source_of<'s>(
    out: &SegmentOut,
    slot: &'s Option<SlotHandle>,
    buffer: Option<StreamBuffer>,
) -> Option<Source<'s>> {
    match (slot, buffer) {
        _ if out.payload_len == 0 => Some(None),
        (Some(slot), Some(buffer)) => Some(Some((&**slot.region(), buffer))),
        _ => None,
    }
}

/// Returns the identity of a flow as the slot shows it: addresses, ports, MSS and connection
/// number.
pub fn ids_of(key: &FlowKey, connection: u64, mss: u32) -> ConnectionIds {
    ConnectionIds {
        local_addr: key.local.addr.0,
        peer_addr: key.peer.addr.0,
        local_port: key.local.port,
        peer_port: key.peer.port,
        mss,
        connection,
        reserved: [0; 2],
    }
}

/// Returns a control event about a slot.
pub fn slot_event(kind: u32, slot: u32, generation: u32, cookie: u64) -> ControlEvent {
    ControlEvent {
        kind,
        slot,
        cookie,
        generation,
        cause: 0,
        listener: 0,
        syn_room: 0,
        reserved: [0; 8],
    }
}

/// Returns the control event of a failed active open. `cause` is a `close_cause`.
pub fn failed_event(cookie: u64, cause: u32) -> ControlEvent {
    let kind = control_event::CONNECT_FAILED;
    ControlEvent {
        kind,
        slot: 0,
        cookie,
        generation: 0,
        cause,
        listener: 0,
        syn_room: 0,
        reserved: [0; 8],
    }
}

/// Returns the largest MTU that all of `ports` support.
fn mtu_of<P: PacketIo>(ports: &[P]) -> u32 {
    let frame_len = |port: &P| port.capabilities().tx_frame_len_max;
    let frame_len = ports.iter().map(frame_len).min().unwrap_or(u32::MAX);
    frame_len.saturating_sub(ETHERNET_HEADER_LEN as u32)
}
