//! [`KernelContext`]: the TCP and UDP sockets of one thread. The program uses the sockets through
//! the ring API (`tidelane-rings`), and the context serves the API with the kernel's TCP and UDP
//! through io_uring.

use std::{collections::VecDeque, io, net::SocketAddr, os::fd::BorrowedFd};

use rustix::net::{bind, listen, sockopt};
use tidelane_rings::{
    Buffer, Context, Descriptor, ListenOptions, Pool, ReadyList, SendError, SendRefusal, Wait,
};

use crate::{
    address::SocketAddress,
    driver::Driver,
    options::KernelOptions,
    request_unsafe::Request,
    socket::{Phase, Socket, tcp_socket, udp_socket},
    uring_unsafe::{Completion, Uring},
};

/// Capacity of the submission queue in entries. If the queue is full, the next request costs an
/// additional system call, which empties the queue.
const ENTRIES: u32 = 4096;
/// Length in bytes of the longest payload of a UDP datagram over IPv4. The context refuses a longer
/// payload, also over IPv6.
const DATAGRAM_MAX: usize = 65_507;

/// TCP and UDP sockets of the kernel, for one thread.
pub struct KernelContext {
    /// Completions of requests that [`Context::tx_sync`] has found and that may cause events. The
    /// next list reports the events. Each completion holds a received buffer, an accepted socket or
    /// a request. The numbers of buffers, sockets and requests are limited, so the queue is
    /// limited. The completions are dropped before the driver, because the completions may share
    /// buffers with sends that the kernel still reads.
    set_aside: VecDeque<Completion>,
    driver: Driver,
    pool: Pool,
    options: KernelOptions,
}

impl KernelContext {
    /// Opens a context without sockets.
    ///
    /// # Errors
    ///
    /// `Unsupported` on kernels before Linux 6.1. `PermissionDenied` if the system forbids
    /// io_uring. `InvalidInput` for impossible options. An error of the kernel if `busy_poll_us` is
    /// not zero and the kernel lacks this option (before Linux 6.9).
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
            driver: Driver::new(uring, options),
            pool,
            options: *options,
            set_aside: VecDeque::new(),
        })
    }

    /// Sends all queued data for which the sockets have room, then performs the shutdowns and
    /// closes that wait for this data. Adds the events to `list`. If `list` is `None`, the
    /// completions that may cause events go to `set_aside`.
    fn transmit(&mut self, mut list: Option<&mut ReadyList>) -> io::Result<()> {
        // In each round, a socket sends data, fails, closes or begins to wait for room, so the
        // number of rounds is limited. If the kernel refuses a zero-copy send, a further round
        // sends a copy. `enter` does not wait here, because the end of a send may need a further
        // request before the caller waits: a poll for room, or the close that follows the data.
        while self.driver.start_sends()? {
            self.driver.enter(Wait::No)?;
            while let Some(done) = self.driver.next() {
                match list.as_deref_mut() {
                    Some(list) => self.driver.complete(done, list)?,
                    None if done.has_event() => self.set_aside.push_back(done),
                    None => self.driver.complete(done, &mut ReadyList::new())?,
                }
            }
        }
        Ok(())
    }

    /// Replaces the contents of the list by the events of the completions in `set_aside`.
    fn start_list(&mut self, list: &mut ReadyList) -> io::Result<()> {
        list.clear();
        while let Some(done) = self.set_aside.pop_front() {
            self.driver.complete(done, list)?;
        }
        Ok(())
    }

    /// Adds the events of the present completions to the list. If the list has no event at the
    /// start of the call and no WRITABLE is due, first waits for a completion as `wait` says.
    fn receive(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        if self.pool.free_count() > 0 {
            self.driver.restart_starved()?;
        }
        // If the list has events, `transmit` has found them in this call or in the preceding
        // `tx_sync`. A further entry into the kernel would find few other completions.
        if list.is_empty() {
            let is_due = self.driver.has_writable();
            self.driver.enter(if is_due { Wait::No } else { wait })?;
        }
        while let Some(done) = self.driver.next() {
            self.driver.complete(done, list)?;
        }
        self.driver.report_writable(list);
        Ok(())
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
        let descriptor = self.driver.sockets.add(fd, Phase::Listening);
        self.driver.start_input(descriptor)?;
        Ok(descriptor)
    }

    fn connect(&mut self, peer: SocketAddr) -> io::Result<Descriptor> {
        let fd = tcp_socket(peer)?;
        let descriptor = self.driver.sockets.add(fd, Phase::Connecting);
        if let Some(socket) = self.driver.sockets.get_mut(descriptor) {
            let request = Request::Connect(socket.raw(), Box::new(SocketAddress::from(peer)));
            self.driver.start_as_input(descriptor, request)?;
        }
        Ok(descriptor)
    }

    fn bind(&mut self, local: SocketAddr) -> io::Result<Descriptor> {
        let descriptor = self.driver.sockets.add(udp_socket(local)?, Phase::Datagram);
        self.driver.start_input(descriptor)?;
        Ok(descriptor)
    }

    fn send_to(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
    ) -> Result<(), SendError> {
        let queue_max = self.options.send_queue_max;
        let socket = self.driver.sockets.get_mut(descriptor);
        let refusal = match socket.filter(|socket| socket.can_queue_datagram()) {
            None => SendRefusal::NotConnected,
            Some(_) if buffer.len() > DATAGRAM_MAX => SendRefusal::TooLong,
            Some(socket) if socket.queued() >= queue_max => {
                socket.owes_writable = true;
                SendRefusal::Full
            }
            Some(socket) => {
                socket.push_datagram(peer, buffer);
                self.driver.mark_dirty(descriptor);
                return Ok(());
            }
        };
        Err(SendError { buffer, refusal })
    }

    fn send(&mut self, descriptor: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        let queue_max = self.options.send_queue_max;
        let refusal = match self.driver.sockets.get_mut(descriptor) {
            Some(socket) if !socket.can_queue() => SendRefusal::NotConnected,
            Some(socket) if socket.queued() >= queue_max => {
                socket.owes_writable = true;
                SendRefusal::Full
            }
            Some(socket) => {
                if !buffer.is_empty() {
                    socket.push(buffer);
                    self.driver.mark_dirty(descriptor);
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
        if let Some(socket) = self.driver.sockets.get_mut(descriptor)
            && !std::mem::replace(&mut socket.is_paused, true)
            && matches!(
                socket.phase,
                Phase::Open | Phase::Listening | Phase::Datagram
            )
            && let Some(input) = socket.input
        {
            socket.outstanding += 1;
            // The push fails only if `io_uring_enter` fails. A later sync calls `io_uring_enter`
            // again, and reports an error that persists.
            let _ = self.driver.push(descriptor, Request::Cancel(input));
        }
    }

    fn resume(&mut self, descriptor: Descriptor) -> io::Result<()> {
        if let Some(socket) = self.driver.sockets.get_mut(descriptor) {
            socket.is_paused = false;
        }
        // While the cancel of `pause` is pending, this call starts nothing. `Driver::complete` then
        // starts the next request when the cancelled request ends.
        self.driver.start_input(descriptor)
    }

    fn shutdown(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.driver.sockets.get_mut(descriptor) {
            socket.is_shut_down = true;
            self.driver.mark_dirty(descriptor);
        }
    }

    fn close(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.driver.sockets.get_mut(descriptor) {
            socket.is_closing = true;
            self.driver.mark_dirty(descriptor);
        }
    }

    fn abort(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.driver.sockets.get_mut(descriptor) {
            socket.drop_queue();
            // SO_LINGER fails only if the connection is over. The close then needs no reset.
            let _ = socket.reset_on_close();
            socket.is_closing = true;
            self.driver.mark_dirty(descriptor);
        }
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        self.driver
            .sockets
            .get(descriptor)
            .is_some_and(Socket::is_open)
    }

    fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        let socket = self.driver.sockets.get(descriptor)?;
        socket.fd().filter(|_| socket.is_open())
    }

    fn system_calls(&self) -> u64 {
        self.driver.enters()
    }
}
