//! [`Connection`]: a TCP connection that the service (the process `tidelaned`) carries for a
//! context (the sockets of one thread). Its stream lends parts of the stream buffers that the
//! program shares with the service.

use std::{collections::VecDeque, rc::Rc};

use tidelane_client::Context;
use tidelane_rings::{Buffer, Descriptor, Events, ReadyList, SendRefusal};

use crate::{cause::cause_of, lent_stream_unsafe::LentStream, options::ServiceOptions};

/// Phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The service has not answered the connect, or the TCP handshake is not complete.
    Opening,
    /// Data can be sent and received.
    Open,
    /// The connection has failed, or has ended after the program's close. Data can be neither sent
    /// nor received.
    Over,
}

/// A connection, with the data that waits for the handshake or for room in the stream.
#[derive(Debug)]
pub struct Connection {
    /// `None` before the service has answered the connect, and after the close.
    stream: Option<Rc<LentStream>>,
    phase: Phase,
    /// Data that waits for the handshake or for room in the stream, oldest first.
    queue: VecDeque<Buffer>,
    /// True if the stream contains written bytes that are not yet published (shown to the service).
    has_unpublished: bool,
    /// True if a send or an allocation was refused, so that WRITABLE is reported when there is
    /// room.
    owes_writable: bool,
    /// True once the program has closed the sending direction.
    is_shut_down: bool,
    /// True once the stream has closed the sending direction, after it has taken all queued data.
    is_shut_down_sent: bool,
    /// True once the program has closed or aborted the descriptor.
    is_closing: bool,
    /// True once the program has aborted the descriptor, so that the close is a reset.
    is_aborting: bool,
    /// True while the program has paused receiving.
    is_paused: bool,
    /// True once END is reported.
    is_ended: bool,
    /// True if the connection is in `Connections::dirty`, and [`Self::transmit`] is due.
    pub is_dirty: bool,
    /// True if the connection is in `Connections::marked`, and [`Self::report_events`] is due.
    pub is_marked: bool,
    /// True if the connection is in `Connections::starved`, and waits for memory.
    pub is_starved: bool,
}

impl Connection {
    /// Returns a connection whose connect the service has not answered.
    pub fn opening() -> Self {
        Self {
            stream: None,
            phase: Phase::Opening,
            queue: VecDeque::new(),
            has_unpublished: false,
            owes_writable: false,
            is_shut_down: false,
            is_shut_down_sent: false,
            is_closing: false,
            is_aborting: false,
            is_paused: false,
            is_ended: false,
            is_dirty: false,
            is_marked: false,
            is_starved: false,
        }
    }

    /// Returns an accepted connection, which is established.
    pub fn accepted(stream: Rc<LentStream>) -> Self {
        Self {
            stream: Some(stream),
            phase: Phase::Open,
            ..Self::opening()
        }
    }

    /// Sets the stream that the service has assigned to a connect.
    pub fn set_stream(&mut self, stream: Rc<LentStream>) {
        self.stream = Some(stream);
    }

    pub fn stream(&self) -> Option<&Rc<LentStream>> {
        self.stream.as_ref()
    }

    /// Returns true until the program closes the descriptor.
    pub fn is_open(&self) -> bool {
        !self.is_closing
    }

    /// Returns true if the program may queue data, before or after the connection is established.
    fn can_send(&self) -> bool {
        self.phase != Phase::Over && !self.is_shut_down && !self.is_closing
    }

    /// Returns a part of the stream's send buffer as the first value. This value is `None` if there
    /// is no room or no memory, if queued data waits, or if the connection is not established or
    /// not open for sending. The second value is true if only memory for a send buffer is missing.
    pub fn allocate(&mut self, options: &ServiceOptions) -> (Option<Buffer>, bool) {
        let can_send = self.can_send() && self.phase == Phase::Open;
        let Some(stream) = self.stream.as_ref().filter(|_| can_send) else {
            return (None, false);
        };
        // Queued data has precedence over new data.
        let buffer = match self.queue.is_empty() {
            true => stream.allocate(options.buffer_len, options.buffer_len),
            false => None,
        };
        let lacks_room = !self.queue.is_empty() || !stream.has_room(options.buffer_len);
        self.owes_writable |= buffer.is_none();
        let lacks_memory = buffer.is_none() && !lacks_room;
        (buffer, lacks_memory)
    }

    /// Returns true if the program may send, but the data stays queued because the connection is
    /// not yet established.
    pub fn is_opening(&self) -> bool {
        self.phase == Phase::Opening && self.can_send()
    }

    /// Queues the buffer, and writes the queue to the stream as far as there is room. Returns the
    /// buffer if the connection cannot send, or if `queue_max` buffers already wait. `copies`
    /// counts the copies of payload.
    pub fn send(
        &mut self,
        buffer: Buffer,
        queue_max: usize,
        copies: &mut u64,
    ) -> Result<(), (Buffer, SendRefusal)> {
        if !self.can_send() {
            return Err((buffer, SendRefusal::NotConnected));
        }
        if self.queue.len() >= queue_max {
            self.owes_writable = true;
            return Err((buffer, SendRefusal::Full));
        }
        if buffer.is_empty() {
            return Ok(());
        }
        self.queue.push_back(buffer);
        self.write_queue(copies);
        Ok(())
    }

    /// Returns true if queued data waits for memory although the stream has room.
    pub fn lacks_memory(&self) -> bool {
        let stream = self.stream.as_ref().filter(|_| self.phase == Phase::Open);
        !self.queue.is_empty() && stream.is_some_and(|stream| stream.has_room(1))
    }

    /// Writes queued data of an established connection to the stream, as far as there is room.
    fn write_queue(&mut self, copies: &mut u64) {
        let Some(stream) = self.stream.as_ref().filter(|_| self.phase == Phase::Open) else {
            return;
        };
        while let Some(buffer) = self.queue.pop_front() {
            let len = buffer.len();
            let rest = stream.send(buffer, copies);
            let left = rest.as_ref().map_or(0, Buffer::len);
            self.has_unpublished |= left < len;
            if let Some(rest) = rest {
                self.queue.push_front(rest);
                return;
            }
        }
    }

    /// Publishes written data, then performs the pending shutdown or close. Returns true if a close
    /// is complete, so that the caller can free the descriptor.
    pub fn transmit(&mut self, context: &mut Context, copies: &mut u64) -> bool {
        self.write_queue(copies);
        let Some(stream) = &self.stream else {
            // The connect has failed, or the service has not answered yet. In the second case, the
            // close continues when the answer arrives.
            return self.is_closing && self.phase == Phase::Over;
        };
        if std::mem::take(&mut self.has_unpublished) {
            stream.publish();
        }
        let is_open = self.phase != Phase::Opening || self.is_closing;
        let is_written = self.queue.is_empty() && is_open;
        if self.is_shut_down && is_written && !std::mem::replace(&mut self.is_shut_down_sent, true)
        {
            stream.shut_down();
        }
        let ends = self.is_closing && (is_written || self.is_aborting || self.phase == Phase::Over);
        if ends {
            // Queued buffers may be parts of this stream's memory. `close` needs these parts back.
            self.queue.clear();
            stream.collect();
        }
        let has_ended = ends && stream.close(self.is_aborting);
        stream.submit(context);
        if has_ended {
            self.stream = None;
        }
        has_ended
    }

    /// Processes the buffers that the program has returned to the stream. Returns true if
    /// [`Self::transmit`] is needed.
    pub fn collect(&mut self, context: &mut Context) -> bool {
        if let Some(stream) = &self.stream {
            stream.collect();
            stream.submit(context);
        }
        self.is_closing || !self.queue.is_empty()
    }

    /// Adds the events of the connection to the list. Returns true if [`Self::transmit`] is needed.
    pub fn report_events(
        &mut self,
        descriptor: Descriptor,
        options: &ServiceOptions,
        list: &mut ReadyList,
        copies: &mut u64,
    ) -> bool {
        let Some(stream) = self.stream.clone() else {
            return false;
        };
        self.write_queue(copies);
        let mut has_work = self.has_unpublished;
        if self.phase == Phase::Opening && stream.is_established() {
            self.phase = Phase::Open;
            has_work = true;
            if self.is_open() {
                list.add_events(descriptor, Events::CONNECTED);
            }
        }
        if self.is_closing {
            // After the end of the connection, the queued data cannot be sent.
            if stream.cause().is_some() {
                self.fail();
            }
            return true;
        }
        // WRITABLE never comes on a failed connection. If the program waits for WRITABLE, report
        // CLOSED even if the connection is paused.
        let waits_in_vain = self.owes_writable && stream.cause().and_then(cause_of).is_some();
        if self.phase != Phase::Over && (!self.is_paused || waits_in_vain) {
            self.receive(&stream, descriptor, options, list);
        }
        let is_writable = self.can_send() && self.phase == Phase::Open && self.queue.is_empty();
        let has_room = is_writable && stream.has_room(options.buffer_len);
        if has_room && std::mem::take(&mut self.owes_writable) {
            list.add_events(descriptor, Events::WRITABLE);
        }
        has_work
    }

    /// Adds received data to the list, and the event END or CLOSED if it is due.
    fn receive(
        &mut self,
        stream: &Rc<LentStream>,
        descriptor: Descriptor,
        options: &ServiceOptions,
        list: &mut ReadyList,
    ) {
        // Load the flags before the data: the service stores the last bytes before the flags.
        let is_peer_closed = stream.is_peer_closed();
        let cause = stream.cause();
        while let Some(buffer) = stream.receive(options.received_len_max) {
            list.add_buffer(descriptor, buffer);
        }
        if let Some(cause) = cause.and_then(cause_of) {
            self.fail();
            list.add_closed(descriptor, cause);
        } else if is_peer_closed && !std::mem::replace(&mut self.is_ended, true) {
            list.add_events(descriptor, Events::END);
        }
    }

    /// Records that the connection has ended, and drops the queued data.
    pub fn fail(&mut self) {
        self.phase = Phase::Over;
        self.queue.clear();
    }

    /// Makes [`Self::transmit`] close the sending direction after the queued data.
    pub fn shut_down(&mut self) {
        self.is_shut_down = true;
    }

    /// Makes [`Self::transmit`] close the connection after the queued data. If `abort` is true,
    /// drops the data, and makes `transmit` reset the connection.
    pub fn close(&mut self, abort: bool) {
        self.is_closing = true;
        self.is_aborting |= abort;
        if abort {
            self.queue.clear();
        }
    }

    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }
}
