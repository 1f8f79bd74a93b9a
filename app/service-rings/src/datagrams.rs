//! The UDP sockets of a context (the sockets of one thread). The service (the process `tidelaned`)
//! carries no UDP, so these sockets are the kernel's.

use std::{
    collections::{BTreeMap, VecDeque},
    io, mem,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
        socket_with,
    },
};
use tidelane_rings::{Buffer, Cause, Descriptor, Events, Pool, ReadyList, SendError, SendRefusal};

/// Limit of the number of `recvfrom` calls on one socket within one call of `receive`.
const RECEIVED_MAX: usize = 64;
/// Longest payload of a UDP datagram over IPv4 in bytes.
const DATAGRAM_MAX: usize = 65_507;

/// A UDP socket of the kernel.
#[derive(Debug)]
struct DatagramSocket {
    socket: OwnedFd,
    /// True while the program has paused receiving.
    is_paused: bool,
    /// False after a receive that found no datagram or failed. True again when the kernel reports
    /// an event.
    may_be_readable: bool,
    /// True after a send for which the kernel had no room. False again when the kernel reports an
    /// event.
    is_blocked: bool,
    /// Datagrams to send, oldest first, each with its receiver.
    queue: VecDeque<(Buffer, SocketAddr)>,
    /// Cause of the most recent failed send, until a SEND_FAILED event reports the cause.
    failure: Option<Cause>,
    /// True if a buffer was refused because the queue was full. WRITABLE is due when the queue has
    /// room.
    owes_writable: bool,
    /// Cause of the most recent failed receive, until a CLOSED event reports the cause.
    end: Option<Cause>,
}

impl DatagramSocket {
    fn open(local: SocketAddr) -> io::Result<Self> {
        let family = match local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        bind(&socket, &local)?;
        Ok(Self {
            socket,
            is_paused: false,
            may_be_readable: true,
            is_blocked: false,
            queue: VecDeque::new(),
            failure: None,
            owes_writable: false,
            end: None,
        })
    }

    /// Sends the datagrams that wait, until the socket has no room. Returns the number of system
    /// calls.
    fn transmit(&mut self) -> u64 {
        let mut calls = 0;
        while !self.is_blocked
            && let Some((buffer, peer)) = self.queue.front()
        {
            calls += 1;
            match sendto(&self.socket, buffer.payload(), SendFlags::NOSIGNAL, peer) {
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    break;
                }
                Err(Errno::INTR) => continue,
                Err(error) => self.failure = Some(cause_of(error)),
            }
            self.queue.pop_front();
        }
        calls
    }

    /// Adds received datagrams to the list. Returns the number of system calls.
    fn receive(&mut self, descriptor: Descriptor, pool: &Pool, list: &mut ReadyList) -> u64 {
        let mut calls = 0;
        while self.may_be_readable && !self.is_paused && calls < RECEIVED_MAX as u64 {
            let Some(mut buffer) = pool.allocate() else {
                break;
            };
            calls += 1;
            let room = buffer.bytes_mut();
            match recvfrom(&self.socket, &mut *room, RecvFlags::TRUNC) {
                // A datagram longer than the buffer is dropped.
                Ok((copied, len, sender)) if copied == len => {
                    buffer.set_payload(0..len as u32);
                    let sender = sender.and_then(|sender| SocketAddr::try_from(sender).ok());
                    if let Some(sender) = sender {
                        list.add_datagram(descriptor, sender, buffer);
                    }
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.may_be_readable = false,
                Err(error) => {
                    self.may_be_readable = false;
                    self.end = Some(cause_of(error));
                }
            }
        }
        calls
    }

    /// Adds the events other than READABLE to the list.
    fn report(&mut self, descriptor: Descriptor, queue_max: usize, list: &mut ReadyList) {
        if let Some(cause) = self.failure.take() {
            list.add_send_failed(descriptor, cause);
        }
        if self.queue.len() < queue_max && mem::take(&mut self.owes_writable) {
            list.add_events(descriptor, Events::WRITABLE);
        }
        if let Some(cause) = self.end.take() {
            list.add_closed(descriptor, cause);
        }
    }
}

fn cause_of(error: Errno) -> Cause {
    match error {
        Errno::CONNREFUSED => Cause::Refused,
        Errno::NETUNREACH | Errno::HOSTUNREACH => Cause::Unreachable,
        Errno::MSGSIZE => Cause::TooLong,
        _ => Cause::Other,
    }
}

/// The UDP sockets of a context, by descriptor.
#[derive(Debug, Default)]
pub struct Datagrams {
    open: BTreeMap<Descriptor, DatagramSocket>,
    /// Sockets that the program has closed, and that still have datagrams to send.
    closing: Vec<DatagramSocket>,
}

impl Datagrams {
    /// Returns true if no UDP socket is open, and no closed UDP socket has datagrams to send.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closing.is_empty()
    }

    pub fn bind(&mut self, descriptor: Descriptor, local: SocketAddr) -> io::Result<()> {
        self.open.insert(descriptor, DatagramSocket::open(local)?);
        Ok(())
    }

    pub fn socket(&self, descriptor: Descriptor) -> Option<BorrowedFd<'_>> {
        Some(self.open.get(&descriptor)?.socket.as_fd())
    }

    /// Queues a datagram for [`Self::transmit`]. `queue_max` limits the number of queued datagrams.
    pub fn send_to(
        &mut self,
        descriptor: Descriptor,
        buffer: Buffer,
        peer: SocketAddr,
        queue_max: usize,
    ) -> Result<(), SendError> {
        let refusal = match self.open.get_mut(&descriptor) {
            None => SendRefusal::NotConnected,
            Some(_) if buffer.len() > DATAGRAM_MAX => SendRefusal::TooLong,
            Some(socket) if socket.queue.len() >= queue_max => {
                socket.owes_writable = true;
                SendRefusal::Full
            }
            Some(socket) => {
                socket.queue.push_back((buffer, peer));
                return Ok(());
            }
        };
        Err(SendError { buffer, refusal })
    }

    /// Notes that a socket may have datagrams and room.
    pub fn on_ready(&mut self, descriptor: Descriptor) {
        if let Some(socket) = self.open.get_mut(&descriptor) {
            socket.may_be_readable = true;
            socket.is_blocked = false;
        }
    }

    /// Stops receiving on a socket if `is_paused` is true, or else receives again.
    pub fn set_paused(&mut self, descriptor: Descriptor, is_paused: bool) {
        if let Some(socket) = self.open.get_mut(&descriptor) {
            socket.is_paused = is_paused;
        }
    }

    /// Sends the datagrams that wait. Returns the number of system calls.
    pub fn transmit(&mut self) -> u64 {
        let mut calls = 0;
        for socket in self.open.values_mut() {
            calls += socket.transmit();
        }
        self.closing.retain_mut(|socket| {
            // `on_ready` does not find a closed socket, so try to send in each call.
            socket.is_blocked = false;
            calls += socket.transmit();
            !socket.queue.is_empty()
        });
        calls
    }

    /// Adds received datagrams and events to the list. Returns the number of system calls.
    pub fn receive(&mut self, pool: &Pool, queue_max: usize, list: &mut ReadyList) -> u64 {
        let mut calls = 0;
        for (descriptor, socket) in &mut self.open {
            calls += socket.receive(*descriptor, pool, list);
            socket.report(*descriptor, queue_max, list);
        }
        calls
    }

    /// Returns true if there may be work that no event of the kernel announces. This work is to
    /// receive datagrams that [`Self::receive`] left in the kernel (for lack of a buffer, or
    /// because of `RECEIVED_MAX`), or to send the queued datagrams of closed sockets.
    pub fn has_waiting(&self) -> bool {
        let mut open = self.open.values();
        !self.closing.is_empty() || open.any(|s| s.may_be_readable && !s.is_paused)
    }

    /// Returns true if an open socket has a queued datagram and may have room in the kernel.
    pub fn can_transmit(&self) -> bool {
        let mut open = self.open.values();
        open.any(|socket| !socket.is_blocked && !socket.queue.is_empty())
    }

    /// Closes a socket. Queued datagrams are dropped if `drops_queue` is true, or else sent first.
    pub fn close(&mut self, descriptor: Descriptor, drops_queue: bool) {
        if let Some(socket) = self.open.remove(&descriptor)
            && !drops_queue
            && !socket.queue.is_empty()
        {
            self.closing.push(socket);
        }
    }
}
