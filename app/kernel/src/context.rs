//! A context on the kernel's TCP.

use std::{
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tidelane_rings::{
    Buffer, Cause, Context, Descriptor, Events, ListenOptions, Pool, ReadyList, SendError,
    SendRefusal, Wait,
};

use crate::{
    address::SocketAddress,
    socket::{Phase, Socket},
    uring_unsafe::{Completion, Message, Request, Uring},
};

/// Requests in one submission.
const ENTRIES: u32 = 4096;

/// Parameters of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Number of buffers for received data and for data to send, at most 32,768. Half of them, a
    /// power of two, are for received data.
    pub buffers: u32,
    /// Length of each buffer in bytes.
    pub buffer_len: u32,
    /// Limit of buffers that wait for sending on one descriptor.
    pub send_queue_max: usize,
    /// Microseconds for which a wait polls the NAPI instances of the interfaces. Zero does not
    /// poll.
    pub busy_poll_us: u32,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            buffers: 8192,
            buffer_len: 4096,
            send_queue_max: 256,
            busy_poll_us: 0,
        }
    }
}

/// Sockets on the kernel's TCP, for one thread.
pub struct KernelContext {
    uring: Uring,
    pool: Pool,
    options: KernelOptions,
    sockets: Vec<Option<Socket>>,
    /// Numbers without a socket.
    free: Vec<u32>,
    /// Sockets with data to send.
    dirty: Vec<Descriptor>,
    /// Sockets that received nothing because the kernel had no buffer.
    starved: Vec<Descriptor>,
    /// Refused senders that have room again, for the next list.
    writable: Vec<Descriptor>,
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
            sockets: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            starved: Vec::new(),
            writable: Vec::new(),
        })
    }

    /// Returns the kernel's socket of a descriptor, for socket calls beside the context: options,
    /// addresses and `TCP_INFO`. Data that the program reads or writes on the socket itself passes
    /// the context's queues by.
    pub fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        let socket = self.sockets.get(descriptor.0 as usize)?.as_ref()?;
        socket.fd()
    }

    /// Returns the number of system calls that [`Context::sync`] has made for data.
    pub fn system_calls(&self) -> u64 {
        self.uring.enters()
    }

    fn add(&mut self, fd: OwnedFd, phase: Phase) -> Descriptor {
        let number = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(None);
            self.sockets.len() as u32 - 1
        });
        self.sockets[number as usize] = Some(Socket::new(fd, phase));
        Descriptor(number)
    }

    fn get(&mut self, descriptor: Descriptor) -> Option<&mut Socket> {
        self.sockets.get_mut(descriptor.0 as usize)?.as_mut()
    }

    /// Starts a request that accepts connections or receives data.
    fn start_input(&mut self, descriptor: Descriptor) -> io::Result<()> {
        let Some(socket) = self.get(descriptor) else {
            return Ok(());
        };
        let request = match socket.phase {
            Phase::Listening => Request::Accept(socket.raw()),
            Phase::Open => Request::Receive(socket.raw()),
            Phase::Connecting | Phase::Failed => return Ok(()),
        };
        socket.outstanding += 1;
        let id = self.uring.push(descriptor, request)?;
        if let Some(socket) = self.get(descriptor) {
            socket.input = Some(id);
        }
        Ok(())
    }

    /// Puts a socket on the list of sockets with data to send.
    fn mark_dirty(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor)
            && !std::mem::replace(&mut socket.is_dirty, true)
        {
            self.dirty.push(descriptor);
        }
    }

    /// Starts the sends of all sockets with data, and continues their closes.
    fn start_sends(&mut self) -> io::Result<()> {
        for descriptor in std::mem::take(&mut self.dirty) {
            let Some(socket) = self.get(descriptor) else {
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
                }
                None => self.finish_output(descriptor)?,
            }
        }
        Ok(())
    }

    /// Closes the sending direction, or the descriptor, if the program has asked for it and all
    /// data is sent.
    fn finish_output(&mut self, descriptor: Descriptor) -> io::Result<()> {
        let Some(socket) = self.get(descriptor) else {
            return Ok(());
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
        Ok(())
    }

    /// Ends the requests of a socket, and closes its descriptor.
    fn start_close(&mut self, descriptor: Descriptor) -> io::Result<()> {
        let Some(socket) = self.get(descriptor) else {
            return Ok(());
        };
        socket.drop_queue();
        let Some(raw) = socket.take_fd() else {
            return Ok(());
        };
        let ended = [socket.input.take(), socket.room.take()];
        let ended: Vec<_> = ended.into_iter().flatten().collect();
        socket.outstanding += 1 + ended.len() as u32;
        for request in ended {
            self.uring.push(descriptor, Request::Cancel(request))?;
        }
        self.uring.push(descriptor, Request::Close(raw))?;
        Ok(())
    }

    /// Processes one completion.
    fn complete(&mut self, done: Completion, list: &mut ReadyList) -> io::Result<()> {
        let descriptor = done.descriptor;
        let Some(socket) = self.get(descriptor) else {
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
                socket.input = None;
                self.accept(descriptor, done.accepted, list)?;
                if !is_closing {
                    self.start_input(descriptor)?;
                }
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
            Request::Connect(..) => self.end_connect(descriptor, done.result, list)?,
            Request::Cancel(_) | Request::Close(_) => {}
        }
        self.free_if_closed(descriptor);
        Ok(())
    }

    /// Frees the number of a closed socket without requests.
    fn free_if_closed(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor)
            && socket.is_closing
            && socket.outstanding == 0
            && socket.fd().is_none()
        {
            self.sockets[descriptor.0 as usize] = None;
            self.free.push(descriptor.0);
        }
    }

    /// Adds an accepted connection, if there is one, and starts to receive.
    fn accept(
        &mut self,
        listener: Descriptor,
        accepted: Option<OwnedFd>,
        list: &mut ReadyList,
    ) -> io::Result<()> {
        let is_open = self.get(listener).is_some_and(|socket| !socket.is_closing);
        let Some(fd) = accepted.filter(|_| is_open) else {
            return Ok(());
        };
        let descriptor = self.add(fd, Phase::Open);
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
            0 => list.add_events(descriptor, Events::END),
            1.. => {
                if let Some(buffer) = buffer {
                    list.add_buffer(descriptor, buffer);
                }
                self.start_input(descriptor)?;
            }
            _ if -result == libc::ENOBUFS => self.starved.push(descriptor),
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
        let Some(socket) = self.get(descriptor) else {
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
            if let Some(socket) = self.get(descriptor) {
                socket.room = Some(id);
            }
            return Ok(());
        }
        let has_room = socket.queued() < self.options.send_queue_max;
        if let Some(socket) = self.get(descriptor)
            && has_room
            && std::mem::take(&mut socket.owes_writable)
        {
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
        let Some(socket) = self.get(descriptor) else {
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
        let Some(socket) = self.get(descriptor) else {
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

/// Returns the cause for an errno of a connection.
fn cause_of(errno: i32) -> Cause {
    match errno {
        libc::ECONNRESET | libc::EPIPE => Cause::Reset,
        libc::ECONNREFUSED => Cause::Refused,
        libc::ETIMEDOUT => Cause::TimedOut,
        libc::ENETUNREACH | libc::EHOSTUNREACH => Cause::Unreachable,
        _ => Cause::Other,
    }
}

/// Opens a TCP socket for an address.
fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(family, SocketType::STREAM, flags, None)?;
    // Messages leave at once. Accepted connections inherit the option.
    sockopt::set_tcp_nodelay(&fd, true)?;
    Ok(fd)
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
        let descriptor = self.add(fd, Phase::Listening);
        self.start_input(descriptor)?;
        Ok(descriptor)
    }

    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let fd = tcp_socket(peer)?;
        let descriptor = self.add(fd, Phase::Connecting);
        if let Some(socket) = self.get(descriptor) {
            socket.outstanding += 1;
            let request = Request::Connect(socket.raw(), Box::new(SocketAddress::from(peer)));
            self.uring.push(descriptor, request)?;
        }
        Ok(descriptor)
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        let queue_max = self.options.send_queue_max;
        let refusal = match self.get(descriptor) {
            Some(socket) if !can_queue(socket) => SendRefusal::NotConnected,
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
        list.clear();
        self.start_sends()?;
        if self.pool.free_count() > 0 {
            for descriptor in std::mem::take(&mut self.starved) {
                if self.get(descriptor).is_some_and(|s| s.input.is_none()) {
                    self.start_input(descriptor)?;
                }
            }
        }
        let wait = if self.writable.is_empty() {
            wait
        } else {
            Wait::No
        };
        self.uring.enter(wait)?;
        while let Some(done) = self.uring.next() {
            self.complete(done, list)?;
        }
        for descriptor in std::mem::take(&mut self.writable) {
            if self.get(descriptor).is_some_and(|s| can_queue(s)) {
                list.add_events(descriptor, Events::WRITABLE);
            }
        }
        Ok(())
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor) {
            socket.is_shut_down = true;
            self.mark_dirty(descriptor);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor) {
            socket.is_closing = true;
            self.mark_dirty(descriptor);
        }
    }
}

/// Returns true if the program may send on the socket, now or once it is connected.
fn can_queue(socket: &Socket) -> bool {
    let is_connection = matches!(socket.phase, Phase::Open | Phase::Connecting);
    is_connection && !socket.is_shut_down && !socket.is_closing
}
