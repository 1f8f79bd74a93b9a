//! [`Driver`]: starts the io_uring requests for the sockets of a context (all sockets of one
//! thread), and turns the completions of the requests into events.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use tidelane_rings::{Buffer, Descriptor, Events, ReadyList, Wait};

use crate::{
    options::KernelOptions,
    piece::Piece,
    request_unsafe::{Datagram, Request, RequestId},
    socket::{Phase, Socket, cause_of},
    sockets::Sockets,
    uring_unsafe::{Completion, Uring},
    zero_copy::{Policy, is_refusal},
};

/// The sockets of a context, and the io_uring that carries their requests.
pub struct Driver {
    uring: Uring,
    pub sockets: Sockets,
    /// Sockets for the next [`Self::start_sends`]: a send, a shutdown or a close may be due.
    dirty: Vec<Descriptor>,
    /// Sockets whose receive failed with ENOBUFS, because the kernel had no free buffer.
    starved: Vec<Descriptor>,
    /// Sockets that have refused a buffer and have room again. The next list reports WRITABLE for
    /// each of them that can still send.
    writable: Vec<Descriptor>,
    /// Largest number of buffers of one descriptor that wait for sending or that the kernel reads
    /// in zero-copy sends.
    send_queue_max: usize,
    /// Decides which sends are zero-copy sends (the kernel reads the buffers instead of copying
    /// them).
    policy: Policy,
}

impl Driver {
    pub fn new(uring: Uring, options: &KernelOptions) -> Self {
        Self {
            policy: Policy::new(options, uring.has_zero_copy()),
            uring,
            sockets: Sockets::default(),
            dirty: Vec::new(),
            starved: Vec::new(),
            writable: Vec::new(),
            send_queue_max: options.send_queue_max,
        }
    }

    /// Queues a request of a socket. Returns the number of the request.
    pub fn push(&mut self, descriptor: Descriptor, request: Request) -> io::Result<RequestId> {
        self.uring.push(descriptor, request)
    }

    /// Submits the queued requests, and waits for a completion as `wait` says.
    pub fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.uring.enter(wait)
    }

    /// Takes the next completion from the ring.
    pub fn next(&mut self) -> Option<Completion> {
        self.uring.next()
    }

    /// Returns the number of `io_uring_enter` calls.
    pub fn enters(&self) -> u64 {
        self.uring.enters()
    }

    /// Restarts the receive of each socket for which the kernel had no buffer.
    pub fn restart_starved(&mut self) -> io::Result<()> {
        for descriptor in std::mem::take(&mut self.starved) {
            self.start_input(descriptor)?;
        }
        Ok(())
    }

    /// Returns true if the next list may report WRITABLE for a socket.
    pub fn has_writable(&self) -> bool {
        !self.writable.is_empty()
    }

    /// Adds the due WRITABLE events to the list.
    pub fn report_writable(&mut self, list: &mut ReadyList) {
        for descriptor in std::mem::take(&mut self.writable) {
            if let Some(socket) = self.sockets.get_mut(descriptor)
                && (socket.can_queue() || socket.can_queue_datagram())
                && std::mem::take(&mut socket.owes_writable)
            {
                list.add_events(descriptor, Events::WRITABLE);
            }
        }
    }

    /// Starts to accept or to receive. Does nothing if [`Socket::next_input`] returns no request,
    /// for example because the socket is paused or already has an input request.
    pub fn start_input(&mut self, descriptor: Descriptor) -> io::Result<()> {
        let socket = self.sockets.get_mut(descriptor);
        match socket.and_then(|socket| socket.next_input()) {
            Some(request) => self.start_as_input(descriptor, request),
            None => Ok(()),
        }
    }

    /// Starts `request` as the input request of a socket. The request accepts, connects or
    /// receives, or is the pause of a listener.
    pub fn start_as_input(&mut self, descriptor: Descriptor, request: Request) -> io::Result<()> {
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.outstanding += 1;
            socket.input = Some(self.uring.push(descriptor, request)?);
        }
        Ok(())
    }

    /// Adds a socket to the list of [`Self::start_sends`]. Call this function if a send, a shutdown
    /// or a close may be due.
    pub fn mark_dirty(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.sockets.get_mut(descriptor)
            && !std::mem::replace(&mut socket.is_dirty, true)
        {
            self.dirty.push(descriptor);
        }
    }

    /// Starts the sends, shutdowns and closes of all sockets in the list of [`Self::mark_dirty`].
    /// Returns true if a request was started. The kernel completes each of these requests during
    /// its submission. For a zero-copy send, the submission yields only the answer (the number of
    /// bytes sent). The notification that the kernel has read the buffers follows later.
    pub fn start_sends(&mut self) -> io::Result<bool> {
        let mut is_any = false;
        for descriptor in std::mem::take(&mut self.dirty) {
            let Some(socket) = self.sockets.get_mut(descriptor) else {
                continue;
            };
            socket.is_dirty = false;
            let mut has_sends = false;
            while let Some(request) = socket.next_send(&self.policy) {
                self.uring.push(descriptor, request)?;
                has_sends = true;
            }
            is_any |= has_sends || self.finish_output(descriptor)?;
        }
        Ok(is_any)
    }

    /// If all data is sent, performs the shutdown or close that the program has requested. If the
    /// socket has failed, performs a requested close without the data. Returns true if a request
    /// was started.
    fn finish_output(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(false);
        };
        let is_done = socket.is_queue_empty() && !socket.is_sending();
        let is_over = is_done || socket.phase == Phase::Failed;
        if socket.is_closing && is_over {
            return self.start_close(descriptor);
        }
        if socket.is_shut_down && is_done && socket.phase == Phase::Open {
            // `shutdown` fails only if the connection is over. The receive reports the end.
            let _ = socket.shut_down_now();
        }
        Ok(false)
    }

    /// Cancels the input request of a socket and its wait for room, and closes the kernel's
    /// descriptor. Returns true if a request was started.
    fn start_close(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(false);
        };
        socket.drop_queue();
        let Some(raw) = socket.take_fd() else {
            return Ok(false);
        };
        let ended = [socket.input.take(), socket.room.take()];
        let ended: Vec<_> = ended.into_iter().flatten().collect();
        socket.outstanding += 1 + ended.len() as u32;
        for request in ended {
            self.uring.push(descriptor, Request::Cancel(request))?;
        }
        self.uring.push(descriptor, Request::Close(raw))?;
        Ok(true)
    }

    /// Processes one completion, and adds its events to the list.
    pub fn complete(&mut self, done: Completion, list: &mut ReadyList) -> io::Result<()> {
        let descriptor = done.descriptor;
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(());
        };
        let is_closing = socket.is_closing;
        let Some(request) = done.ended else {
            if let Some(answer) = done.answer {
                socket.lending.on_answer(answer.held);
                return self.end_zero_copy(descriptor, answer.unsent, done.result, list);
            }
            if let Some(buffer) = done.buffer.filter(|_| !is_closing) {
                add_data(list, descriptor, buffer, done.sender);
            }
            return self.accept(descriptor, done.accepted, list);
        };
        socket.outstanding -= 1;
        match request {
            Request::Accept(_) => {
                socket.end_accept(done.result);
                self.accept(descriptor, done.accepted, list)?;
                self.start_input(descriptor)?;
            }
            Request::Pause(_) => {
                socket.end_accept(0);
                self.start_input(descriptor)?;
            }
            Request::Receive(_) | Request::ReceiveFrom(..) => {
                socket.input = None;
                if let Some(buffer) = done.buffer.filter(|_| !is_closing) {
                    add_data(list, descriptor, buffer, done.sender);
                }
                if !is_closing {
                    self.end_receive(descriptor, done.result, list)?;
                }
            }
            Request::SendZeroCopy(_, message) if done.is_notification => {
                let held = message.held();
                socket
                    .lending
                    .on_notification(&self.policy, held, done.result);
                self.report_room(descriptor);
            }
            Request::SendZeroCopy(_, message) => {
                let unsent = message.into_unsent(sent_of(done.result));
                self.end_zero_copy(descriptor, unsent, done.result, list)?;
            }
            Request::Send(_, message) => {
                let unsent = message.into_unsent(sent_of(done.result));
                self.end_send(descriptor, unsent, done.result, list)?;
            }
            Request::SendTo(_, datagram) => {
                self.end_datagram(descriptor, datagram, done.result, list)?;
            }
            Request::AwaitRoom(_) => {
                socket.room = None;
                self.mark_dirty(descriptor);
            }
            Request::Connect(..) => {
                socket.input = None;
                self.end_connect(descriptor, done.result, list)?;
            }
            Request::Cancel(_) | Request::Close(_) => {}
        }
        self.sockets.remove_if_over(descriptor);
        Ok(())
    }

    /// Adds an accepted connection to the list, and starts to receive from the peer. If the program
    /// has closed the listener, closes the connection instead.
    fn accept(
        &mut self,
        listener: Descriptor,
        accepted: Option<OwnedFd>,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        let is_open = self.sockets.get(listener).is_some_and(Socket::is_open);
        let Some(fd) = accepted.filter(|_| is_open) else {
            return Ok(());
        };
        let descriptor = self.sockets.add(fd, Phase::Open);
        list.add_accepted(descriptor, listener);
        self.start_input(descriptor)
    }

    /// Processes the last completion of a receive request: data, the end of the stream, ENOBUFS (no
    /// free buffer), ECANCELED, or another error.
    fn end_receive(
        &mut self,
        descriptor: Descriptor,
        result: i32,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        match result {
            0 => {
                if let Some(socket) = self.sockets.get_mut(descriptor) {
                    socket.is_ended = true;
                }
                list.add_events(descriptor, Events::END);
            }
            1.. => self.start_input(descriptor)?,
            _ if -result == libc::ENOBUFS => self.starved.push(descriptor),
            // `pause` has cancelled the receive. If the program has resumed the socket since, the
            // receive starts again.
            _ if -result == libc::ECANCELED => self.start_input(descriptor)?,
            _ => self.fail(descriptor, -result, list),
        }
        Ok(())
    }

    /// Processes the answer to a zero-copy send. If the kernel has refused the send, its pieces
    /// return to the queue, and the next send copies them.
    fn end_zero_copy(
        &mut self,
        descriptor: Descriptor,
        unsent: Vec<Piece>,
        result: i32,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        if result >= 0 || !is_refusal(-result) {
            return self.end_send(descriptor, unsent, result, list);
        }
        if -result == libc::EINVAL {
            self.policy.stop();
        }
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.is_sending = false;
            socket.lending.on_refusal();
            socket.put_back(unsent);
        }
        self.mark_dirty(descriptor);
        Ok(())
    }

    /// Processes the end of a stream send. The pieces in `unsent`, for which the socket had no
    /// room, return to the queue.
    fn end_send(
        &mut self,
        descriptor: Descriptor,
        unsent: Vec<Piece>,
        result: i32,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(());
        };
        socket.is_sending = false;
        if result < 0 && -result != libc::EAGAIN {
            self.fail(descriptor, -result, list);
            return Ok(());
        }
        if !unsent.is_empty() {
            socket.put_back(unsent);
            return self.await_room(descriptor);
        }
        self.continue_sends(descriptor);
        Ok(())
    }

    /// Processes the end of a `sendmsg` of one datagram. If the socket had no room, the datagram
    /// returns to the queue.
    fn end_datagram(
        &mut self,
        descriptor: Descriptor,
        datagram: Datagram,
        result: i32,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(());
        };
        let had_room = -result != libc::EAGAIN;
        if had_room && result < 0 && socket.is_open() {
            list.add_send_failed(descriptor, cause_of(-result));
        }
        if socket.end_datagram(datagram, had_room) {
            return self.await_room(descriptor);
        }
        self.continue_sends(descriptor);
        Ok(())
    }

    /// Starts a poll request that waits for room in the socket's send buffer.
    fn await_room(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.outstanding += 1;
            let request = Request::AwaitRoom(socket.raw());
            socket.room = Some(self.uring.push(descriptor, request)?);
        }
        Ok(())
    }

    /// Makes WRITABLE due as [`Self::report_room`] does, and marks the socket for its next send.
    fn continue_sends(&mut self, descriptor: Descriptor) {
        self.report_room(descriptor);
        self.mark_dirty(descriptor);
    }

    /// Makes WRITABLE due if a socket that refused a buffer has room again.
    fn report_room(&mut self, descriptor: Descriptor) {
        let queue_max = self.send_queue_max;
        if let Some(socket) = self.sockets.get_mut(descriptor)
            && socket.owes_writable
            && socket.queued() < queue_max
        {
            self.writable.push(descriptor);
        }
    }

    fn end_connect(
        &mut self,
        descriptor: Descriptor,
        result: i32,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        if result < 0 {
            self.fail(descriptor, -result, list);
            return Ok(());
        }
        self.mark_dirty(descriptor);
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(());
        };
        socket.phase = Phase::Open;
        if socket.is_closing {
            return Ok(());
        }
        list.add_events(descriptor, Events::CONNECTED);
        self.start_input(descriptor)
    }

    /// Drops the queue of a failed connection or UDP socket. If the program has closed the
    /// descriptor, continues the close. Otherwise reports CLOSED once.
    fn fail(&mut self, descriptor: Descriptor, errno: i32, list: &mut ReadyList) {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return;
        };
        socket.drop_queue();
        let before = std::mem::replace(&mut socket.phase, Phase::Failed);
        if socket.is_closing {
            self.mark_dirty(descriptor);
        } else if before != Phase::Failed {
            list.add_closed(descriptor, cause_of(errno));
        }
    }
}

/// Returns the number of bytes that a send with this result has sent.
fn sent_of(result: i32) -> usize {
    usize::try_from(result).unwrap_or(0)
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A queue may share buffers with sends that the kernel still reads. After the drop of the
        // queues, the ring has the last pieces of these buffers. The ring is dropped next, and can
        // then give the buffers up.
        self.sockets.drop_queues();
    }
}

/// Adds received data to the list. The data is a datagram if `sender` is given.
fn add_data(
    list: &mut ReadyList,
    descriptor: Descriptor,
    buffer: Buffer,
    sender: Option<SocketAddr>,
) {
    match sender {
        Some(sender) => list.add_datagram(descriptor, sender, buffer),
        None => list.add_buffer(descriptor, buffer),
    }
}
