//! [`Io`]: the [`Driver`] that the TCP engine calls. Holds the buffers, headers and events of all
//! connections of a context (the sockets of one thread), and the port (the packet interface).

use std::{collections::VecDeque, net::SocketAddr, rc::Rc};

use tidelane_embedded::{Addresses, Drops, LinkAddresses};
use tidelane_engine::{
    Driver, Endpoint, Event, FlowId, FlowKey, FlowRoute, IpChange, LinkId, ListenerId, NewFlow,
    Origin, SegmentOut, TxFull,
};
use tidelane_packet_io::{Burst, PacketIo};
use tidelane_rings::Cause;
use tidelane_wire::{DropReason, ETHERNET_HEADER_LEN, HeaderTemplate, MacAddress};

use crate::{
    connection::{Connection, cause_of},
    counters::DirectCounters,
    datagram_out::DatagramOut,
    datagrams::{DatagramSocket, DatagramSockets, OutgoingDatagram, Sent},
    loans_unsafe::Loans,
    placed::{Placed, Receiver},
    segment_writer::{headers_len, write_headers},
    supply::{Purpose, Supply},
};

/// The engine's number of the only link: a context has one port.
pub const LINK: LinkId = LinkId(0);
/// Limit of the resets that wait for a free frame. Further resets are not sent.
const LATE_RESETS_MAX: usize = 1024;

/// The connections, UDP sockets, buffers and port of a context. The engine calls the methods of
/// [`Driver`] to send segments, to store received payloads and to report events.
pub struct Io<P> {
    pub port: P,
    /// The pool of buffers, with reserves.
    pub supply: Supply,
    /// Records which buffers are lent to the port. The port may still read a lent buffer.
    pub loans: Rc<Loans>,
    /// Memory address of the frame that is being processed. `None` between frames, and always if
    /// the port does not share its memory: then a frame cannot become the buffer of its payload.
    frame: Option<usize>,
    /// The payload of this frame that a socket has accepted in place, until [`Self::end_frame`].
    placed: Option<Placed>,
    /// Link addresses of the local end, of neighbours and of the router.
    pub link: LinkAddresses,
    pub counters: DirectCounters,
    /// Number of dropped packets by reason.
    pub drops: Drops,
    /// MTU of the link in bytes, limited by the length of the port's frames.
    mtu: u32,
    /// Connections by flow number. Boxed, so that `transmit_of` moves a connection cheaply.
    connections: Vec<Option<Box<Connection>>>,
    /// Connections with events to report.
    ready: Vec<FlowId>,
    /// Established connections that are not yet in a listener's accept queue.
    pub accepted: VecDeque<(ListenerId, FlowId)>,
    /// True if the port had no free frame for a packet. The context resumes sending later.
    pub is_blocked: bool,
    /// Resets that wait for a free frame, with the headers of their deleted connections.
    late_resets: VecDeque<(SegmentOut, HeaderTemplate)>,
    pub datagrams: DatagramSockets,
    /// Identification for the next IPv4 packet that carries a datagram.
    datagram_ip_id: u16,
}

impl<P: PacketIo> Io<P> {
    /// Returns the state of a context without connections. `mtu` is the MTU of the link in bytes.
    pub fn new(port: P, loans: Rc<Loans>, link: LinkAddresses, mtu: u32) -> Self {
        let frame_len_max = port.capabilities().tx_frame_len_max;
        let mtu = mtu.min(frame_len_max.saturating_sub(ETHERNET_HEADER_LEN as u32));
        Self {
            port,
            supply: Supply::new(loans.pool().clone()),
            loans,
            frame: None,
            placed: None,
            link,
            counters: DirectCounters::default(),
            drops: [0; DropReason::COUNT],
            mtu,
            connections: Vec::new(),
            ready: Vec::new(),
            accepted: VecDeque::new(),
            is_blocked: false,
            late_resets: VecDeque::new(),
            datagrams: DatagramSockets::default(),
            datagram_ip_id: 0,
        }
    }

    /// Returns the link and the MTU for new connections.
    pub fn flow_route(&self) -> FlowRoute {
        FlowRoute {
            link: LINK,
            mtu: self.mtu,
        }
    }

    pub fn connection(&self, flow: FlowId) -> Option<&Connection> {
        self.connections.get(flow.index())?.as_deref()
    }

    pub fn connection_mut(&mut self, flow: FlowId) -> Option<&mut Connection> {
        self.connections.get_mut(flow.index())?.as_deref_mut()
    }

    /// Adds a connection to the list of connections with events.
    pub fn mark_ready(&mut self, flow: FlowId) {
        if let Some(Some(connection)) = self.connections.get_mut(flow.index())
            && !std::mem::replace(&mut connection.is_ready, true)
        {
            self.ready.push(flow);
        }
    }

    /// Returns true if a socket has events to report.
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty() || !self.accepted.is_empty() || self.datagrams.has_events()
    }

    /// Returns the number of connections with events to report.
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Returns connection `at` of the list of connections with events.
    pub fn ready_at(&self, at: usize) -> FlowId {
        self.ready[at]
    }

    /// Removes the first `count` connections from the list of connections with events.
    pub fn drain_ready(&mut self, count: usize) {
        self.ready.drain(..count);
    }

    /// Frees a connection's sent buffers that end at or before the acknowledged position `acked`.
    pub fn acknowledge(&mut self, flow: FlowId, acked: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(flow.index()) {
            while let Some(buffer) = connection.tx.acknowledge(acked) {
                drop(buffer);
            }
        }
    }

    /// Drops all queued and unacknowledged data of a connection.
    pub fn clear_send_chain(&mut self, flow: FlowId) {
        if let Some(Some(connection)) = self.connections.get_mut(flow.index()) {
            while let Some(buffer) = connection.tx.take() {
                drop(buffer);
            }
        }
    }

    /// Sends waiting resets while the port has free frames.
    pub fn send_late_resets(&mut self) {
        while let Some((out, mut template)) = self.late_resets.pop_front() {
            if self.write_frame(&out, &mut template, None).is_err() {
                self.late_resets.push_front((out, template));
                return;
            }
        }
    }

    /// Writes a segment to a transmit frame of the port, and copies its payload from the send chain
    /// of `connection`.
    fn write_frame(
        &mut self,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        connection: Option<&Connection>,
    ) -> Result<(), TxFull> {
        let offloads_checksum = self.port.capabilities().tx_checksum;
        let Some(frame) = self.port.tx_frame() else {
            self.is_blocked = true;
            return Err(TxFull);
        };
        let payload_at = headers_len(out, template);
        let len = payload_at + out.payload_len as usize;
        let written = frame.get_mut(..len).and_then(|frame| {
            if let Some(connection) = connection.filter(|_| out.payload_len > 0) {
                let room = frame.get_mut(payload_at..)?;
                connection.tx.copy_to(out.payload_pos, room).then_some(())?;
            }
            write_headers(frame, out, template, offloads_checksum)
        });
        let Some(checksum) = written else {
            self.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        self.port.tx_commit(len, checksum);
        self.counters.tx_copies += u64::from(out.payload_len > 0);
        Ok(())
    }

    /// Sends a segment from the buffer of its payload, with the headers written before the payload.
    /// Returns `None` if the payload has to be copied instead.
    fn transmit_in_place(
        &mut self,
        out: &SegmentOut,
        connection: &mut Connection,
    ) -> Option<Result<(), TxFull>> {
        let offloads_checksum = self.port.capabilities().tx_checksum;
        let template = &mut connection.template;
        let headers_len = headers_len(out, template) as u32;
        let found = connection.tx.buffer_with(out.payload_pos, out.payload_len);
        let (buffer, data) = found?;
        let frame = buffer.frame_mut(data.clone(), headers_len)?;
        let checksum = write_headers(frame, out, template, offloads_checksum)?;
        let frame = data.start - headers_len..data.end;
        if buffer.lend(&mut self.port, frame, checksum).is_err() {
            self.is_blocked = true;
            return Some(Err(TxFull));
        }
        self.counters.tx_lent += 1;
        Some(Ok(()))
    }

    /// Sends a segment of a connection, without a copy of its payload if possible.
    fn transmit_of(&mut self, flow: FlowId, out: &SegmentOut) -> Result<(), TxFull> {
        // Take the connection out of the table, because the callees borrow all of `self`.
        let place = self.connections.get_mut(flow.index());
        let Some(mut connection) = place.and_then(Option::take) else {
            return Ok(());
        };
        let in_place = match out.payload_len > 0 && self.loans.is_shared() {
            true => self.transmit_in_place(out, &mut connection),
            false => None,
        };
        let sent = in_place.unwrap_or_else(|| {
            let mut template = connection.template;
            let sent = self.write_frame(out, &mut template, Some(&connection));
            connection.template = template;
            sent
        });
        self.connections[flow.index()] = Some(connection);
        sent
    }

    /// Records the frame whose packet is processed next, so that `place` finds the offset of a
    /// payload in its frame.
    pub fn begin_frame(&mut self, frame: &[u8]) {
        self.frame = self.loans.is_shared().then(|| frame.as_ptr().addr());
    }

    /// Ends the processing of frame `at` of `burst`. If a socket has accepted a payload in place,
    /// exchanges the frame for the spare buffer of `placed`, and gives the frame to the socket as a
    /// buffer. If the exchange is impossible, copies the payload to the spare buffer instead.
    pub fn end_frame(&mut self, burst: &mut P::Burst, at: usize) {
        self.frame = None;
        let Some(placed) = self.placed.take() else {
            return;
        };
        let (offset, len) = (placed.offset, placed.len);
        let exchanged = self.loans.exchange(&mut self.port, burst, at, placed.spare);
        let buffer = match exchanged {
            Ok(mut buffer) => {
                let start = buffer.range().start + offset as u32;
                buffer.set_payload(start..start + len as u32);
                self.counters.rx_exchanges += 1;
                buffer
            }
            Err(mut spare) => {
                let frame = burst.frame(at).unwrap_or_default();
                spare.append(frame.get(offset..offset + len).unwrap_or_default());
                self.counters.rx_copies += 1;
                spare
            }
        };
        match placed.receiver {
            // If the frame made the engine delete the connection, the buffer is freed.
            Receiver::Connection { flow, pos } => {
                if let Some(connection) = self.connection_mut(flow) {
                    let copies = connection.rx.insert(pos, buffer);
                    self.counters.rx_copies += copies;
                }
            }
            Receiver::DatagramSocket { id, sender } => self.datagrams.receive(id, sender, buffer),
        }
    }

    /// Returns true if a connection may use `buffers` buffers for a payload at position `pos`.
    fn has_buffers(&mut self, flow: FlowId, pos: u32, buffers: u32) -> bool {
        let Some(connection) = self.connection(flow) else {
            return false;
        };
        let purpose = match connection.is_waiting() || !connection.rx.is_in_order(pos) {
            true => Purpose::Waiting,
            false => Purpose::Prompt,
        };
        let has = connection.rx.has_place(pos) && self.supply.has(buffers, purpose);
        self.counters.rx_no_buffer += u64::from(!has);
        has
    }

    /// Copies a payload to buffers. Returns false if [`Self::has_buffers`] refuses the payload.
    fn place_copy(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let room = self.supply.pool().payload_len_max() as usize;
        let buffers = payload.len().div_ceil(room) as u32;
        if !self.has_buffers(flow, pos, buffers) {
            return false;
        }
        let Some(Some(connection)) = self.connections.get_mut(flow.index()) else {
            return false;
        };
        let mut at = pos;
        for part in payload.chunks(room) {
            let Some(mut buffer) = self.supply.take() else {
                return false;
            };
            buffer.append(part);
            self.counters.rx_copies += 1 + connection.rx.insert(at, buffer);
            at = at.wrapping_add(part.len() as u32);
        }
        true
    }

    /// Accepts a received payload in place: the payload stays in its frame until
    /// [`Self::end_frame`]. Returns false if [`Self::has_buffers`] refuses the payload.
    fn place_frame(&mut self, flow: FlowId, pos: u32, offset: usize, len: usize) -> bool {
        if !self.has_buffers(flow, pos, 1) {
            return false;
        }
        self.placed = self.supply.take().map(|spare| Placed {
            receiver: Receiver::Connection { flow, pos },
            offset,
            len,
            spare,
        });
        self.placed.is_some()
    }

    /// Accepts a received datagram to `local`. The payload is part of the frame that is being
    /// processed.
    ///
    /// # Errors
    ///
    /// The errors of [`DatagramSockets::admit`]. `RxBufferFull` for lack of a buffer. `TooLong` if
    /// the payload is longer than a buffer.
    pub fn place_datagram(
        &mut self,
        local: Endpoint,
        (sender, mac): (SocketAddr, MacAddress),
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let (id, purpose) = self.datagrams.admit(local, sender.ip(), mac)?;
        if payload.len() > self.supply.pool().payload_len_max() as usize {
            return Err(DropReason::TooLong);
        }
        let spare = self.supply.take_for(purpose);
        let mut spare = spare.ok_or(DropReason::RxBufferFull)?;
        let at = payload.as_ptr().addr();
        match self.frame.and_then(|frame| at.checked_sub(frame)) {
            Some(offset) => {
                self.placed = Some(Placed {
                    receiver: Receiver::DatagramSocket { id, sender },
                    offset,
                    len: payload.len(),
                    spare,
                });
            }
            None => {
                spare.append(payload);
                self.counters.rx_copies += 1;
                self.datagrams.receive(id, sender, spare);
            }
        }
        Ok(())
    }

    /// Sends queued datagrams while the port has free frames. `addresses` are the local addresses.
    pub fn send_datagrams(&mut self, addresses: &Addresses) {
        let mut datagrams = std::mem::take(&mut self.datagrams);
        self.is_blocked |=
            !datagrams.send_all(|socket, datagram| self.send_datagram(addresses, socket, datagram));
        self.datagrams = datagrams;
    }

    /// Sends a datagram, without a copy of its payload if possible.
    fn send_datagram(
        &mut self,
        addresses: &Addresses,
        socket: &DatagramSocket,
        datagram: &mut OutgoingDatagram,
    ) -> Sent {
        let peer = datagram.peer;
        let source = socket.source_for(peer.addr, addresses);
        let known = socket.sender_mac(peer.addr).or(datagram.next_hop);
        let template = source.and_then(|source| self.link.udp_template(source, peer.addr, known));
        let Some(template) = template else {
            self.drops[DropReason::NoNeighbor.index()] += 1;
            return Sent::Failed(Cause::Unreachable);
        };
        let out = DatagramOut {
            template,
            ip_id: self.datagram_ip_id,
            ports: (socket.local.port, peer.port),
            offloads_checksum: self.port.capabilities().tx_checksum,
        };
        let packet_len = out.headers_len() - ETHERNET_HEADER_LEN + datagram.buffer.len() as usize;
        if packet_len > self.mtu as usize {
            self.drops[DropReason::TooLong.index()] += 1;
            return Sent::Failed(Cause::TooLong);
        }
        self.datagram_ip_id = self.datagram_ip_id.wrapping_add(1);
        out.send(&mut self.port, &mut datagram.buffer, &mut self.counters)
    }
}

impl<P: PacketIo> Driver for Io<P> {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        match out.origin {
            Origin::Flow(flow) => self.transmit_of(flow, out),
            Origin::EndingFlow(flow) => {
                if self.transmit_of(flow, out).is_err()
                    && self.late_resets.len() < LATE_RESETS_MAX
                    && let Some(template) = self.connection(flow).map(|c| c.template)
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
                self.write_frame(out, &mut template, None)
            }
        }
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let len = payload.len() as u32;
        // At most one payload stays in the frame. A second payload of the same frame is copied.
        let fits = len <= self.supply.pool().payload_len_max() && self.placed.is_none();
        let frame = self.frame.filter(|_| fits);
        if let Some(connection) = self.connection_mut(flow)
            && connection.rx.wants_append(pos, len, frame.is_none())
        {
            let further = connection.rx.append(pos, payload);
            self.counters.rx_copies += 1 + further;
            return true;
        }
        match frame.and_then(|frame| payload.as_ptr().addr().checked_sub(frame)) {
            Some(offset) => self.place_frame(flow, pos, offset, payload.len()),
            None => self.place_copy(flow, pos, payload),
        }
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        let Some(Some(connection)) = self.connections.get_mut(flow.index()) else {
            return;
        };
        match event {
            Event::Connected => connection.owes_connected = true,
            Event::Accepted(listener) => self.accepted.push_back((listener, flow)),
            Event::PeerClosed => connection.owes_end = true,
            Event::Closed(cause) => {
                connection.cause = Some(cause);
                connection.owes_closed = cause_of(cause).is_some();
            }
            Event::Released => {
                self.clear_send_chain(flow);
                self.connections[flow.index()] = None;
                return;
            }
            Event::Progress { .. } => {}
            Event::FinAcked
            | Event::NegativeAdvice
            | Event::SoftError(_)
            | Event::Urgent(_)
            | Event::UrgentByte(_) => return,
        }
        self.mark_ready(flow);
    }

    fn route(&mut self, _key: &FlowKey, _link: LinkId) -> FlowRoute {
        self.flow_route()
    }

    fn created(&mut self, flow: FlowId, new: &NewFlow) {
        let Some(mut template) = self.link.template(&new.key) else {
            return;
        };
        template.set_fields(new.ip);
        if self.connections.len() <= flow.index() {
            self.connections.resize_with(flow.index() + 1, || None);
        }
        self.connections[flow.index()] = Some(Box::new(Connection::new(template)));
    }

    fn set_ip(&mut self, flow: FlowId, change: IpChange) {
        if let Some(connection) = self.connection_mut(flow) {
            match change {
                IpChange::Fields(fields) => connection.template.set_fields(fields),
                IpChange::MayFragment(allowed) => connection.template.set_may_fragment(allowed),
            }
        }
    }
}
