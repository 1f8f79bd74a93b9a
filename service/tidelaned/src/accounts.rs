//! Accounts of users in the control plane of the Tidelane service: limits of resources, and the
//! rate of messages.
//!
//! The accounts for resources of the cores (polling threads), such as connections, are on the cores
//! ([`tidelane_host::accounts`]). The control plane and all cores share the limits of a user.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_host::accounts::{Account, Ledger, Resource, User, UserId, Weight};
use tidelane_time::Instant;

mod limits;
mod messages;

pub use limits::{LimitsConfig, LimitsError, UserLimits};
use messages::Bucket;

/// Maximum number of connections to the registration socket, over which programs register: twice
/// [`PROGRAMS_MAX`], so that connections without a registered program leave room for programs.
const REGISTRATIONS_MAX: u64 = 8192;
/// Maximum number of programs of all users. Each program takes gigabytes of the service's address
/// space.
const PROGRAMS_MAX: u64 = 4096;
/// Maximum number of contexts of all users. A context is the set of rings of a program's thread.
/// Each context costs time in each step of a core.
const CONTEXTS_MAX: u64 = 8192;
/// Maximum number of listeners of all users: the capacity of a TCP engine. Each core has an engine,
/// and each engine has all listeners.
const LISTENERS_MAX: u64 = 65_536;
/// Maximum number of reserved TCP and UDP ports of all users: half of the capacity of the demux
/// (the XDP program that redirects the packets of these ports).
const PORTS_MAX: u64 = 65_536;
/// Maximum number of bytes of packet rings of all users. The service shares a packet ring with a
/// program that has a TCP/IP stack of its own. The service locks the ring in memory.
const RING_BYTES_MAX: u64 = 2 << 30;
/// Number of file descriptors that are reserved for the service itself.
const OWN_DESCRIPTORS: u64 = 1024;
/// If at least this number of users are known, the service removes the users without resources
/// before it adds a user.
const USERS_KEPT: usize = 1024;

/// All users' accounts in the control plane.
pub struct Accounts {
    limits: LimitsConfig,
    ledger: Ledger,
    users: BTreeMap<UserId, Arc<User>>,
    /// Token buckets, which limit the users' message rates.
    buckets: BTreeMap<UserId, Bucket>,
}

impl Accounts {
    /// Makes the accounts. `descriptors_max` is the process's limit of descriptors.
    pub fn new(limits: LimitsConfig, descriptors_max: u64) -> Self {
        let ledger = Ledger::default();
        for (resource, capacity) in [
            (Resource::Registrations, REGISTRATIONS_MAX),
            (Resource::Programs, PROGRAMS_MAX),
            (Resource::Contexts, CONTEXTS_MAX),
            (Resource::Listeners, LISTENERS_MAX),
            (Resource::Ports, PORTS_MAX),
            (Resource::RingBytes, RING_BYTES_MAX),
        ] {
            ledger.set_capacity(resource, capacity);
        }
        let descriptors = descriptors_max.saturating_sub(OWN_DESCRIPTORS);
        ledger.set_capacity(Resource::Descriptors, descriptors);
        Self {
            limits,
            ledger,
            users: BTreeMap::new(),
            buckets: BTreeMap::new(),
        }
    }

    /// Sets new limits. Users keep the resources that exceed the new limits.
    pub fn set_limits(&mut self, limits: LimitsConfig) {
        self.limits = limits;
        for user in self.users.values() {
            self.limits.apply(user);
        }
    }

    /// Returns the account of the user with this uid.
    pub fn of(&mut self, uid: u32) -> Arc<Account> {
        let id = UserId(uid);
        let user = match self.users.get(&id) {
            Some(user) => user.clone(),
            None => {
                self.forget_idle();
                let weight = match id {
                    UserId::ROOT => Weight::Root,
                    _ => Weight::User,
                };
                let user = Arc::new(User::new(id, weight));
                self.limits.apply(&user);
                self.users.insert(id, user.clone());
                user
            }
        };
        self.ledger.account(&user)
    }

    /// Returns all users that have resources, and users without resources that were not removed
    /// yet.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values().map(Arc::as_ref)
    }

    /// Returns the limit of the user with this uid. Returns `u64::MAX` (no limit) for an unknown
    /// user.
    pub fn limit(&self, uid: u32, resource: Resource) -> u64 {
        let user = self.users.get(&UserId(uid));
        user.map_or(u64::MAX, |user| user.limit(resource))
    }

    /// Returns the time at which the user may send the next message, or `None` if the user may send
    /// now. Counts a refusal if the user has to wait.
    pub fn message_due(&mut self, user: &User, now: Instant) -> Option<Instant> {
        let rate = user.limit(Resource::Messages);
        let bucket = self.buckets.entry(user.id()).or_default();
        let due = bucket.due(now, rate);
        if due.is_some() {
            user.note_refused(Resource::Messages);
        }
        due
    }

    /// Charges a message that costs as much as `cost` ordinary messages.
    pub fn pay(&mut self, user: &User, now: Instant, cost: u64) {
        let rate = user.limit(Resource::Messages);
        let bucket = self.buckets.entry(user.id()).or_default();
        bucket.pay(now, rate, cost);
    }

    /// If at least [`USERS_KEPT`] users are known, removes the users without resources. Without the
    /// removal, the map could grow very large, because a user namespace can have very many users.
    fn forget_idle(&mut self) {
        if self.users.len() >= USERS_KEPT {
            self.users.retain(|_, user| Arc::strong_count(user) > 1);
            let users = &self.users;
            self.buckets.retain(|id, _| users.contains_key(id));
        }
    }
}

#[cfg(test)]
mod tests;
