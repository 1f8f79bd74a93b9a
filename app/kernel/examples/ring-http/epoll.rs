//! [`EpollContext`]: a back end of the ring API (`tidelane-rings`) that uses the kernel's sockets
//! with epoll. The back end is for comparison with the other back ends. Each connection with
//! received data costs at least one `read` call. Each connection with data to send costs at least
//! one `send` call.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, accept_with, bind, listen, send,
        socket_with, sockopt,
    },
};
use tidelane_rings::{
    Buffer, Cause, Context, Descriptor, Events, ListenOptions, Pool, ReadyList, SendError,
    SendRefusal, Wait,
};

/// Largest number of events that one `epoll_wait` returns.
const EVENTS_MAX: usize = 1024;
/// Largest number of buffers that wait for sending on one descriptor.
const QUEUE_MAX: usize = 256;

/// A listener, or a connection with its unsent data.
struct Socket {
    fd: OwnedFd,
    is_listener: bool,
    /// Data to send, oldest first.
    queue: VecDeque<Buffer>,
    /// True if the socket is in the list [`EpollContext::dirty`].
    is_dirty: bool,
    /// True if the socket has refused a buffer. The event WRITABLE is due once the queue has room.
    owes_writable: bool,
    /// True once the program has closed the descriptor.
    is_closing: bool,
}

/// A context (the sockets of one thread) whose sockets an epoll instance watches.
pub struct EpollContext {
    epoll: OwnedFd,
    pool: Pool,
    /// Sockets, indexed by descriptor (the number by which the program names a socket).
    sockets: Vec<Option<Socket>>,
    /// Sockets that have data to send, or that the program has closed. The next
    /// [`Context::tx_sync`] handles them.
    dirty: Vec<Descriptor>,
    /// Sockets that have refused a buffer and have room again. The next list reports WRITABLE for
    /// each.
    writable: Vec<Descriptor>,
    /// Connections whose data was not read because the pool was empty. The kernel reports the data
    /// only once (EPOLLET), so the next [`Context::rx_sync`] reads without a report.
    unread: Vec<Descriptor>,
    /// Number of system calls for data: accept, read, send, close and `epoll_wait`.
    calls: u64,
}

impl EpollContext {
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            pool: Pool::new(8192, 4096)?,
            sockets: Vec::new(),
            dirty: Vec::new(),
            writable: Vec::new(),
            unread: Vec::new(),
            calls: 0,
        })
    }

    fn add(&mut self, fd: OwnedFd, is_listener: bool) -> io::Result<Descriptor> {
        let free = self.sockets.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.sockets.push(None);
            self.sockets.len() - 1
        });
        let data = epoll::EventData::new_u64(number as u64);
        let events = if is_listener {
            epoll::EventFlags::IN
        } else {
            epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET
        };
        epoll::add(&self.epoll, &fd, data, events)?;
        self.sockets[number] = Some(Socket {
            fd,
            is_listener,
            queue: VecDeque::new(),
            is_dirty: false,
            owes_writable: false,
            is_closing: false,
        });
        Ok(Descriptor(number as u32))
    }

    fn get(&mut self, descriptor: Descriptor) -> Option<&mut Socket> {
        self.sockets.get_mut(descriptor.0 as usize)?.as_mut()
    }

    /// Sends the queued data of a socket until the kernel has no room. If the program has closed
    /// the descriptor and no queued data remains, closes the kernel's socket.
    fn write(&mut self, descriptor: Descriptor) {
        let mut calls = 0;
        let Some(socket) = self.get(descriptor) else {
            return;
        };
        socket.is_dirty = false;
        while let Some(buffer) = socket.queue.front_mut() {
            calls += 1;
            match send(&socket.fd, buffer.payload(), SendFlags::NOSIGNAL) {
                Ok(count) if count < buffer.len() => buffer.advance(count as u32),
                Ok(_) => drop(socket.queue.pop_front()),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => socket.queue.clear(),
            }
        }
        if socket.queue.len() < QUEUE_MAX && std::mem::take(&mut socket.owes_writable) {
            self.writable.push(descriptor);
        }
        let Some(socket) = self.get(descriptor) else {
            return;
        };
        if socket.is_closing && socket.queue.is_empty() {
            self.sockets[descriptor.0 as usize] = None;
            calls += 1;
        }
        self.calls += calls;
    }

    /// Accepts all connections in the accept queue of a listener.
    fn accept_all(&mut self, listener: Descriptor, list: &mut ReadyList) -> io::Result<()> {
        loop {
            self.calls += 1;
            let Some(socket) = self.get(listener) else {
                return Ok(());
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(fd) = accept_with(&socket.fd, flags) else {
                return Ok(());
            };
            let descriptor = self.add(fd, false)?;
            list.add_accepted(descriptor, listener);
        }
    }

    /// Reads the received data of a connection until the kernel has no more data or the pool has no
    /// free buffer. `may_have_ended` is true if the end of the stream may follow the data. If it
    /// is, the function reads on after a buffer that was only partly filled.
    fn read(&mut self, descriptor: Descriptor, may_have_ended: bool, list: &mut ReadyList) {
        loop {
            let Some(mut buffer) = self.pool.allocate() else {
                return self.unread.push(descriptor);
            };
            let Some(socket) = self.get(descriptor) else {
                return;
            };
            let read = rustix::io::read(socket.fd.as_fd(), buffer.bytes_mut());
            self.calls += 1;
            match read {
                Ok(0) => return list.add_events(descriptor, Events::END),
                Ok(count) => {
                    let is_all = count < buffer.bytes_mut().len() && !may_have_ended;
                    buffer.set_payload(0..count as u32);
                    list.add_buffer(descriptor, buffer);
                    if is_all {
                        return;
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => return list.add_closed(descriptor, Cause::Reset),
            }
        }
    }
}

impl Context for EpollContext {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        let family = match local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        bind(&fd, &local)?;
        listen(&fd, options.backlog.min(i32::MAX as u32) as i32)?;
        self.add(fd, true)
    }

    fn connect(&mut self, _peer: SocketAddr) -> io::Result<Descriptor> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        let refusal = match self.get(descriptor) {
            Some(socket) if socket.queue.len() >= QUEUE_MAX => {
                socket.owes_writable = true;
                SendRefusal::Full
            }
            Some(socket) if !socket.is_closing => {
                socket.queue.push_back(buffer);
                if !std::mem::replace(&mut socket.is_dirty, true) {
                    self.dirty.push(descriptor);
                }
                return Ok(());
            }
            _ => SendRefusal::NotConnected,
        };
        Err(SendError { buffer, refusal })
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.tx_sync()?;
        self.rx_sync(list, wait)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        for descriptor in std::mem::take(&mut self.dirty) {
            self.write(descriptor);
        }
        Ok(())
    }

    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        for descriptor in std::mem::take(&mut self.writable) {
            list.add_events(descriptor, Events::WRITABLE);
        }
        for descriptor in std::mem::take(&mut self.unread) {
            self.read(descriptor, true, list);
        }
        let wait = if list.is_empty() { wait } else { Wait::No };
        let timeout = match wait {
            Wait::No => Some(Timespec::default()),
            Wait::For(limit) => Some(Timespec::try_from(limit).map_err(io::Error::other)?),
            Wait::Forever => None,
        };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.calls += 1;
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            let descriptor = Descriptor(event.data.u64() as u32);
            let Some(socket) = self.get(descriptor) else {
                continue;
            };
            if socket.is_listener {
                self.accept_all(descriptor, list)?;
                continue;
            }
            if !socket.queue.is_empty() && !std::mem::replace(&mut socket.is_dirty, true) {
                self.dirty.push(descriptor);
            }
            let flags = event.flags;
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP) {
                let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP;
                self.read(descriptor, flags.intersects(ends), list);
            }
        }
        Ok(())
    }

    fn pause(&mut self, _descriptor: Descriptor) {
        unimplemented!("the server does not pause");
    }

    fn resume(&mut self, _descriptor: Descriptor) -> io::Result<()> {
        Ok(())
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor) {
            let _ = rustix::net::shutdown(&socket.fd, rustix::net::Shutdown::Write);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor) {
            socket.is_closing = true;
            if !std::mem::replace(&mut socket.is_dirty, true) {
                self.dirty.push(descriptor);
            }
        }
    }

    fn abort(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.get(descriptor) {
            socket.queue.clear();
            let _ = sockopt::set_socket_linger(&socket.fd, Some(Duration::ZERO));
        }
        self.close(descriptor);
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        let socket = self.sockets.get(descriptor.0 as usize);
        socket.is_some_and(|socket| socket.as_ref().is_some_and(|socket| !socket.is_closing))
    }

    fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        let socket = self.sockets.get(descriptor.0 as usize)?.as_ref()?;
        Some(socket.fd.as_fd())
    }

    fn system_calls(&self) -> u64 {
        self.calls
    }
}
