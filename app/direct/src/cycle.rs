//! [`Cycle`] does the work of a context (the sockets of one thread) when the program calls the
//! context: receives frames, runs TCP, reports events to the program, and sends.

use std::{collections::HashMap, io, time};

use tidelane_engine::{Duration, Engine, FlowId, FlowState, Instant, ListenerId, State};
use tidelane_packet_io::{BURST_MAX, PacketIo};
use tidelane_rings::{Descriptor, Events, ReadyList, SendRefusal, Wait};

use crate::{
    connection::{Ending, cause_of},
    descriptors::{Descriptors, Socket},
    input::Input,
    io::Io,
    time::TimeSource,
};

/// Longest wait of the context for packets while a segment or datagram needs a free frame, or while
/// the port (the packet interface) has frames to send. The wait ends when packets arrive, but not
/// when a frame becomes free or can be sent.
const BLOCKED_WAIT: time::Duration = time::Duration::from_millis(1);
/// Largest number of bursts that the context receives before it checks timers and may return, so
/// that a call returns even if frames keep arriving.
const BURSTS_MAX: usize = 16;

/// The state of a context: the engine (which runs TCP), the port (which moves frames), and the
/// sockets of the program.
pub struct Cycle<P: PacketIo> {
    pub engine: Engine,
    pub io: Io<P>,
    pub input: Input<P>,
    pub time: Box<dyn TimeSource<P>>,
    /// Time of the last [`Self::tick`].
    pub now: Instant,
    pub descriptors: Descriptors,
    /// The program's descriptors of the engine's listeners.
    pub listeners: HashMap<ListenerId, Descriptor>,
    /// Listeners that may have connections in their accept queue.
    pub listeners_to_accept: Vec<Descriptor>,
    /// Connections on which the program has called send, shutdown, close or abort since the last
    /// [`Self::transmit`].
    pub dirty: Vec<FlowId>,
    /// Largest number of buffers of one descriptor that may be queued or unacknowledged.
    pub send_queue_max: usize,
}

impl<P: PacketIo> Cycle<P> {
    /// Reads the clock. The time of a context never goes back.
    pub fn tick(&mut self) {
        self.now = self.now.max(self.time.now());
    }

    /// Applies the program's calls to the engine, and sends.
    pub fn transmit(&mut self) {
        self.tick();
        let mut dirty = std::mem::take(&mut self.dirty);
        for flow in dirty.drain(..) {
            self.apply(flow);
        }
        self.dirty = dirty;
        self.flush();
    }

    /// Applies the program's calls for one connection to the engine.
    fn apply(&mut self, flow: FlowId) {
        let Some(connection) = self.io.connection_mut(flow) else {
            return;
        };
        connection.is_dirty = false;
        let (ending, is_shut_down) = (connection.ending, connection.is_shut_down);
        let head = connection.tx.head();
        if ending == Some(Ending::Abort) {
            return self.engine.abort(self.now, flow, &mut self.io);
        }
        // `tx_advance` fails only if the connection is over. The event CLOSED reports the end.
        let _ = self.engine.tx_advance(flow, head);
        let state = self.engine.flow(flow).map(FlowState::state);
        if ending == Some(Ending::Close) {
            if state == Some(State::SynSent) && head > 0 {
                // In SYN-SENT, a close would delete the connection (RFC 9293 §3.10.4) and lose the
                // queued data. `report_connection` does the close after the connection is
                // established.
                return;
            }
            self.engine.close(self.now, flow, &mut self.io);
        } else if is_shut_down {
            self.engine.shutdown_write(flow);
        }
    }

    /// Sends the segments and datagrams that may be sent now.
    pub fn flush(&mut self) {
        self.io.loans.reclaim(&mut self.io.port);
        self.io.send_late_resets();
        self.io.send_datagrams(self.input.addresses());
        if self.io.is_blocked && self.io.port.tx_frame().is_some() {
            self.io.is_blocked = false;
            self.engine.resume_transmit();
        }
        self.engine.batch_end(self.now, &mut self.io);
        self.io.port.tx_flush();
    }

    /// Receives, and adds events to the list. If there is no event, waits for the first event, as
    /// long as `wait` permits.
    pub fn receive(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.tick();
        let deadline = match wait {
            Wait::No => Some(self.now),
            Wait::For(limit) => {
                let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                self.now.0.checked_add(nanos).map(Instant)
            }
            Wait::Forever => None,
        };
        loop {
            self.tick();
            let received = self.receive_bursts(list);
            if self.engine.is_due(self.now) {
                self.engine.advance_time(self.now, &mut self.io);
            }
            self.report(list);
            self.flush();
            let is_over = deadline.is_some_and(|deadline| deadline <= self.now);
            if !list.is_empty() || is_over {
                return Ok(());
            }
            if !received && !self.io.has_events() {
                let limit = self.wait_limit(deadline);
                self.io.counters.waits += 1;
                self.time.wait(&mut self.io.port, limit)?;
            }
        }
    }

    /// Receives the arrived frames in at most [`BURSTS_MAX`] bursts. Returns true if a frame has
    /// arrived.
    fn receive_bursts(&mut self, list: &mut ReadyList) -> bool {
        for at in 0..BURSTS_MAX {
            let count = self.input.receive(self.now, &mut self.engine, &mut self.io);
            if count < BURST_MAX {
                return at > 0 || count > 0;
            }
            self.report(list);
            self.flush();
        }
        true
    }

    /// Returns the limit of a wait: the time until `deadline` or until the next timer, whichever is
    /// earlier. While data or frames wait to be sent, the limit is at most [`BLOCKED_WAIT`].
    /// Returns `None` if there is no limit.
    fn wait_limit(&mut self, deadline: Option<Instant>) -> Option<time::Duration> {
        let timer = self.engine.next_timeout();
        let until = deadline.into_iter().chain(timer).min();
        let limit = until.map(|until| {
            let left = if until > self.now {
                until - self.now
            } else {
                Duration::from_nanos(0)
            };
            time::Duration::from_nanos(left.as_nanos())
        });
        match self.io.is_blocked || self.io.port.tx_pending() {
            true => Some(limit.unwrap_or(BLOCKED_WAIT).min(BLOCKED_WAIT)),
            false => limit,
        }
    }

    /// Accepts connections, and adds the events of all sockets to the list.
    fn report(&mut self, list: &mut ReadyList) {
        while let Some((listener, flow)) = self.io.accepted.pop_front() {
            let descriptor = self.listeners.get(&listener).copied();
            match descriptor.and_then(|of| Some((of, self.descriptors.listener_mut(of)?))) {
                Some((of, listener)) => {
                    listener.queue.push_back(flow);
                    self.listeners_to_accept.push(of);
                }
                None => self.engine.abort(self.now, flow, &mut self.io),
            }
        }
        let mut listeners = std::mem::take(&mut self.listeners_to_accept);
        for listener in listeners.drain(..) {
            self.accept(listener, list);
        }
        self.listeners_to_accept = listeners;
        self.io.datagrams.report(list, self.send_queue_max);
        // A connection that becomes ready during the loop stays in the list for the next report.
        let count = self.io.ready_len();
        for at in 0..count {
            self.report_connection(self.io.ready_at(at), list);
        }
        self.io.drain_ready(count);
    }

    /// Accepts the connections in a listener's accept queue.
    fn accept(&mut self, of: Descriptor, list: &mut ReadyList) {
        while let Some(listener) = self.descriptors.listener_mut(of)
            && !listener.is_paused
            && let Some(flow) = listener.queue.pop_front()
        {
            let id = listener.id;
            self.engine.accept_queue_removed(id, 1);
            let descriptor = self.descriptors.add(Socket::Connection(flow));
            let Some(connection) = self.io.connection_mut(flow) else {
                self.descriptors.remove(descriptor);
                continue;
            };
            connection.descriptor = Some(descriptor);
            list.add_accepted(descriptor, of);
            self.io.mark_ready(flow);
        }
    }

    /// Frees the acknowledged buffers of a connection, and adds its events to the list.
    fn report_connection(&mut self, flow: FlowId, list: &mut ReadyList) {
        if let Some(state) = self.engine.flow(flow) {
            self.io.acknowledge(flow, state.tx_acked());
        }
        let Some(connection) = self.io.connection_mut(flow) else {
            return;
        };
        connection.is_ready = false;
        let is_over = connection.cause.is_some();
        if connection.ending.is_some() && (is_over || connection.owes_connected) {
            connection.owes_connected = false;
            return self.apply(flow);
        }
        if let Some(descriptor) = connection.descriptor {
            if std::mem::take(&mut connection.owes_connected) {
                list.add_events(descriptor, Events::CONNECTED);
            }
            let has_room = connection.tx.len() < self.send_queue_max && connection.can_queue();
            if has_room && std::mem::take(&mut connection.owes_writable) {
                list.add_events(descriptor, Events::WRITABLE);
            }
            // If the connection is over, a program that waits for WRITABLE would wait forever. In
            // this case, report CLOSED even if the connection is paused.
            let waits_in_vain = connection.owes_closed && connection.owes_writable;
            if !connection.is_paused || waits_in_vain {
                let has_data = connection.rx.has_ready();
                while let Some(buffer) = connection.rx.take() {
                    list.add_buffer(descriptor, buffer);
                }
                if std::mem::take(&mut connection.owes_end) {
                    list.add_events(descriptor, Events::END);
                }
                if std::mem::take(&mut connection.owes_closed)
                    && let Some(cause) = connection.cause.and_then(cause_of)
                {
                    list.add_closed(descriptor, cause);
                }
                if has_data {
                    let read = connection.rx.next();
                    // `rx_advance` cannot fail: the engine has received all bytes of the chain in
                    // order.
                    let _ = self.engine.rx_advance(flow, read);
                }
            }
        }
        if is_over {
            self.io.clear_send_chain(flow);
        }
    }

    /// Makes the next [`Self::transmit`] apply the program's calls for a connection.
    pub fn mark_dirty(&mut self, flow: FlowId) {
        if let Some(connection) = self.io.connection_mut(flow)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(flow);
        }
    }

    /// Closes or aborts a socket. The descriptor of the socket is then free for reuse.
    pub fn end(&mut self, descriptor: Descriptor, ending: Ending) {
        match self.descriptors.remove(descriptor) {
            Some(Socket::Listener(listener)) => {
                self.listeners.remove(&listener.id);
                for flow in listener.queue {
                    self.engine.abort(self.now, flow, &mut self.io);
                }
                self.engine.unlisten(self.now, listener.id, &mut self.io);
            }
            Some(Socket::Connection(flow)) => {
                if let Some(connection) = self.io.connection_mut(flow) {
                    connection.descriptor = None;
                    connection.ending = Some(ending);
                    self.mark_dirty(flow);
                }
            }
            Some(Socket::Datagram(id)) => {
                self.io.datagrams.close(id, ending == Ending::Abort);
            }
            None => {}
        }
    }

    /// Returns the reason to refuse a buffer with `len` bytes on a connection. Returns `None` if
    /// the connection accepts the buffer. If the send queue is full, a later report has the event
    /// WRITABLE.
    pub fn refusal(&mut self, descriptor: Descriptor, len: u32) -> Option<SendRefusal> {
        let (queue_max, bytes_max) = (self.send_queue_max, self.engine.config().tx_limit);
        let flow = self.descriptors.flow(descriptor);
        let connection = flow.and_then(|flow| self.io.connection_mut(flow));
        let Some(connection) = connection.filter(|connection| connection.can_queue()) else {
            return Some(SendRefusal::NotConnected);
        };
        let is_full = connection.tx.len() >= queue_max
            || connection.tx.len() > 0 && connection.tx.bytes() + len > bytes_max;
        connection.owes_writable |= is_full;
        is_full.then_some(SendRefusal::Full)
    }
}

impl<P: PacketIo> Drop for Cycle<P> {
    /// Resets all connections, so that their peers need not wait for a timeout.
    fn drop(&mut self) {
        let flows: Vec<FlowId> = self.engine.flows().collect();
        for flow in flows {
            self.engine.abort(self.now, flow, &mut self.io);
        }
        self.flush();
    }
}
