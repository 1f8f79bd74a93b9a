//! [`ServiceContext`]: the sockets of one thread, with the ring API (`tidelane-rings`). The
//! Tidelane service runs TCP, and shares rings and stream buffers with the program.

use std::{io, net::SocketAddr, os::fd::BorrowedFd, time::Duration};

use tidelane_client::{ClientEvent, Context as Rings, ListenerHandle, Program};
use tidelane_rings::{
    Buffer, Context, Descriptor, ListenOptions, Pool, ReadyList, SendError, Wait,
};

use crate::{
    connections::Connections,
    datagrams::Datagrams,
    error::ServiceError,
    listener::Listener,
    options::ServiceOptions,
    requests::{Request, Requests},
    sleeper::{Sleeper, Woken, now},
    sockets::Socket,
};

/// One in this number of `sync` and `rx_sync` calls without a wait and without an event checks that
/// the service still runs.
const IDLE_CALLS_MAX: u32 = 256;
/// A sleep begins with a search for idle send buffers, unless an earlier sleep has begun with a
/// search less than this time ago.
const TRIM_TIME: Duration = Duration::from_millis(100);
/// Number of `sync` and `rx_sync` calls after which connections that lack memory for a send buffer
/// try again. These connections also try again after each sleep.
const MEMORY_CALLS: u32 = 64;
/// Limit of a sleep while one of three conditions holds: a connection lacks memory for a send
/// buffer, a UDP socket has work that no event announces, or a request waits for room in the
/// control ring.
const MEMORY_WAIT: Duration = Duration::from_millis(10);

/// TCP sockets on the service, and UDP sockets of the kernel, for one thread.
#[derive(Debug)]
pub struct ServiceContext {
    program: Program,
    rings: Rings,
    pool: Pool,
    connections: Connections,
    datagrams: Datagrams,
    requests: Requests,
    sleeper: Sleeper,
    /// Reused list for the events of the service's rings, empty between calls.
    events: Vec<ClientEvent>,
    /// Number of calls without a wait and without an event since the most recent event or check of
    /// the service.
    idle_calls: u32,
    /// Number of `sync` and `rx_sync` calls, modulo 2^32.
    calls: u32,
    /// CLOCK_MONOTONIC time before which a sleep does not search for idle send buffers.
    trim_at: Duration,
    /// True after the first call of [`Self::end`], which reports the end of the service.
    is_over: bool,
}

impl ServiceContext {
    /// Registers the program with the service, and opens a context. A program with several threads
    /// registers once by [`ServiceProgram`](crate::ServiceProgram).
    ///
    /// # Errors
    ///
    /// A [`ServiceError`] inside the [`io::Error`] gives the reason, and usually a remedy.
    /// `InvalidInput` for impossible options. Otherwise, the errors of `mmap` and of epoll.
    pub fn open(options: &ServiceOptions) -> io::Result<Self> {
        let program = Program::register(&options.socket, &options.name);
        Self::of_program(program.map_err(ServiceError::from)?, options)
    }

    /// Opens a context of a registered program.
    pub(crate) fn of_program(program: Program, options: &ServiceOptions) -> io::Result<Self> {
        let rings = program.new_context();
        let rings = rings.map_err(|refusal| ServiceError::Refused {
            listener: None,
            refusal,
        })?;
        Ok(Self {
            pool: Pool::new(options.buffers, options.buffer_len)?,
            connections: Connections::new(program.clone(), options.clone()),
            datagrams: Datagrams::default(),
            requests: Requests::default(),
            sleeper: Sleeper::new(&program, &rings, options.spin)?,
            events: Vec::new(),
            idle_calls: 0,
            calls: 0,
            trim_at: Duration::ZERO,
            is_over: false,
            program,
            rings,
        })
    }

    /// Returns the number of payload copies. A send on a connection copies the payload in three
    /// cases: if the buffer comes from the pool or from another connection, if the buffer holds
    /// received data, or if the buffers are not sent in the order of their allocation.
    pub fn copies(&self) -> u64 {
        self.connections.copies()
    }

    /// Adds a listener of a service in this process, for simulations and tests.
    pub fn join_in_memory(&mut self, listener: ListenerHandle) -> Descriptor {
        let descriptor = self.connections.sockets.next();
        let socket = Socket::Listener(Listener::in_memory(listener));
        self.connections.sockets.put(descriptor, socket);
        let cookie = self.connections.sockets.cookie(descriptor);
        self.requests.push(Request::Join(listener, cookie));
        descriptor
    }

    /// Publishes queued data (shows the data to the service), performs shutdowns and closes, and
    /// sends queued datagrams.
    fn transmit(&mut self) {
        self.connections.collect(&mut self.rings);
        self.connections.transmit(&mut self.rings);
        self.transmit_datagrams();
    }

    fn transmit_datagrams(&mut self) {
        let calls = self.datagrams.transmit();
        self.sleeper.count(calls);
    }

    /// Passes requests to the service, and adds pending events and received datagrams to the list.
    fn poll(&mut self, list: &mut ReadyList) {
        self.requests.queue(&mut self.rings);
        self.rings.flush();
        let mut events = std::mem::take(&mut self.events);
        self.rings.poll(&mut |event| events.push(event));
        for event in events.drain(..) {
            self.connections.handle(&mut self.rings, event, list);
        }
        self.events = events;
        self.connections.report(list);
        let queue_max = self.connections.send_queue_max();
        let calls = self.datagrams.receive(&self.pool, queue_max, list);
        self.sleeper.count(calls);
        if self.rings.has_queued() {
            self.rings.flush();
        }
    }

    /// Adds events to the list. If no event is pending, waits for the first event as long as `wait`
    /// permits. `transmits` is true if the call may also send data.
    fn receive(&mut self, list: &mut ReadyList, wait: Wait, transmits: bool) -> io::Result<()> {
        let deadline = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::For(limit) => now().checked_add(limit),
            Wait::Forever => None,
        };
        self.calls = self.calls.wrapping_add(1);
        let sleeps = wait != Wait::No && self.sleeper.can_sleep();
        if self.calls.is_multiple_of(MEMORY_CALLS) {
            self.connections.retry_starved(&mut self.rings);
        }
        if !self.datagrams.is_empty() {
            let woken = self.sleeper.poll_now()?;
            self.handle_woken(woken, list)?;
        }
        loop {
            self.poll(list);
            if !list.is_empty() {
                self.idle_calls = 0;
                return Ok(());
            }
            if self.connections.has_dirty() || self.datagrams.can_transmit() {
                match transmits {
                    true => {
                        self.connections.transmit(&mut self.rings);
                        self.transmit_datagrams();
                        continue;
                    }
                    // Return to the program, whose next `tx_sync` sends.
                    false if wait != Wait::No => return Ok(()),
                    false => {}
                }
            }
            if self.program.service_known_gone() {
                return self.end(list);
            }
            if !sleeps {
                return self.check_service_periodically(list);
            }
            if deadline.is_some_and(|deadline| now() >= deadline) {
                return Ok(());
            }
            self.await_event(list, deadline)?;
        }
    }

    /// Waits for an event of the rings or of the kernel's sockets, at most until `deadline`.
    fn await_event(&mut self, list: &mut ReadyList, deadline: Option<Duration>) -> io::Result<()> {
        if self.sleeper.spin(&self.rings, deadline) {
            return Ok(());
        }
        let now = now();
        if now >= self.trim_at {
            self.trim_at = now + TRIM_TIME;
            self.connections.trim(&mut self.rings);
        }
        let mut until = deadline;
        let lacks_memory = self.connections.has_starved() || self.datagrams.has_waiting();
        if lacks_memory || self.requests.has_waiting() {
            let soon = now + MEMORY_WAIT;
            until = Some(until.map_or(soon, |until| until.min(soon)));
        }
        let woken = self.sleeper.sleep(&mut self.rings, until)?;
        self.connections.retry_starved(&mut self.rings);
        self.handle_woken(woken, list)
    }

    /// Frees idle send buffers and checks whether the service has ended, once in [`IDLE_CALLS_MAX`]
    /// calls without an event.
    fn check_service_periodically(&mut self, list: &mut ReadyList) -> io::Result<()> {
        self.idle_calls += 1;
        if self.idle_calls < IDLE_CALLS_MAX {
            return Ok(());
        }
        self.idle_calls = 0;
        self.connections.trim(&mut self.rings);
        let woken = self.sleeper.poll_now()?;
        self.handle_woken(woken, list)
    }

    /// Processes the events of the kernel's sockets and the end of the service.
    fn handle_woken(&mut self, woken: Woken, list: &mut ReadyList) -> io::Result<()> {
        for key in woken.sockets {
            let descriptor = Descriptor(key as u32);
            self.datagrams.on_ready(descriptor);
            if let Some(listener) = self.connections.sockets.listener(descriptor) {
                self.sleeper.count(listener.refuse_kernel_connections());
            }
        }
        if woken.has_hung_up && !self.program.is_service_alive() {
            return self.end(list);
        }
        Ok(())
    }

    /// The first call adds the ends of the connections to the list. If there is nothing to add, the
    /// first call returns the error [`ServiceError::Gone`], as every later call does.
    fn end(&mut self, list: &mut ReadyList) -> io::Result<()> {
        let is_first = !std::mem::replace(&mut self.is_over, true);
        if is_first && self.connections.end_all(list) {
            return Ok(());
        }
        Err(ServiceError::Gone.into())
    }

    /// Closes a listener. Returns false if the descriptor is not a listener.
    fn close_listener(&mut self, descriptor: Descriptor) -> bool {
        let Some(listener) = self.connections.take_listener(descriptor) else {
            return false;
        };
        self.requests.push(Request::Leave(listener.handle));
        self.requests.queue(&mut self.rings);
        self.rings.flush();
        self.program.unlisten(listener.handle);
        true
    }

    /// Closes a socket of any kind. If `drops_queue` is true, resets a connection and drops queued
    /// data.
    fn end_socket(&mut self, descriptor: Descriptor, drops_queue: bool) {
        if self.close_listener(descriptor) {
            return;
        }
        if let Some(Socket::Datagram) = self.connections.sockets.get(descriptor) {
            self.connections.sockets.remove(descriptor);
            return self.datagrams.close(descriptor, drops_queue);
        }
        self.connections.close(descriptor, drops_queue);
    }
}

impl Context for ServiceContext {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn allocate(&mut self, descriptor: Descriptor) -> Option<Buffer> {
        let (buffer, of_pool) = self.connections.allocate(descriptor);
        buffer.or_else(|| self.pool.allocate().filter(|_| of_pool))
    }

    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> io::Result<Descriptor> {
        let descriptor = self.connections.sockets.next();
        let cookie = self.connections.sockets.cookie(descriptor);
        let opened = Listener::open(&self.program, local, options.backlog, cookie);
        let watched = opened.and_then(|listener| {
            if let Some(socket) = listener.socket() {
                self.sleeper.watch(socket, descriptor.0)?;
            }
            Ok(listener)
        });
        match watched {
            Ok(listener) => {
                self.requests.push(Request::Join(listener.handle, cookie));
                let socket = Socket::Listener(listener);
                self.connections.sockets.put(descriptor, socket);
                Ok(descriptor)
            }
            Err(error) => {
                self.connections.sockets.give_back(descriptor);
                Err(error)
            }
        }
    }

    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let (descriptor, request) = self.connections.open(peer)?;
        self.requests.push(Request::Connect(request));
        Ok(descriptor)
    }

    /// Opens a UDP socket of the kernel.
    fn bind(&mut self, local: SocketAddr) -> io::Result<Descriptor> {
        if !self.sleeper.can_sleep() {
            let message = "a context of a simulation has no UDP";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let descriptor = self.connections.sockets.next();
        let bound = self.datagrams.bind(descriptor, local);
        let watched = bound.and_then(|()| match self.datagrams.socket(descriptor) {
            Some(socket) => self.sleeper.watch_datagrams(socket, descriptor.0),
            None => Ok(()),
        });
        match watched {
            Ok(()) => {
                self.connections.sockets.put(descriptor, Socket::Datagram);
                Ok(descriptor)
            }
            Err(error) => {
                self.datagrams.close(descriptor, true);
                self.connections.sockets.give_back(descriptor);
                Err(error)
            }
        }
    }

    fn send_to(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
    ) -> Result<(), SendError> {
        let queue_max = self.connections.send_queue_max();
        self.datagrams.send_to(descriptor, buffer, peer, queue_max)
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        self.connections.send(descriptor, buffer)
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        self.transmit();
        self.receive(list, wait, true)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        self.transmit();
        self.requests.queue(&mut self.rings);
        self.rings.flush();
        Ok(())
    }

    fn rx_sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        list.clear();
        self.connections.collect(&mut self.rings);
        self.receive(list, wait, false)
    }

    fn pause(&mut self, descriptor: Descriptor) {
        if let Some(connection) = self.connections.sockets.connection(descriptor) {
            connection.set_paused(true);
        } else if let Some(listener) = self.connections.sockets.listener(descriptor)
            && !std::mem::replace(&mut listener.is_paused, true)
        {
            self.requests.push(Request::Leave(listener.handle));
        }
        self.datagrams.set_paused(descriptor, true);
    }

    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(connection) = self.connections.sockets.connection(descriptor) {
            connection.set_paused(false);
            self.connections.mark(descriptor);
        } else if let Some(listener) = self.connections.sockets.listener(descriptor)
            && std::mem::replace(&mut listener.is_paused, false)
        {
            let handle = listener.handle;
            let cookie = self.connections.sockets.cookie(descriptor);
            self.requests.push(Request::Join(handle, cookie));
        }
        self.datagrams.set_paused(descriptor, false);
        Ok(())
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(connection) = self.connections.sockets.connection(descriptor) {
            connection.shut_down();
            self.connections.mark_dirty(descriptor);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        self.end_socket(descriptor, false);
    }

    fn abort(&mut self, descriptor: Descriptor) {
        self.end_socket(descriptor, true);
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        match self.connections.sockets.get(descriptor) {
            Some(Socket::Connection(connection)) => connection.is_open(),
            Some(Socket::Listener(_) | Socket::Datagram) => true,
            None => false,
        }
    }

    fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        match self.connections.sockets.get(descriptor) {
            Some(Socket::Listener(listener)) => listener.socket(),
            Some(Socket::Datagram) => self.datagrams.socket(descriptor),
            _ => None,
        }
    }

    fn system_calls(&self) -> u64 {
        self.sleeper.calls() + self.rings.doorbells_rung()
    }
}

impl Drop for ServiceContext {
    fn drop(&mut self) {
        // The service still sends the published data. Connections that cannot be closed here end
        // with the program's registration.
        for descriptor in self.connections.sockets.connections() {
            self.connections.close(descriptor, false);
        }
        self.connections.transmit(&mut self.rings);
        self.datagrams.transmit();
        self.rings.flush();
    }
}
