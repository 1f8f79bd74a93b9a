//! The part of a stack that the engine (`tidelane-engine`, which runs TCP) calls through the trait
//! `Driver`: buffers, headers and events of all connections, and the port (the packet interface).

use std::collections::VecDeque;

use tidelane_engine::{
    CloseCause, Driver, Duration, Event as EngineEvent, FlowId, FlowKey, FlowRoute, Instant,
    IpChange, LinkId, ListenerId, NewFlow, Origin, SegmentOut, TxFull,
};
use tidelane_packet_io::{GSO_SEGMENT_MIN, PacketIo};
use tidelane_wire::{
    DropReason, ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, HeaderTemplate, TCP_HEADER_LEN_MAX,
};

use crate::{
    accept_queue::AcceptQueue,
    binding::Binding,
    buffer::BufferPool,
    drops::Drops,
    frame_writer::FrameWriter,
    handles::{Connection, Event, Listener},
    link_addresses::LinkAddresses,
    options::OptionHandler,
};

/// Largest length in bytes of the Ethernet, IP and TCP headers with all options.
const HEADERS_LEN_MAX: u32 = (FRAME_HEADERS_LEN_MAX + TCP_HEADER_LEN_MAX) as u32;
/// Largest number of RST segments that wait for a free frame. While this number of RST segments
/// waits, the stack drops each further RST segment for which the port has no free frame.
const LATE_RESETS_MAX: usize = 1024;
/// Time from a poll to the next poll if the port has not taken all frames.
const FULL_PORT_RETRY: Duration = Duration::from_millis(1);

/// An event for the program, with the ids of the engine. [`Io::next_event`] converts a report to an
/// [`Event`], whose handles become invalid when the program closes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// A listener has a connection in its accept queue.
    Incoming(ListenerId),
    /// An active open is complete.
    Connected(FlowId),
    /// Data or the peer's FIN has arrived.
    Readable(FlowId),
    /// The send buffer has room, after a write that took only a part of its data.
    Writable(FlowId),
    /// The peer has announced urgent data.
    Urgent(FlowId),
    /// The connection has ended.
    Closed(FlowId, CloseCause),
}

/// The state of a stack that the engine's calls need. The engine calls `Io` as its [`Driver`], to
/// send segments, to store received payloads and to report events.
pub struct Io<P> {
    pub port: P,
    pub link: LinkAddresses,
    /// MTU of the port in bytes.
    pub mtu: u32,
    /// Bindings (the stack's states of the connections), indexed by flow id.
    pub bindings: Vec<Option<Binding>>,
    /// Memory of ended connections, for the buffers of new connections.
    buffers: BufferPool,
    /// Reports that the program has not yet taken.
    reports: VecDeque<Report>,
    /// Connections that the program has not yet accepted.
    pub accept_queue: AcceptQueue,
    /// Generation of the newest connection. A handle has the generation of its connection, because
    /// the engine reuses flow ids.
    pub generations: u32,
    /// True if the port had no free frame, or no room for a GSO frame (a frame that the link splits
    /// into segments), so that the engine must resume sending later.
    pub blocked: bool,
    /// True if the last flush left something unsent: segments because the port was full
    /// (`blocked`), or frames in the port that the link did not take.
    frames_wait: bool,
    /// Handler of the program's TCP options, if any.
    pub options: Option<Box<dyn OptionHandler>>,
    /// RST segments that wait for a free frame, with their Ethernet and IP headers. Their
    /// connections may already be deleted.
    late_resets: VecDeque<(SegmentOut, HeaderTemplate)>,
    /// Numbers of dropped packets by reason.
    pub drops: Drops,
}

impl<P: PacketIo> Io<P> {
    /// Returns the state of a stack without connections.
    pub fn new(port: P, link: LinkAddresses) -> Self {
        let mtu = port.capabilities().tx_frame_len_max - ETHERNET_HEADER_LEN as u32;
        Self {
            port,
            link,
            mtu,
            bindings: Vec::new(),
            buffers: BufferPool::default(),
            reports: VecDeque::new(),
            accept_queue: AcceptQueue::default(),
            generations: 0,
            blocked: false,
            frames_wait: false,
            options: None,
            late_resets: VecDeque::new(),
            drops: [0; DropReason::COUNT],
        }
    }

    /// Returns the MTU for new connections: the MTU of the port, minus the room for the program's
    /// options.
    pub fn path_mtu(&self) -> u32 {
        let extra = self.options.as_ref().map_or(0, |handler| handler.len_max());
        self.mtu - u32::from(extra)
    }

    /// Returns the binding of a flow.
    pub fn binding(&mut self, flow: FlowId) -> Option<&mut Binding> {
        self.bindings.get_mut(flow.index())?.as_mut()
    }

    /// Accepts the oldest connection in the accept queue of `listener`, and then reports the
    /// earlier events of this connection. Returns `None` if the accept queue is empty.
    pub fn accept(&mut self, listener: ListenerId) -> Option<Connection> {
        // A connection in the queue has a binding, which exists until the program closes or aborts
        // the connection.
        let flow = self.accept_queue.pop(listener)?;
        let binding = self.bindings.get_mut(flow.index())?.as_mut()?;
        binding.listener = None;
        let reports = [
            binding.urgent.map(|_| Report::Urgent(flow)),
            binding.readable_reported.then_some(Report::Readable(flow)),
            binding.cause.map(|cause| Report::Closed(flow, cause)),
        ];
        self.reports.extend(reports.into_iter().flatten());
        binding.handle(flow)
    }

    /// Returns the next event for the program. Drops reports of connections that the program has
    /// closed.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(report) = self.reports.pop_front() {
            let event = match report {
                Report::Incoming(listener) => Some(Event::Incoming(Listener(listener))),
                Report::Connected(flow) => self.handle(flow).map(Event::Connected),
                Report::Readable(flow) => self.handle(flow).map(Event::Readable),
                Report::Writable(flow) => self.handle(flow).map(Event::Writable),
                Report::Urgent(flow) => self.handle(flow).map(Event::Urgent),
                Report::Closed(flow, cause) => {
                    let handle = self.handle(flow);
                    handle.map(|connection| Event::Closed(connection, cause))
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Returns the handle of a connection that the program has opened or accepted, and has not
    /// closed.
    pub fn handle(&mut self, flow: FlowId) -> Option<Connection> {
        self.binding(flow)?.handle(flow)
    }

    /// Sends waiting RST segments while the port has free frames.
    pub fn send_late_resets(&mut self) {
        while let Some((out, mut template)) = self.late_resets.pop_front() {
            let (mut writer, _) = self.frame_writer();
            if writer.write_frame(&out, &mut template, None).is_err() {
                self.late_resets.push_front((out, template));
                return;
            }
        }
    }

    /// Hands all queued frames to the link.
    pub fn flush_port(&mut self) {
        self.port.tx_flush();
        self.frames_wait = self.blocked || self.port.tx_pending();
    }

    /// Returns the time at which the program has to poll the stack even if no packet arrives. `now`
    /// is the time of the most recent poll, and `timer` is the time of the engine's next timer.
    /// Frames that wait need a time of their own, because the engine may have no timer for a
    /// segment that was not sent.
    pub fn next_poll(&self, now: Instant, timer: Option<Instant>) -> Option<Instant> {
        let retry = self.frames_wait.then(|| now + FULL_PORT_RETRY);
        timer.into_iter().chain(retry).min()
    }

    /// Returns the writer of frames to the port, and the bindings, indexed by flow id.
    fn frame_writer(&mut self) -> (FrameWriter<'_, P>, &mut [Option<Binding>]) {
        let writer = FrameWriter {
            port: &mut self.port,
            options: &mut self.options,
            blocked: &mut self.blocked,
            drops: &mut self.drops,
        };
        (writer, &mut self.bindings)
    }

    /// Sends a segment of a connection. Sends a payload that is longer than one segment as a GSO
    /// frame.
    fn transmit_of(&mut self, flow: FlowId, out: &SegmentOut) -> Result<(), TxFull> {
        let (mut writer, bindings) = self.frame_writer();
        let Some(Some(binding)) = bindings.get_mut(flow.index()) else {
            return Ok(());
        };
        if out.payload_len > u32::from(out.segment_size) {
            return writer.write_gso_frame(out, &mut binding.template, &binding.tx);
        }
        let payload = (out.payload_len > 0).then_some(&binding.tx);
        writer.write_frame(out, &mut binding.template, payload)
    }

    /// Copies `parts`, one after another, to the send buffer of a connection until the buffer has
    /// `limit` bytes that the peer has not acknowledged. `acked` is the stream position up to which
    /// the peer has acknowledged. Returns the number of copied bytes, and the stream position after
    /// these bytes. Returns `None` if the handle is invalid, or if the sending direction or the
    /// connection is closed.
    pub fn copy_to_send(
        &mut self,
        connection: Connection,
        (acked, limit): (u32, u32),
        parts: &[&[u8]],
    ) -> Option<(usize, u32)> {
        let binding = self.bindings.get_mut(connection.flow.index())?.as_mut()?;
        if !binding.is_of(connection) || !binding.may_write() {
            return None;
        }
        let len = binding.copy_to_send((acked, limit), parts, &mut self.buffers);
        Some((len as usize, binding.tx_head.wrapping_add(len)))
    }
}

impl<P: PacketIo> Driver for Io<P> {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        match out.origin {
            Origin::Flow(flow) => self.transmit_of(flow, out),
            Origin::EndingFlow(flow) => {
                if self.transmit_of(flow, out).is_err()
                    && self.late_resets.len() < LATE_RESETS_MAX
                    && let Some(template) = self.binding(flow).map(|binding| binding.template)
                {
                    self.late_resets.push_back((*out, template));
                }
                Ok(())
            }
            Origin::NoFlow(fields) => {
                let Some(mut template) = self.link.template(&out.key) else {
                    return Ok(());
                };
                template.set_fields(fields);
                self.frame_writer().0.write_frame(out, &mut template, None)
            }
        }
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return false;
        };
        let start = binding.rx_read;
        let end = pos.wrapping_add(payload.len() as u32);
        let len = end.wrapping_sub(start);
        binding.rx.reserve(start, len, &mut self.buffers);
        binding.rx.write(pos, payload);
        true
    }

    fn event(&mut self, flow: FlowId, event: EngineEvent) {
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return;
        };
        let report = match event {
            EngineEvent::Progress { readable, writable } => {
                if writable && std::mem::take(&mut binding.wants_room) {
                    self.reports.push_back(Report::Writable(flow));
                }
                if !readable || std::mem::replace(&mut binding.readable_reported, true) {
                    return;
                }
                Report::Readable(flow)
            }
            EngineEvent::Connected => Report::Connected(flow),
            EngineEvent::Accepted(listener) => {
                self.accept_queue.push(listener, flow);
                self.reports.push_back(Report::Incoming(listener));
                return;
            }
            EngineEvent::PeerClosed => {
                binding.peer_closed = true;
                binding.readable_reported = true;
                Report::Readable(flow)
            }
            EngineEvent::Urgent(pos) => {
                binding.urgent = Some((pos, None));
                Report::Urgent(flow)
            }
            EngineEvent::UrgentByte(value) => {
                if let Some((_, byte)) = &mut binding.urgent {
                    *byte = Some(value);
                }
                return;
            }
            EngineEvent::SoftError(cause) => {
                binding.path_error = Some(cause);
                return;
            }
            EngineEvent::Closed(cause) => {
                binding.cause = Some(cause);
                Report::Closed(flow, cause)
            }
            EngineEvent::Released => {
                if let Some(binding) = self.bindings[flow.index()].take() {
                    self.buffers.give(binding.rx);
                    self.buffers.give(binding.tx);
                }
                return;
            }
            EngineEvent::FinAcked | EngineEvent::NegativeAdvice => return,
        };
        // If the connection waits to be accepted, `accept` reports its events later.
        if binding.listener.is_none() {
            self.reports.push_back(report);
        }
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        let mtu = self.path_mtu();
        FlowRoute { link, mtu }
    }

    fn created(&mut self, flow: FlowId, new: &NewFlow) {
        let Some(mut template) = self.link.template(&new.key) else {
            return;
        };
        template.set_fields(new.ip);
        if self.bindings.len() <= flow.index() {
            self.bindings.resize_with(flow.index() + 1, || None);
        }
        // Generations start at one, because the C interface uses zero for "no connection".
        self.generations = self.generations.checked_add(1).unwrap_or(1);
        let binding = Binding::new(template, self.generations, new.listener);
        self.bindings[flow.index()] = Some(binding);
    }

    /// Returns the payload limit of a GSO frame in bytes. The limit is 0 if the port has no GSO
    /// frames, or if the segments are too short for GSO. With an option handler, the limit is 0,
    /// because all segments of a GSO frame would carry the same options.
    fn burst_len(&self, _flow: FlowId, segment_size: u32) -> u32 {
        if segment_size < u32::from(GSO_SEGMENT_MIN) || self.options.is_some() {
            return 0;
        }
        let len_max = self.port.capabilities().tx_gso_len_max;
        len_max.saturating_sub(HEADERS_LEN_MAX)
    }

    fn set_ip(&mut self, flow: FlowId, change: IpChange) {
        if let Some(binding) = self.binding(flow) {
            match change {
                IpChange::Fields(fields) => binding.template.set_fields(fields),
                IpChange::MayFragment(allowed) => binding.template.set_may_fragment(allowed),
            }
        }
    }
}
