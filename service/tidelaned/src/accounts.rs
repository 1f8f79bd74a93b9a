//! Accounts of users in the control plane, and the number of messages that users may send.
//!
//! Resources of a core are accounted on that core ([`tidelane_host::accounts`]); the limits of a
//! user are the same object on all cores.

use std::{collections::BTreeMap, sync::Arc};

use tidelane_host::accounts::{Account, Ledger, Resource, User, UserId, Weight};
use tidelane_time::Instant;

mod limits;
mod messages;

pub use limits::{LimitsConfig, LimitsError, UserLimits};
use messages::Bucket;

/// Connections to the registration socket, of all users: twice as many as programs, so that those
/// who are about to register find a place.
const REGISTRATIONS_MAX: u64 = 8192;
/// Programs of all users: each has gigabytes of the service's address space.
const PROGRAMS_MAX: u64 = 4096;
/// Contexts of all users: each step of a core looks at all of them.
const CONTEXTS_MAX: u64 = 8192;
/// Listeners of all users: what an engine has room for.
const LISTENERS_MAX: u64 = 65_536;
/// Ports of all users: half of what the demux has room for.
const PORTS_MAX: u64 = 65_536;
/// Descriptors that the service keeps for itself, whatever users have.
const OWN_DESCRIPTORS: u64 = 1024;
/// Users that are remembered although they have nothing.
const USERS_KEPT: usize = 1024;

/// All users' accounts in the control plane.
pub struct Accounts {
    limits: LimitsConfig,
    ledger: Ledger,
    users: BTreeMap<UserId, Arc<User>>,
    buckets: BTreeMap<UserId, Bucket>,
}

impl Accounts {
    /// Nobody has anything yet. The process may have `descriptors_max` descriptors.
    pub fn new(limits: LimitsConfig, descriptors_max: u64) -> Self {
        let ledger = Ledger::default();
        for (resource, capacity) in [
            (Resource::Registrations, REGISTRATIONS_MAX),
            (Resource::Programs, PROGRAMS_MAX),
            (Resource::Contexts, CONTEXTS_MAX),
            (Resource::Listeners, LISTENERS_MAX),
            (Resource::Ports, PORTS_MAX),
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

    /// From now on these limits hold. What somebody has beyond them stays theirs.
    pub fn set_limits(&mut self, limits: LimitsConfig) {
        self.limits = limits;
        for user in self.users.values() {
            self.limits.apply(user);
        }
    }

    /// The account of the user with this number.
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

    /// All users that have something, or had lately.
    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values().map(Arc::as_ref)
    }

    /// The limit that the user with this number has.
    pub fn limit(&self, uid: u32, resource: Resource) -> u64 {
        let user = self.users.get(&UserId(uid));
        user.map_or(u64::MAX, |user| user.limit(resource))
    }

    /// When the user may send the next message, if that is not now.
    pub fn message_due(&mut self, user: &User, now: Instant) -> Option<Instant> {
        let rate = user.limit(Resource::Messages);
        let bucket = self.buckets.entry(user.id()).or_default();
        let due = bucket.due(now, rate);
        if due.is_some() {
            user.note_refused(Resource::Messages);
        }
        due
    }

    /// The user sent a message that was as much work as `cost` usual ones.
    pub fn pay(&mut self, user: &User, cost: u64) {
        self.buckets.entry(user.id()).or_default().pay(cost);
    }

    /// Users in a range of numbers of their own (user namespaces) are many.
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
