//! The engine's environment ([`Driver`]): the parts of a host that the engine calls. Each part owns
//! its state. In other comments, the *driver* of the host is not this trait, but the daemon or the
//! simulator that steps the host.

use tidelane_abi::service_flags;
use tidelane_engine::{
    Admission, Driver, Event, FlowId, FlowRoute, IpChange, LinkId, ListenerId, NewFlow, Origin,
    SegmentOut, TxFull, Verdict,
};
use tidelane_packet_io::PacketIo;
use tidelane_ring::{Region, SlotHandle, StreamBuffer};
use tidelane_time::Instant;
use tidelane_wire::{DropReason, FlowKey, TcpFlags};

use crate::{
    accounts::Ledger,
    admission::{Prepaid, judge_arrival},
    bindings::{Binding, Bindings},
    counters::HostCounters,
    driver_requests::DriverRequests,
    ephemeral_ports::EphemeralPorts,
    hand_back::HandBack,
    journal::JournalWriter,
    links::{Links, Source, is_cut, memory_mtu},
    listeners::Listeners,
    local_ports::LocalPorts,
    memory::{Staging, StreamMemory},
    neighbours::{Interface, Neighbours, Path},
    program::Programs,
    rules::RuleSet,
    within_host::AddressesWithin,
};

/// Size in bytes of the staging area, which has the receive buffers of connections before accept:
/// until the host assigns the connection to a program.
const STAGING_LEN: u64 = 256 << 20;

/// Divisor: before accept, the data of one connection may take at most a quarter of the longest
/// receive buffer that every program with the listener could allocate. The memory of the program
/// that gets the connection then has room for the data of other connections as well.
const STAGED_SHARE: u32 = 4;

/// The parts of a host that the engine calls through [`Driver`].
pub struct HostIo<P: PacketIo> {
    /// NIC queues, the local path (segments in memory between programs of this host), and the link
    /// to the mux ports (packet rings of programs with stacks of their own).
    pub links: Links<P>,
    /// The interface's routes and neighbours.
    pub neighbours: Neighbours,
    /// The addresses of this machine that the served interface does not have.
    pub within: AddressesWithin,
    /// Registered programs.
    pub programs: Programs,
    /// The users' accounts on this core.
    pub ledger: Ledger,
    /// The charge to a user's account for the flow that the engine makes next: see
    /// [`Driver::admit`].
    pub(crate) prepaid: Prepaid,
    /// Listeners of the kernel sockets whose packets the driver steers to the service.
    pub listeners: Listeners,
    /// Ephemeral ports that the driver reserved for active opens.
    pub ephemeral_ports: EphemeralPorts,
    /// Local ports that connections use, and local ports that programs reserved.
    pub local_ports: LocalPorts,
    /// Programs, slots and buffers of the flows.
    pub bindings: Bindings,
    /// The journal of connections, if the host has a journal. After a kill of the service, another
    /// process resets the connections in the journal.
    pub(crate) journal: JournalWriter,
    /// Receive buffers of connections before accept.
    pub staging: Staging,
    /// The time of this step.
    pub now: Instant,
    /// Counters of frames, drops and events.
    pub counters: HostCounters,
    /// The operator's rules.
    pub rules: RuleSet,
    /// Requests to the driver.
    pub requests: DriverRequests,
    /// Received segments without a flow, which may belong to connections of the kernel.
    pub(crate) hand_back: HandBack,
}

impl<P: PacketIo> HostIo<P> {
    /// Returns the environment of a host without programs.
    pub fn new(ports: Vec<P>, mut interface: Interface, secret: [u8; 16]) -> std::io::Result<Self> {
        let links = Links::new(ports);
        interface.mtu = interface.mtu.min(links.nic_mtu_max());
        let region = Region::heap(STAGING_LEN)?;
        let staging = Staging::new(region, StreamMemory::default());
        Ok(Self {
            links,
            neighbours: Neighbours::new(interface, secret),
            within: AddressesWithin::default(),
            programs: Programs::default(),
            ledger: Ledger::default(),
            prepaid: Prepaid::default(),
            listeners: Listeners::default(),
            ephemeral_ports: EphemeralPorts::new(secret),
            local_ports: LocalPorts::default(),
            bindings: Bindings::default(),
            journal: JournalWriter::default(),
            staging,
            now: Instant(0),
            counters: HostCounters::default(),
            rules: RuleSet::default(),
            requests: DriverRequests::default(),
            hand_back: HandBack::default(),
        })
    }

    #[inline(never)]
    fn transmit_local(&mut self, flow: FlowId, out: &SegmentOut) -> Result<(), TxFull> {
        let (bindings, programs) = (&self.bindings, &self.programs);
        self.links.transmit_local(out, |payload| {
            if let Some(binding) = bindings.get(flow)
                && let Some(buffer) = binding.tx
                && let Some(program) = programs.get(binding.home)
            {
                buffer.read(program.region.region(), out.payload_pos, payload);
            }
        })
    }
}

impl<P: PacketIo> Driver for HostIo<P> {
    #[inline(always)]
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        if let Origin::Flow(flow) = out.origin
            && let Some(binding) = self.bindings.get_mut(flow)
        {
            match &mut binding.path {
                Path::Port { template, .. }
                    if !out.flags.contains(TcpFlags::SYN) && !is_cut(out) =>
                {
                    let Some(source) = source_of(out, &binding.home_slot, binding.tx) else {
                        return Self::never_written();
                    };
                    let counters = &mut self.counters;
                    return self.links.transmit_single(counters, out, template, source);
                }
                Path::Local => return self.transmit_local(flow, out),
                _ => {}
            }
        }
        self.transmit_any(out)
    }

    #[inline(always)]
    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        match self.bindings.place(flow, pos, payload) {
            Some(placed) => placed,
            None => self.place_with_room(flow, pos, payload),
        }
    }

    #[inline]
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Progress { .. } => self.bindings.mark_dirty(flow),
            rare => self.rare_event(flow, rare),
        }
    }

    fn burst_len(&self, flow: FlowId, _segment_size: u32) -> u32 {
        match self.bindings.get(flow) {
            Some(Binding {
                path: Path::Port { .. } | Path::Waiting { .. },
                ..
            }) => self.links.super_payload_max(),
            _ => 0,
        }
    }

    fn filter(&mut self, key: &FlowKey, link: LinkId, listener: Option<ListenerId>) -> Verdict {
        match listener {
            None => self.check_source(key, link),
            Some(_) if self.rules.accepts_all() => Verdict::Accept,
            Some(listener) => match self.listeners.get(listener) {
                Some(listener) => judge_arrival(&mut self.rules, &listener.owner, key),
                None => Verdict::Refuse,
            },
        }
    }

    fn admit(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        let Self {
            listeners,
            programs,
            prepaid,
            ..
        } = self;
        *prepaid = Prepaid::default();
        if self.staging.memory().is_exhausted() {
            return Admission::Drop;
        }
        let owner = listeners.get(listener).map(|entry| entry.owner.clone());
        prepaid.charge(listeners.account(listener, programs), owner, half_open)
    }

    fn created(&mut self, flow: FlowId, new: &NewFlow) {
        let (key, requests) = (&new.key, &mut self.requests);
        let path = self.neighbours.path_to(self.now, key, new.link, requests);
        self.local_ports.begin(key.local.port);
        let binding = Binding::new(path, key.local.port);
        let binding = self.bindings.insert(flow, binding);
        if let Some(template) = binding.path.template_mut() {
            template.set_fields(new.ip);
        }
        if new.listener.is_some() {
            self.prepaid.hand_to(binding);
        }
    }

    fn set_ip(&mut self, flow: FlowId, change: IpChange) {
        if let Some(binding) = self.bindings.get_mut(flow)
            && let Some(template) = binding.path.template_mut()
        {
            match change {
                IpChange::Fields(fields) => template.set_fields(fields),
                IpChange::MayFragment(allowed) => template.set_may_fragment(allowed),
            }
        }
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        let mtu = memory_mtu(link).unwrap_or(self.neighbours.routes().interface().mtu);
        FlowRoute { link, mtu }
    }
}

impl<P: PacketIo> HostIo<P> {
    /// Applies a changed link address of a neighbour or of the interface to the paths of all flows.
    /// Flows that waited for the neighbour can now send.
    pub fn refresh_paths(&mut self) {
        for binding in self.bindings.iter_mut() {
            if self.neighbours.refresh(&mut binding.path) {
                self.links.note_blocked();
            }
        }
    }

    /// Applies changed routes to the paths of all flows.
    pub fn reroute_paths(&mut self) {
        for binding in self.bindings.iter_mut() {
            let (path, requests) = (&mut binding.path, &mut self.requests);
            if self.neighbours.reroute(self.now, path, requests) {
                self.links.note_blocked();
            }
        }
    }

    /// Implements [`Driver::place`] for a flow whose receive buffer has to be allocated or
    /// enlarged, or lies in the staging area. Before accept, the connection holds at most its
    /// share: the result of `longest_buffer` divided by `STAGED_SHARE`.
    #[inline(never)]
    fn place_with_room(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let Some(binding) = self.bindings.get(flow) else {
            return false;
        };
        if binding.is_bound() {
            let programs = &mut self.programs;
            return self.bindings.place_with_room(flow, pos, payload, programs);
        }
        let listener = binding.listener.and_then(|of| self.listeners.id_of(of));
        let longest = self.listeners.longest_buffer(listener, &self.programs);
        let (held_max, staging) = (longest / STAGED_SHARE, &mut self.staging);
        self.bindings
            .place_staged(flow, (pos, payload), held_max, staging)
    }

    /// Implements [`Driver::transmit`] for the uncommon cases: payload that the link cuts into
    /// several segments (GSO), SYNs, the RSTs of ending flows, answers without a flow, and segments
    /// over [`Path::Waiting`], [`Path::Mux`] or [`Path::Nowhere`].
    #[inline(never)]
    fn transmit_any(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        match out.origin {
            Origin::NoFlow(fields) => {
                if self.hand_back.takes(out, &self.listeners) {
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
        let Some(binding) = self.bindings.get_mut(flow) else {
            return Ok(());
        };
        let (hop, template) = match &mut binding.path {
            Path::Port { hop, template } => (hop, template),
            Path::Local => return self.transmit_local(flow, out),
            Path::Nowhere => return Ok(()),
            Path::Waiting { .. } => {
                let path = &binding.path;
                self.neighbours.use_path(self.now, path, &mut self.requests);
                self.counters.drops[DropReason::NoNeighbor.index()] += 1;
                return Err(TxFull);
            }
            Path::Mux { template } => {
                let Some(source) = source_of(out, &binding.home_slot, binding.tx) else {
                    return Self::never_written();
                };
                let counters = &mut self.counters;
                return self.links.transmit_to_mux(counters, out, template, source);
            }
        };
        if out.flags.contains(TcpFlags::SYN) && hop.is_none() {
            self.neighbours.readdress(out.key.peer.addr, template);
        }
        let Some(source) = source_of(out, &binding.home_slot, binding.tx) else {
            return Self::never_written();
        };
        if out.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
            return self
                .links
                .transmit_syn_ack(&mut self.counters, out, template);
        }
        self.links
            .transmit(&mut self.counters, out, template, source)
    }

    /// Keeps the RST of a flow for a later step. The flow must still have its binding.
    #[cold]
    fn put_off_reset(&mut self, out: &SegmentOut) {
        let Some(binding) = out.flow().and_then(|flow| self.bindings.get(flow)) else {
            return;
        };
        match &binding.path {
            Path::Port { template, .. } | Path::Mux { template } => {
                self.links.put_off_reset(out, Some(*template));
            }
            Path::Local => self.links.put_off_reset(out, None),
            // Drop the RST: the neighbour is unknown, or a rule drops the segments of the flow.
            Path::Waiting { .. } | Path::Nowhere => {}
        }
    }

    /// Drops a segment with payload whose flow has no slot or no send buffer. The engine never
    /// sends payload that the program has not written.
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
        let Some(binding) = self.bindings.get_mut(flow) else {
            return;
        };
        match event {
            Event::Progress { .. } => {}
            Event::NegativeAdvice => {
                let (path, requests) = (&binding.path, &mut self.requests);
                let probed = self.neighbours.probe_neighbour(self.now, path, requests);
                self.counters.path_doubts += u64::from(probed);
                return;
            }
            Event::Connected => binding.service_flags |= service_flags::ESTABLISHED,
            Event::Accepted(listener) => {
                binding.service_flags |= service_flags::ESTABLISHED;
                binding.listener = self.listeners.reference(listener);
                binding.half_open = None;
                let (path, requests) = (&mut binding.path, &mut self.requests);
                self.neighbours.join(self.now, path, requests);
                self.bindings.note_accepted(flow, listener);
            }
            Event::PeerClosed => binding.service_flags |= service_flags::FIN_RECEIVED,
            Event::FinAcked => binding.service_flags |= service_flags::FIN_ACKED,
            Event::Urgent(pos) => binding.note_urgent(pos),
            Event::UrgentByte(byte) => binding.note_urgent_byte(byte),
            Event::Closed(cause) => {
                binding.cause = cause.to_u32();
                binding.service_flags |= service_flags::CLOSED;
            }
            Event::SoftError(cause) => binding.note_soft_error(cause),
            Event::Released => {
                self.bindings.note_released(flow);
                return;
            }
        }
        self.bindings.mark_dirty(flow);
    }
}

/// Returns the memory that holds the payload of `out`, or `Some(None)` if the segment has no
/// payload. Returns `None` if the segment has payload, but the flow has no slot or no send buffer.
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
