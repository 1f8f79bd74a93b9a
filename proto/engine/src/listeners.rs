//! Listeners, and the numbers of connections in their SYN queues and accept queues.

use tidelane_flow::{ListenError, ListenerId, SocketOptions};
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, FlowKey, IpAddress};

/// Largest number of listeners.
const LISTENERS_MAX: usize = 65_536;
/// Least capacity of a SYN queue, in connections. If the backlog is larger, the backlog is the
/// capacity.
const SYN_QUEUE_MIN: u32 = 128;

/// A socket in LISTEN: its address, its options and the numbers of connections in its queues.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    /// Local address and port. `0.0.0.0` means any IPv4 address. `::` means any IPv6 address and,
    /// without IPV6_V6ONLY, also any IPv4 address.
    pub local: Endpoint,
    /// Backlog as `listen` sets it. As in Linux, the accept queue holds one connection more.
    pub backlog: u32,
    /// Number of half-open connections: connections in SYN-RECEIVED, except those that Fast Open
    /// has put into the accept queue.
    pub syn_queue: u32,
    /// Number of connections in the accept queue. With Fast Open, a connection enters the queue
    /// before its handshake is complete.
    pub accept_queue: u32,
    /// Options that the listener's connections inherit.
    pub options: SocketOptions,
    /// Group of listeners that share a local address and port (SO_REUSEPORT), or `None`.
    pub group: Option<u32>,
    /// Time until which an ACK may return a SYN cookie of this listener. A time in the past means
    /// that no cookie is valid.
    pub cookies_until: Instant,
    /// True if another TCP/IP stack gets the new SYNs to this address and port. The connections
    /// that this engine already has stay in this engine.
    pub draining: bool,
}

impl Listener {
    /// Returns true if no connection is on its way to the application: both queues are empty, and
    /// no SYN cookie is valid.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.syn_queue == 0 && self.accept_queue == 0 && now >= self.cookies_until
    }

    /// Returns true if the SYN queue has room.
    pub fn has_syn_room(&self) -> bool {
        self.syn_queue < self.backlog.max(SYN_QUEUE_MIN)
    }

    /// Returns true if the accept queue has room.
    pub fn has_accept_room(&self) -> bool {
        self.accept_queue <= self.backlog
    }

    /// Returns true if a new listener of `group` at `local` may share its port with this listener
    /// although the addresses overlap. Both listeners must be in one group, with the same local
    /// address, port and value of IPV6_V6ONLY.
    fn shares(&self, local: Endpoint, v6_only: bool, group: Option<u32>) -> bool {
        self.group.is_some()
            && (self.group, self.local, self.options.v6_only) == (group, local, v6_only)
    }

    /// Returns true if the listener accepts connections to `address`.
    fn covers(&self, address: IpAddress) -> bool {
        self.local.addr.covers(address) || is_dual(self.local, &self.options)
    }
}

/// Returns true if a listener at `local` accepts connections over IPv4 and IPv6.
fn is_dual(local: Endpoint, options: &SocketOptions) -> bool {
    local.addr == IpAddress::UNSPECIFIED_V6 && !options.v6_only
}

/// All listeners of an engine. Listeners of one port have different addresses (RFC 9293 MUST-41,
/// MUST-42) or are in one group. A keyed hash of the 4-tuple chooses among the listeners of a
/// group, as in Linux.
#[derive(Debug)]
pub struct Listeners {
    /// Listeners by id; `None` if the id is free.
    entries: Vec<Option<Listener>>,
    /// Ports and ids, sorted by port.
    by_port: Vec<(u16, ListenerId)>,
    /// Key of the hash that chooses a listener within a group.
    seed: [u64; 2],
}

impl Listeners {
    /// Creates an empty set. `seed` is the key of the hash and must be secret: a peer that knows
    /// the key can choose its listener within a group.
    pub fn new(seed: [u64; 2]) -> Self {
        Self {
            entries: Vec::new(),
            by_port: Vec::new(),
            seed,
        }
    }

    /// Adds a listener with empty queues. Returns an error if the port is zero, if the address is
    /// multicast or broadcast, or if the set is full.
    ///
    /// Also returns an error if another listener of the same port conflicts. Two listeners conflict
    /// if their addresses are the same, or if one address is `0.0.0.0` and the other is `::`
    /// without IPV6_V6ONLY. Listeners of one group do not conflict if their addresses and values of
    /// IPV6_V6ONLY are the same. A wildcard address and a specific address do not conflict.
    pub fn insert(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
        group: Option<u32>,
    ) -> Result<ListenerId, ListenError> {
        if local.port == 0 || local.addr.is_multicast_or_broadcast() {
            return Err(ListenError::BadEndpoint);
        }
        let same = |(_, id): &(u16, ListenerId)| {
            self.get(*id).is_some_and(|entry| {
                let any = entry.local.addr.is_unspecified() && local.addr.is_unspecified();
                let dual = is_dual(entry.local, &entry.options) || is_dual(local, &options);
                let overlap = entry.local == local || entry.local.port == local.port && any && dual;
                overlap && !entry.shares(local, options.v6_only, group)
            })
        };
        if self.by_port.iter().any(same) {
            return Err(ListenError::InUse);
        }
        let entry = Listener {
            local,
            backlog,
            syn_queue: 0,
            accept_queue: 0,
            options,
            group,
            cookies_until: Instant(0),
            draining: false,
        };
        let index = match self.entries.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.entries.len() < LISTENERS_MAX => {
                self.entries.push(None);
                self.entries.len() - 1
            }
            None => return Err(ListenError::Full),
        };
        self.entries[index] = Some(entry);
        let id = ListenerId(index as u32);
        let at = self.by_port.partition_point(|(port, _)| *port < local.port);
        self.by_port.insert(at, (local.port, id));
        Ok(id)
    }

    /// Removes a listener. Returns true if there was a listener with this id.
    pub fn remove(&mut self, id: ListenerId) -> bool {
        self.by_port.retain(|(_, other)| *other != id);
        self.entries
            .get_mut(id.index())
            .is_some_and(|entry| entry.take().is_some())
    }

    /// Returns the listener with this id.
    pub fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.entries.get(id.index())?.as_ref()
    }

    /// Returns the listener with this id, for a change.
    pub fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.entries.get_mut(id.index())?.as_mut()
    }

    /// Returns a listener for `local`. A listener with this exact address has precedence over a
    /// listener with a wildcard address. For a group, the result is any listener of the group.
    pub fn find(&self, local: &Endpoint) -> Option<ListenerId> {
        let mut wildcard = None;
        for (id, entry) in self.of_port(local.port) {
            if entry.local.addr == local.addr {
                return Some(id);
            }
            if entry.covers(local.addr) {
                wildcard = Some(id);
            }
        }
        wildcard
    }

    /// Returns the listener for a segment with this 4-tuple. The 4-tuple decides among the
    /// listeners of a group.
    pub fn find_for(&self, key: &FlowKey) -> Option<ListenerId> {
        let first = self.find(&key.local)?;
        let Listener { local, group, .. } = *self.get(first)?;
        if group.is_none() {
            return Some(first);
        }
        let members = || {
            let of_port = self.of_port(local.port);
            of_port.filter(move |(_, entry)| entry.local == local)
        };
        let hash = key.hash64(self.seed) >> 32;
        let chosen = (hash * members().count() as u64) >> 32;
        members().nth(chosen as usize).map(|(id, _)| id)
    }

    /// Returns the listeners of a port.
    fn of_port(&self, port: u16) -> impl Iterator<Item = (ListenerId, &Listener)> {
        let from = self.by_port.partition_point(|(other, _)| *other < port);
        self.by_port[from..]
            .iter()
            .take_while(move |(other, _)| *other == port)
            .filter_map(|(_, id)| Some((*id, self.get(*id)?)))
    }
}
