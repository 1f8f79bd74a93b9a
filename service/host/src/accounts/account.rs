//! A user's account in a ledger.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tidelane_abi::not_accelerated;

use super::{Charge, Resource, User, UserId, ledger::Pools};

/// A refused request, caused by the user's limit or share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The user.
    pub user: UserId,
    /// The resource.
    pub resource: Resource,
    /// The most that the user may have at present: the limit, or less if other users hold much.
    pub limit: u64,
}

impl Refused {
    /// Returns the reason for which a socket stays with the kernel, one of [`not_accelerated`].
    pub fn reason(&self) -> u32 {
        not_accelerated::limit(self.resource.code())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            user: UserId(uid),
            resource,
            limit,
        } = self;
        write!(f, "limit: {} of user {uid} ({limit})", resource.name())
    }
}

impl std::error::Error for Refused {}

/// The resources of one user in one place.
#[derive(Debug)]
pub struct Account {
    user: Arc<User>,
    pools: Arc<Pools>,
    used: [AtomicU64; Resource::COUNT],
}

impl Account {
    pub(super) fn new(user: Arc<User>, pools: Arc<Pools>) -> Self {
        Self {
            user,
            pools,
            used: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns the user of the account.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Returns true if the account belongs to this user, and not to an earlier one with the same
    /// number.
    pub(super) fn is_of(&self, user: &Arc<User>) -> bool {
        Arc::ptr_eq(&self.user, user)
    }

    /// Returns the units that the user has here.
    pub fn used(&self, resource: Resource) -> u64 {
        self.used[resource.index()].load(Relaxed)
    }

    /// Charges the user `units` of a resource until the charge is dropped.
    pub fn charge(self: &Arc<Self>, resource: Resource, units: u64) -> Result<Charge, Refused> {
        match self.add(resource, units) {
            Ok(()) => Ok(Charge::new(self.clone(), resource, units)),
            Err(limit) => {
                self.user.note_refused(resource);
                Err(Refused {
                    user: self.user.id(),
                    resource,
                    limit,
                })
            }
        }
    }

    /// Returns true if the user could have one more now. Counts a refusal.
    pub fn has_room(self: &Arc<Self>, resource: Resource) -> bool {
        self.charge(resource, 1).is_ok()
    }

    /// Adds to the user's units here. On failure, returns the most that the user may have.
    pub(super) fn add(&self, resource: Resource, units: u64) -> Result<(), u64> {
        if !self.user.add(resource, units) {
            return Err(self.user.limit(resource));
        }
        let line = &self.used[resource.index()];
        let held = line.fetch_add(units, Relaxed).saturating_add(units);
        let whose = (self.user.weight(), held);
        if self.pools.add(resource, units, whose) {
            return Ok(());
        }
        line.fetch_sub(units, Relaxed);
        self.user.take_off(resource, units);
        Err(held.saturating_sub(units))
    }

    /// Subtracts from the user's units here.
    pub(super) fn take_off(&self, resource: Resource, units: u64) {
        self.pools.take_off(resource, units);
        self.used[resource.index()].fetch_sub(units, Relaxed);
        self.user.take_off(resource, units);
    }
}
