//! A context on the kernel's TCP.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::net::{bind, listen, sockopt};
use tidelane_rings::{
    Buffer, Context, Descriptor, Events, ListenOptions, Pool, ReadyList, SendError, SendRefusal,
    Wait,
};

use crate::{
    address::SocketAddress,
    options::KernelOptions,
    socket::{Phase, Socket, cause_of, tcp_socket},
    sockets::Sockets,
    uring_unsafe::{Completion, Message, Request, Uring},
};

/// Requests in one submission.
const ENTRIES: u32 = 4096;

/// Sockets on the kernel's TCP, for one thread.
pub struct KernelContext {
    uring: Uring,
    pool: Pool,
    options: KernelOptions,
    sockets: Sockets,
    /// Sockets with data to send.
    dirty: Vec<Descriptor>,
    /// Sockets that received nothing because the kernel had no buffer.
    starved: Vec<Descriptor>,
    /// Refused senders that have room again, for the next list.
    writable: Vec<Descriptor>,
    /// Completions with events that a [`Context::tx_sync`] has found, for the next list. Each holds
    /// a buffer of the kernel's half, an accepted socket or a request, all of which are limited.
    set_aside: VecDeque<Completion>,
}

impl KernelContext {
    /// Opens a context.
    ///
    /// # Errors
    ///
    /// `Unsupported` on kernels before Linux 6.1. `PermissionDenied` if the system forbids
    /// io_uring. `InvalidInput` for impossible options.
    pub fn open(options: &KernelOptions) -> io::Result<Self> {
        let pool = Pool::new(options.buffers, options.buffer_len)?;
        let provided = match options.buffers / 2 {
            0 => return Err(io::ErrorKind::InvalidInput.into()),
            half => 1 << half.ilog2(),
        };
        let uring = Uring::new(ENTRIES, &pool, provided)?;
        if options.busy_poll_us > 0 {
            uring.set_busy_poll(options.busy_poll_us)?;
        }
        Ok(Self {
            uring,
            pool,
            options: *options,
            sockets: Sockets::default(),
            dirty: Vec::new(),
            starved: Vec::new(),
            writable: Vec::new(),
            set_aside: VecDeque::new(),
        })
    }

    /// Starts the request that accepts connections or receives data, if the socket is due for it.
    fn start_input(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(socket) = self.sockets.get_mut(descriptor)
            && let Some(request) = socket.next_input()
        {
            socket.outstanding += 1;
            socket.input = Some(self.uring.push(descriptor, request)?);
        }
        Ok(())
    }

    /// Puts a socket on the list of sockets with data to send.
    fn mark_dirty(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.sockets.get_mut(descriptor)
            && !std::mem::replace(&mut socket.is_dirty, true)
        {
            self.dirty.push(descriptor);
        }
    }

    /// Sends all data for which the sockets have room, and continues the shutdowns and closes that
    /// follow the data. Completions with events go to `list`; without a list they are set aside.
    fn transmit(&mut self, mut list: Option<&mut ReadyList>) -> io::Result<()> {
        // Each round sends data of a socket or ends a socket, so that the rounds are limited. A
        // request that completes at once must not be submitted by a call that waits: the call would
        // not end when a socket has no room or when a close has to follow.
        while self.start_sends()? {
            self.uring.enter(Wait::No)?;
            while let Some(done) = self.uring.next() {
                match list.as_deref_mut() {
                    Some(list) => self.complete(done, list)?,
                    None if done.has_event() => self.set_aside.push_back(done),
                    None => self.complete(done, &mut ReadyList::new())?,
                }
            }
        }
        Ok(())
    }

    /// Replaces the contents of the list by the events that were set aside.
    fn start_list(&mut self, list: &mut ReadyList) -> io::Result<()> {
        list.clear();
        while let Some(done) = self.set_aside.pop_front() {
            self.complete(done, list)?;
        }
        Ok(())
    }

    /// Adds events to the list, and waits for the first event if the list has none.
    fn receive(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        if self.pool.free_count() > 0 {
            for descriptor in std::mem::take(&mut self.starved) {
                self.start_input(descriptor)?;
            }
        }
        // A submission just now gave a list with events, so another call would find little.
        if list.is_empty() {
            let is_writable = !self.writable.is_empty();
            self.uring
                .enter(if is_writable { Wait::No } else { wait })?;
        }
        while let Some(done) = self.uring.next() {
            self.complete(done, list)?;
        }
        for descriptor in std::mem::take(&mut self.writable) {
            if let Some(socket) = self.sockets.get_mut(descriptor)
                && socket.can_queue()
                && std::mem::take(&mut socket.owes_writable)
            {
                list.add_events(descriptor, Events::WRITABLE);
            }
        }
        Ok(())
    }

    /// Starts the sends of all sockets with data, and continues their closes. Returns true if it
    /// has started a request, all of which complete when they are submitted.
    fn start_sends(&mut self) -> io::Result<bool> {
        let mut is_any = false;
        for descriptor in std::mem::take(&mut self.dirty) {
            let Some(socket) = self.sockets.get_mut(descriptor) else {
                continue;
            };
            socket.is_dirty = false;
            let raw = socket.raw();
            match socket.take_message() {
                Some(buffers) => {
                    socket.is_sending = true;
                    socket.outstanding += 1;
                    let request = Request::Send(raw, Message::new(buffers));
                    self.uring.push(descriptor, request)?;
                    is_any = true;
                }
                None => is_any |= self.finish_output(descriptor)?,
            }
        }
        Ok(is_any)
    }

    /// Closes the sending direction, or the descriptor, if the program has asked for it and all
    /// data is sent. Returns true if it has started a request.
    fn finish_output(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(false);
        };
        let is_done = socket.queued() == 0 && !socket.is_sending;
        let is_over = is_done || socket.phase == Phase::Failed;
        if socket.is_closing && is_over {
            return self.start_close(descriptor);
        }
        if socket.is_shut_down && is_done && socket.phase == Phase::Open {
            // A failure means that the connection is over, which the receive reports.
            let _ = socket.shut_down_now();
        }
        Ok(false)
    }

    /// Ends the requests of a socket, and closes its descriptor. Returns true if it has started a
    /// request.
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

    /// Processes one completion.
    fn complete(&mut self, done: Completion, list: &mut ReadyList) -> io::Result<()> {
        let descriptor = done.descriptor;
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(());
        };
        let is_closing = socket.is_closing;
        let Some(request) = done.ended else {
            if let Some(buffer) = done.buffer.filter(|_| !is_closing) {
                list.add_buffer(descriptor, buffer);
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
            Request::Receive(_) => {
                socket.input = None;
                if !is_closing {
                    self.end_receive(descriptor, (done.result, done.buffer), list)?;
                }
            }
            Request::Send(_, message) => {
                self.end_send(descriptor, message.into_buffers(), done.result, list)?;
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

    /// Adds an accepted connection, if there is one, and starts to receive.
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

    /// Processes the end of a receive: the end of the data, an error, or a lack of buffers.
    fn end_receive(
        &mut self,
        descriptor: Descriptor,
        (result, buffer): (i32, Option<Buffer>),
        list: &mut ReadyList,
    ) -> io::Result<()> {
        match result {
            0 => {
                if let Some(socket) = self.sockets.get_mut(descriptor) {
                    socket.is_ended = true;
                }
                list.add_events(descriptor, Events::END);
            }
            1.. => {
                if let Some(buffer) = buffer {
                    list.add_buffer(descriptor, buffer);
                }
                self.start_input(descriptor)?;
            }
            _ if -result == libc::ENOBUFS => self.starved.push(descriptor),
            // The program has paused the socket, and perhaps resumed it since.
            _ if -result == libc::ECANCELED => self.start_input(descriptor)?,
            _ => self.fail(descriptor, -result, list),
        }
        Ok(())
    }

    /// Processes the end of a send. Data for which the socket had no room is kept.
    fn end_send(
        &mut self,
        descriptor: Descriptor,
        buffers: Vec<Buffer>,
        result: i32,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        let Some(socket) = self.sockets.get_mut(descriptor) else {
            return Ok(());
        };
        socket.is_sending = false;
        let total: usize = buffers.iter().map(Buffer::len).sum();
        let sent = match result {
            0.. => result as usize,
            _ if -result == libc::EAGAIN => 0,
            _ => {
                self.fail(descriptor, -result, list);
                return Ok(());
            }
        };
        if sent < total {
            socket.put_back(buffers, sent);
            socket.outstanding += 1;
            let request = Request::AwaitRoom(socket.raw());
            let id = self.uring.push(descriptor, request)?;
            if let Some(socket) = self.sockets.get_mut(descriptor) {
                socket.room = Some(id);
            }
            return Ok(());
        }
        if socket.owes_writable && socket.queued() < self.options.send_queue_max {
            self.writable.push(descriptor);
        }
        self.mark_dirty(descriptor);
        Ok(())
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

    /// Reports the end of a connection, once.
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

impl Context for KernelContext {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        let fd = tcp_socket(local)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        bind(&fd, &local)?;
        listen(&fd, options.backlog.min(i32::MAX as u32) as i32)?;
        let descriptor = self.sockets.add(fd, Phase::Listening);
        self.start_input(descriptor)?;
        Ok(descriptor)
    }

    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let fd = tcp_socket(peer)?;
        let descriptor = self.sockets.add(fd, Phase::Connecting);
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.outstanding += 1;
            let request = Request::Connect(socket.raw(), Box::new(SocketAddress::from(peer)));
            socket.input = Some(self.uring.push(descriptor, request)?);
        }
        Ok(descriptor)
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        let queue_max = self.options.send_queue_max;
        let refusal = match self.sockets.get_mut(descriptor) {
            Some(socket) if !socket.can_queue() => SendRefusal::NotConnected,
            Some(socket) if socket.queued() >= queue_max => {
                socket.owes_writable = true;
                SendRefusal::Full
            }
            Some(socket) => {
                if !buffer.is_empty() {
                    socket.push(buffer);
                    self.mark_dirty(descriptor);
                }
                return Ok(());
            }
            None => SendRefusal::NotConnected,
        };
        Err(SendError { buffer, refusal })
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.start_list(list)?;
        self.transmit(Some(list))?;
        self.receive(list, wait)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        self.transmit(None)
    }

    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.start_list(list)?;
        self.receive(list, wait)
    }

    fn pause(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.sockets.get_mut(descriptor)
            && !std::mem::replace(&mut socket.is_paused, true)
            && matches!(socket.phase, Phase::Open | Phase::Listening)
            && let Some(input) = socket.input
        {
            socket.outstanding += 1;
            // A failure is one of the ring, which the next sync reports.
            let _ = self.uring.push(descriptor, Request::Cancel(input));
        }
    }

    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.is_paused = false;
        }
        // A request that is being cancelled starts again when it has ended.
        self.start_input(descriptor)
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.is_shut_down = true;
            self.mark_dirty(descriptor);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.is_closing = true;
            self.mark_dirty(descriptor);
        }
    }

    fn abort(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.sockets.get_mut(descriptor) {
            socket.drop_queue();
            // A failure means that the connection is over.
            let _ = socket.reset_on_close();
            socket.is_closing = true;
            self.mark_dirty(descriptor);
        }
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        self.sockets.get(descriptor).is_some_and(Socket::is_open)
    }

    fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        let socket = self.sockets.get(descriptor)?;
        socket.fd().filter(|_| socket.is_open())
    }

    fn system_calls(&self) -> u64 {
        self.uring.enters()
    }
}
