//! The UDP sockets of a context (the sockets of one thread), with their receive queues and send
//! queues.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    net::{IpAddr, SocketAddr},
};

use tidelane_embedded::Addresses;
use tidelane_engine::{Endpoint, IpAddress};
use tidelane_rings::{Buffer, Cause, Descriptor, Events, ReadyList};
use tidelane_wire::{DropReason, MacAddress};

use crate::{ip::address_of, loans_unsafe::SentBuffer, supply::Purpose};

/// Maximum number of datagrams in the receive queue of a socket.
const WAITING_MAX: usize = 512;
/// Number of most recent senders whose link addresses a socket remembers. The number covers the
/// senders of all datagrams in the receive queue. A socket may also remember some earlier senders.
const SENDERS_MIN: usize = WAITING_MAX;

/// Number of a UDP socket of a context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatagramSocketId(u32);

/// A datagram to send.
#[derive(Debug)]
pub struct OutgoingDatagram {
    /// Destination address and port.
    pub peer: Endpoint,
    pub buffer: SentBuffer,
    /// Link address of the next hop, or `None` if the caller does not know the address. If `peer`
    /// is among the most recent senders to the socket, the source link address of the sender's
    /// frame has precedence.
    pub next_hop: Option<MacAddress>,
}

/// Link addresses of the most recent senders to a socket, by IP address. The number of entries is
/// limited, because an attacker can send from any number of forged IP addresses.
#[derive(Debug, Default)]
struct Senders {
    /// Senders since `earlier` was replaced most recently. The map has fewer than [`SENDERS_MIN`]
    /// entries, because a full map replaces `earlier`.
    latest: HashMap<IpAddress, MacAddress>,
    /// The [`SENDERS_MIN`] senders before the senders in `latest`. Empty until `latest` is full for
    /// the first time.
    earlier: HashMap<IpAddress, MacAddress>,
}

impl Senders {
    fn note(&mut self, address: IpAddress, mac: MacAddress) {
        if self.latest.get(&address) == Some(&mac) {
            return;
        }
        self.latest.insert(address, mac);
        if self.latest.len() >= SENDERS_MIN {
            self.earlier = mem::take(&mut self.latest);
        }
    }

    fn get(&self, address: IpAddress) -> Option<MacAddress> {
        let latest = self.latest.get(&address);
        latest.or_else(|| self.earlier.get(&address)).copied()
    }
}

/// A UDP socket: its queues, the link addresses of recent senders, and the events that the next
/// ready list must report.
#[derive(Debug)]
pub struct DatagramSocket {
    /// Local address and port. The address may be unspecified (0.0.0.0 or ::).
    pub local: Endpoint,
    /// The program's descriptor. `None` until the caller of `DatagramSockets::open` sets the field,
    /// and after the close of the socket.
    pub descriptor: Option<Descriptor>,
    /// True while the program has paused the socket. Datagrams then stay in the receive queue.
    pub is_paused: bool,
    /// Received datagrams that are not yet in a ready list, oldest first.
    received: VecDeque<(SocketAddr, Buffer)>,
    /// Datagrams to send, oldest first.
    queue: VecDeque<OutgoingDatagram>,
    /// Link addresses of the most recent senders, for answers to these senders.
    senders: Senders,
    /// Cause of the most recent failed send, if no event has reported this cause yet.
    failure: Option<Cause>,
    /// True if a datagram was refused because the send queue was full, and the event WRITABLE is
    /// still due. When the send queue becomes empty, the next report includes WRITABLE. If the
    /// socket reports another event before the queue is empty, the report includes WRITABLE,
    /// provided that the queue has room.
    owes_writable: bool,
    /// True if the socket is in `DatagramSockets::ready`.
    is_ready: bool,
    /// True if the socket is in `DatagramSockets::dirty`.
    is_dirty: bool,
}

impl DatagramSocket {
    fn new(local: Endpoint) -> Self {
        Self {
            local,
            descriptor: None,
            is_paused: false,
            received: VecDeque::new(),
            queue: VecDeque::new(),
            senders: Senders::default(),
            failure: None,
            owes_writable: false,
            is_ready: false,
            is_dirty: false,
        }
    }

    /// Returns true if the socket is open and its receive queue is not full.
    fn has_room(&self) -> bool {
        self.received.len() < WAITING_MAX && self.descriptor.is_some()
    }

    /// Returns the source address for datagrams to `peer`. If the local address is unspecified,
    /// returns the first of `addresses` that has the IP version of `peer`. Returns `None` if the
    /// socket's IP version is not that of `peer`, or if `addresses` has no address of this version.
    pub fn source_for(&self, peer: IpAddress, addresses: &Addresses) -> Option<IpAddress> {
        if self.local.addr.is_v4() != peer.is_v4() {
            return None;
        }
        match self.local.addr.is_unspecified() {
            true => addresses.first_for(peer),
            false => Some(self.local.addr),
        }
    }

    /// Returns the link address of the sender with the IP address `address`. Returns `None` if
    /// `address` is not among the most recent senders.
    pub fn sender_mac(&self, address: IpAddress) -> Option<MacAddress> {
        self.senders.get(address)
    }

    /// Returns true if the send queue has `limit` datagrams or more. If so, the socket reports
    /// WRITABLE later (see `owes_writable`).
    pub fn refuses_send(&mut self, limit: usize) -> bool {
        let is_full = self.queue.len() >= limit;
        self.owes_writable |= is_full;
        is_full
    }

    /// Records the cause for which a datagram could not be sent.
    fn record_failure(&mut self, cause: Cause) {
        self.failure = Some(cause);
    }

    /// Moves received datagrams and events of the socket to `list`. `send_queue_max` is the maximum
    /// number of datagrams in the send queue.
    fn report(&mut self, list: &mut ReadyList, send_queue_max: usize) {
        self.is_ready = false;
        let Some(descriptor) = self.descriptor else {
            return;
        };
        if !self.is_paused {
            for (sender, buffer) in self.received.drain(..) {
                list.add_datagram(descriptor, sender, buffer);
            }
        }
        if let Some(cause) = self.failure.take() {
            list.add_send_failed(descriptor, cause);
        }
        if self.queue.len() < send_queue_max && mem::take(&mut self.owes_writable) {
            list.add_events(descriptor, Events::WRITABLE);
        }
    }
}

/// Result of the attempt to send a datagram.
pub enum Sent {
    /// The datagram is sent.
    Done,
    /// The packet interface has no free frame. The datagram stays queued.
    Blocked,
    /// The datagram cannot be sent for this cause.
    Failed(Cause),
}

/// The UDP sockets of a context by number and by local address, and the lists of sockets with work.
#[derive(Debug, Default)]
pub struct DatagramSockets {
    /// Sockets by number, including closed sockets that are still in `dirty`.
    places: Vec<Option<DatagramSocket>>,
    /// Numbers without a socket, for reuse.
    free: Vec<u32>,
    /// Open sockets by local address and port.
    by_local: HashMap<Endpoint, DatagramSocketId>,
    /// Sockets with received datagrams or events for the next [`report`](Self::report).
    ready: Vec<DatagramSocketId>,
    /// Sockets with queued datagrams to send. The close of a socket may have emptied its queue.
    dirty: VecDeque<DatagramSocketId>,
}

impl DatagramSockets {
    /// Opens a socket at `local`. Returns `None` if another socket uses the same UDP port at the
    /// same address. The unspecified address conflicts with all addresses of its IP version.
    pub fn open(&mut self, local: Endpoint) -> Option<DatagramSocketId> {
        let versions = |addr: IpAddress| (addr.is_v4(), addr.is_unspecified());
        let clashes = |other: &Endpoint| {
            let (own_v4, own_any) = versions(local.addr);
            let (other_v4, other_any) = versions(other.addr);
            let is_same = own_v4 == other_v4 && (own_any || other_any);
            other.port == local.port && (is_same || other.addr == local.addr)
        };
        if self.by_local.keys().any(clashes) {
            return None;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        let id = DatagramSocketId(number);
        self.places[number as usize] = Some(DatagramSocket::new(local));
        self.by_local.insert(local, id);
        Some(id)
    }

    /// Returns the socket with this number.
    pub fn get_mut(&mut self, id: DatagramSocketId) -> Option<&mut DatagramSocket> {
        self.places.get_mut(id.0 as usize)?.as_mut()
    }

    /// Returns the socket that receives datagrams to `local`. An exact address has precedence over
    /// the unspecified address.
    fn find(&self, local: Endpoint) -> Option<DatagramSocketId> {
        let any = match local.addr.is_v4() {
            true => IpAddress::from_v4([0; 4]),
            false => IpAddress([0; 16]),
        };
        let exact = self.by_local.get(&local);
        exact
            .or_else(|| self.by_local.get(&Endpoint::new(any, local.port)))
            .copied()
    }

    /// Returns true if no open socket uses the UDP port `port`.
    pub fn is_port_free(&self, port: u16) -> bool {
        self.by_local.keys().all(|local| local.port != port)
    }

    /// Closes a socket. If `drops_queue` is true, drops its queued datagrams. Otherwise, the queued
    /// datagrams are still sent.
    pub fn close(&mut self, id: DatagramSocketId, drops_queue: bool) {
        let Some(socket) = self.get_mut(id) else {
            return;
        };
        socket.descriptor = None;
        socket.received.clear();
        if drops_queue {
            socket.queue.clear();
        }
        let (local, is_over) = (socket.local, socket.queue.is_empty() && !socket.is_dirty);
        self.by_local.remove(&local);
        if is_over {
            self.remove(id);
        }
    }

    /// Removes a socket, and frees its number.
    fn remove(&mut self, id: DatagramSocketId) {
        self.ready.retain(|ready| *ready != id);
        self.places[id.0 as usize] = None;
        self.free.push(id.0);
    }

    /// Makes the next [`report`](Self::report) include the socket.
    pub fn mark_ready(&mut self, id: DatagramSocketId) {
        if let Some(socket) = self.get_mut(id)
            && !mem::replace(&mut socket.is_ready, true)
        {
            self.ready.push(id);
        }
    }

    /// Returns true if the next [`report`](Self::report) has sockets to visit. A paused socket that
    /// the report visits may have nothing to report.
    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Finds the socket for a received datagram to `local`, and records the sender's IP address
    /// `sender` and link address `mac`. Returns the socket's number. Also returns the purpose of
    /// the buffer for the datagram, which determines how many buffers must stay free.
    ///
    /// # Errors
    ///
    /// `NoListener` if no socket matches. `RxBufferFull` if the socket's receive queue is full.
    pub fn admit(
        &mut self,
        local: Endpoint,
        sender: IpAddr,
        mac: MacAddress,
    ) -> Result<(DatagramSocketId, Purpose), DropReason> {
        let id = self.find(local).ok_or(DropReason::NoListener)?;
        let socket = self.get_mut(id).ok_or(DropReason::NoListener)?;
        if !socket.has_room() {
            return Err(DropReason::RxBufferFull);
        }
        socket.senders.note(address_of(sender), mac);
        let purpose = match socket.is_paused {
            true => Purpose::Waiting,
            false => Purpose::Prompt,
        };
        Ok((id, purpose))
    }

    /// Appends a received datagram to the socket's receive queue.
    pub fn receive(&mut self, id: DatagramSocketId, sender: SocketAddr, buffer: Buffer) {
        if let Some(socket) = self.get_mut(id) {
            socket.received.push_back((sender, buffer));
            self.mark_ready(id);
        }
    }

    /// Appends a datagram to the socket's send queue.
    pub fn queue(&mut self, id: DatagramSocketId, datagram: OutgoingDatagram) {
        let Some(socket) = self.get_mut(id) else {
            return;
        };
        socket.queue.push_back(datagram);
        if !mem::replace(&mut socket.is_dirty, true) {
            self.dirty.push_back(id);
        }
    }

    /// Calls `send` for each queued datagram until `send` returns [`Sent::Blocked`]. Returns true
    /// if all send queues are empty.
    pub fn send_all(
        &mut self,
        mut send: impl FnMut(&DatagramSocket, &mut OutgoingDatagram) -> Sent,
    ) -> bool {
        while let Some(id) = self.dirty.front().copied() {
            while let Some(socket) = self.get_mut(id)
                && let Some(mut datagram) = socket.queue.pop_front()
            {
                match send(socket, &mut datagram) {
                    Sent::Done => {}
                    Sent::Blocked => {
                        socket.queue.push_front(datagram);
                        return false;
                    }
                    Sent::Failed(cause) => socket.record_failure(cause),
                }
            }
            self.dirty.pop_front();
            self.end_sends(id);
        }
        true
    }

    /// Updates a socket whose send queue has become empty. If the socket is closed, frees the
    /// socket. Otherwise, makes the next [`report`](Self::report) include its events.
    fn end_sends(&mut self, id: DatagramSocketId) {
        let Some(socket) = self.get_mut(id) else {
            return;
        };
        socket.is_dirty = false;
        let has_event = socket.owes_writable || socket.failure.is_some();
        if socket.descriptor.is_none() {
            self.remove(id);
        } else if has_event {
            self.mark_ready(id);
        }
    }

    /// Moves received datagrams and events of all sockets to `list`. A paused socket keeps its
    /// datagrams. `send_queue_max` is the maximum number of datagrams in each send queue.
    pub fn report(&mut self, list: &mut ReadyList, send_queue_max: usize) {
        let mut ready = mem::take(&mut self.ready);
        for id in ready.drain(..) {
            if let Some(socket) = self.get_mut(id) {
                socket.report(list, send_queue_max);
            }
        }
        self.ready = ready;
    }
}
