//! Listening ends, with the bounds of their queues.

use tidelane_flow::{ListenError, ListenerId, SocketOptions};
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, FlowKey, IpAddress};

/// Listeners at once.
const LISTENERS_MAX: usize = 65_536;
/// Half-open connections that a listener may have whatever its backlog.
const SYN_QUEUE_MIN: u32 = 128;

/// A listening end.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    /// Address and port. `0.0.0.0` is any IPv4 address, `::` any address at all unless the options
    /// say IPV6_V6ONLY.
    pub local: Endpoint,
    /// Bound of the accept queue.
    pub backlog: u32,
    /// Half-open connections.
    pub syn_queue: u32,
    /// Established and not taken.
    pub accept_queue: u32,
    /// Options that its connections inherit.
    pub options: SocketOptions,
    /// Listeners of one group share a local end (SO_REUSEPORT); `None` shares with none.
    pub group: Option<u32>,
    /// Until when SYN cookies of this listener may come back.
    pub cookies_until: Instant,
}

impl Listener {
    /// Whether another half-open connection has room.
    pub fn syn_room(&self) -> bool {
        self.syn_queue < self.backlog.max(SYN_QUEUE_MIN)
    }

    /// Whether another established one has. As in Linux, one more than the backlog.
    pub fn accept_room(&self) -> bool {
        self.accept_queue <= self.backlog
    }

    /// Returns true if a listener of `group` at `local` may be beside this one: both are of one
    /// group, at the same end.
    fn shares(&self, local: Endpoint, v6_only: bool, group: Option<u32>) -> bool {
        self.group.is_some()
            && (self.group, self.local, self.options.v6_only) == (group, local, v6_only)
    }

    /// Whether connections to `address` are its own.
    fn covers(&self, address: IpAddress) -> bool {
        self.local.addr.covers(address) || is_dual(self.local, &self.options)
    }
}

/// Whether a listener at `local` stands for both versions.
fn is_dual(local: Endpoint, options: &SocketOptions) -> bool {
    local.addr == IpAddress::UNSPECIFIED_V6 && !options.v6_only
}

/// All listeners. Listeners of one port differ in their address (RFC 9293 MUST-41, MUST-42), or are
/// of one group. A keyed hash of the 4-tuple chooses among a group's listeners, as in Linux.
#[derive(Debug)]
pub struct Listeners {
    entries: Vec<Option<Listener>>,
    /// Port and number, sorted by port.
    by_port: Vec<(u16, ListenerId)>,
    /// Key of the hash.
    seed: [u64; 2],
}

impl Listeners {
    /// No listeners yet. `seed` is secret, or a peer could choose who serves it.
    pub fn new(seed: [u64; 2]) -> Self {
        Self {
            entries: Vec::new(),
            by_port: Vec::new(),
            seed,
        }
    }

    /// Adds one.
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

    /// Removes one.
    pub fn remove(&mut self, id: ListenerId) -> bool {
        self.by_port.retain(|(_, other)| *other != id);
        self.entries
            .get_mut(id.index())
            .is_some_and(|entry| entry.take().is_some())
    }

    /// The listener with this number.
    pub fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.entries.get(id.index())?.as_ref()
    }

    /// The listener with this number.
    pub fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.entries.get_mut(id.index())?.as_mut()
    }

    /// A listener for `local`: the exact address before the wildcard. It stands for its group.
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

    /// The listener that a SYN with these ends finds.
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

    fn of_port(&self, port: u16) -> impl Iterator<Item = (ListenerId, &Listener)> {
        let from = self.by_port.partition_point(|(other, _)| *other < port);
        self.by_port[from..]
            .iter()
            .take_while(move |(other, _)| *other == port)
            .filter_map(|(_, id)| Some((*id, self.get(*id)?)))
    }
}
