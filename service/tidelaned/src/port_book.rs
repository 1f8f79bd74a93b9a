//! The mux ports that programs have opened, and the claims of these ports. A mux port connects the
//! NIC to a program that has a TCP/IP stack of its own.
//!
//! A mux port has the same number on each core (polling thread of the service). A claim of a mux
//! port is a 3-tuple (protocol, address, port number) whose packets go to the mux port. The book
//! records which numbers of mux ports are in use. The book also records the kernel socket that
//! backs each claim, so that a program can move the claim of a socket to another mux port.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use rustix::rand::{GetRandomFlags, getrandom};
use tidelane_host::{Associations, MUX_PORTS_MAX, RuleSet, accounts::UserId};
use tidelane_mux::{PortId, Tuple};
use tidelane_wire::Endpoint;

use crate::{
    claims::{ClaimKey, Owner},
    sockets::KernelSocket,
};

/// Maximum number of mux ports of a service. Every mux port exists on every core.
const PORTS_MAX: u32 = MUX_PORTS_MAX as u32;

/// A claim of a mux port. The program's right to the claim is proved by a kernel socket that is
/// bound to the 3-tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Cookie of the kernel socket.
    pub cookie: u64,
    /// The 3-tuple in the mux, with the address to which the socket is bound.
    pub tuple: Tuple,
    /// The claims in the demux (the service's XDP program), one for each IP version.
    pub keys: Vec<ClaimKey>,
}

impl Claimed {
    /// Returns the claim that `socket` proves.
    pub fn of(socket: &KernelSocket) -> Self {
        let owner = Owner::MuxPort {
            cookie: socket.cookie,
            protocol: socket.protocol,
        };
        Self {
            cookie: socket.cookie,
            tuple: Tuple {
                protocol: socket.protocol,
                local: socket.local,
            },
            keys: socket.ends().map(|end| (owner, end)).collect(),
        }
    }
}

/// An open mux port, or a closed mux port whose number is still in use because some core may not
/// have closed the port yet.
#[derive(Debug)]
struct Entry {
    user: UserId,
    claims: Vec<Claimed>,
    /// The table of the connections of all mux ports of the user. The operator's rules read from
    /// this table which side opened a connection.
    associations: Arc<Associations>,
}

/// All mux ports of a service: their numbers, users and claims.
#[derive(Debug, Default)]
pub struct PortBook {
    ports: BTreeMap<u32, Entry>,
    /// The mux port that has the claim of a kernel socket, by the socket's cookie.
    holders: HashMap<u64, PortId>,
}

impl PortBook {
    /// Returns true if no number of a mux port is in use.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Takes the lowest free number for a mux port of `user`. Returns `None` if all numbers are in
    /// use, or if the kernel has no random bytes for the key of a new table of connections.
    pub fn open(&mut self, user: UserId) -> Option<PortId> {
        let used = self
            .ports
            .keys()
            .zip(0..)
            .take_while(|(used, n)| **used == *n);
        let free = used.count() as u32;
        if free >= PORTS_MAX {
            return None;
        }
        let mut of_user = self.ports.values().filter(|entry| entry.user == user);
        let associations = match of_user.next() {
            Some(entry) => entry.associations.clone(),
            None => Arc::new(Associations::new(random_key()?)),
        };
        let entry = Entry {
            user,
            claims: Vec::new(),
            associations,
        };
        self.ports.insert(free, entry);
        Some(PortId(free))
    }

    /// Returns the table of the connections of all mux ports of the user of `port`.
    pub fn associations(&self, port: PortId) -> Option<Arc<Associations>> {
        Some(self.ports.get(&port.0)?.associations.clone())
    }

    /// Prepares the tables of all users' connections for a change from the rules `old` to the rules
    /// `new`. The caller passes the new rules to the cores afterwards.
    pub fn rules_change(&self, old: &RuleSet, new: &RuleSet) {
        for entry in self.ports.values() {
            entry.associations.rules_change(old, new);
        }
    }

    /// Makes the number of a mux port free. The port must have no claims, and all cores must have
    /// closed the port.
    pub fn free(&mut self, port: PortId) {
        let freed = self.ports.remove(&port.0);
        let has_claims = freed.is_some_and(|entry| !entry.claims.is_empty());
        assert!(!has_claims, "the claims of a port end before the port");
    }

    /// Returns the claims of a mux port.
    pub fn claims(&self, port: PortId) -> &[Claimed] {
        self.ports.get(&port.0).map_or(&[], |entry| &entry.claims)
    }

    /// Returns the mux port that has the claim of the kernel socket with this cookie, and the
    /// port's user.
    pub fn holder(&self, cookie: u64) -> Option<(PortId, UserId)> {
        let port = *self.holders.get(&cookie)?;
        Some((port, self.ports.get(&port.0)?.user))
    }

    /// Records a claim of `port`.
    pub fn add(&mut self, port: PortId, claimed: Claimed) {
        if let Some(entry) = self.ports.get_mut(&port.0) {
            self.holders.insert(claimed.cookie, port);
            entry.claims.push(claimed);
        }
    }

    /// Removes the claim of `port` with this protocol and local endpoint. Returns the claim.
    pub fn remove(&mut self, port: PortId, protocol: u8, local: Endpoint) -> Option<Claimed> {
        let tuple = Tuple { protocol, local };
        let claims = &mut self.ports.get_mut(&port.0)?.claims;
        let at = claims.iter().position(|claimed| claimed.tuple == tuple)?;
        let claimed = claims.swap_remove(at);
        self.holders.remove(&claimed.cookie);
        Some(claimed)
    }

    /// Removes one claim of `port`, and returns this claim. Returns `None` if the port has no
    /// claims.
    pub fn pop(&mut self, port: PortId) -> Option<Claimed> {
        let claimed = self.ports.get_mut(&port.0)?.claims.pop()?;
        self.holders.remove(&claimed.cookie);
        Some(claimed)
    }
}

/// Returns a random key for the hashes of a table of connections. Returns `None` if the kernel has
/// no random bytes.
fn random_key() -> Option<[u8; 16]> {
    let mut key = [0; 16];
    let len = getrandom(&mut key, GetRandomFlags::empty()).ok()?;
    (len == key.len()).then_some(key)
}

#[cfg(test)]
mod tests {
    use tidelane_wire::{IpAddress, protocol};

    use super::*;

    fn claimed(cookie: u64) -> Claimed {
        let port = 1000 + cookie as u16;
        Claimed {
            cookie,
            tuple: Tuple {
                protocol: protocol::UDP,
                local: Endpoint::new(IpAddress::UNSPECIFIED_V4, port),
            },
            keys: Vec::new(),
        }
    }

    #[test]
    fn numbers_are_used_again_and_bounded() {
        let mut book = PortBook::default();
        for expected in 0..PORTS_MAX {
            assert_eq!(book.open(UserId(7)), Some(PortId(expected)));
        }
        assert_eq!(book.open(UserId(7)), None);
        for number in [9, 4] {
            book.free(PortId(number));
        }
        assert_eq!(book.open(UserId(7)), Some(PortId(4)));
        assert_eq!(book.open(UserId(7)), Some(PortId(9)));
        assert_eq!(book.open(UserId(7)), None);
    }

    #[test]
    fn a_socket_backs_one_claim() {
        let mut book = PortBook::default();
        let (a, b) = (book.open(UserId(1)).unwrap(), book.open(UserId(2)).unwrap());
        book.add(a, claimed(5));
        book.add(b, claimed(6));
        assert_eq!(book.holder(5), Some((a, UserId(1))));
        assert_eq!(book.holder(7), None);
        let Tuple { protocol, local } = claimed(5).tuple;
        assert_eq!(book.remove(b, protocol, local), None);
        let moved = book.remove(a, protocol, local).expect("it has the claim");
        assert_eq!((book.holder(5), book.claims(a)), (None, &[][..]));
        book.add(b, moved);
        assert_eq!(book.holder(5), Some((b, UserId(2))));
        book.free(a);
        assert_eq!(book.pop(b), Some(claimed(5)));
        assert_eq!(book.pop(b), Some(claimed(6)));
        assert_eq!((book.pop(b), book.holder(6)), (None, None));
        book.free(b);
        assert!(book.is_empty());
    }

    #[test]
    fn the_ports_of_a_user_share_their_connections() {
        let mut book = PortBook::default();
        let ports = [1, 2, 1].map(|user| book.open(UserId(user)).unwrap());
        let [one, other, same] = ports.map(|port| book.associations(port).unwrap());
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        book.free(ports[0]);
        assert!(book.associations(ports[0]).is_none());
        let again = book.open(UserId(1)).unwrap();
        assert!(Arc::ptr_eq(&one, &book.associations(again).unwrap()));
    }
}
