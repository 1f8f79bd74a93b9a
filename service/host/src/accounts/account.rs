//! An account: one user's usage of the resources of one core, or of the control plane.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tidelane_abi::not_accelerated;

use super::{Resource, User, UserId, pools::Pools};

/// The refusal of a request that exceeds the user's limit, the free units of a pool (the capacity
/// of one resource on a core or in the control plane), or the user's share of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// User whose program made the request.
    pub user: UserId,
    /// Resource that the user requested.
    pub resource: Resource,
    /// If the user's limit refused the request: this limit, which holds for the whole service. If
    /// the pool refused the request: the number of units that the account holds.
    pub limit: u64,
}

impl Refused {
    /// Returns the code of [`not_accelerated`] for a socket that stays in the kernel because of
    /// this refusal.
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

/// The units of each resource that one user holds on one core, or in the control plane.
#[derive(Debug)]
pub struct Account {
    user: Arc<User>,
    pools: Arc<Pools>,
    /// Units in use, indexed by `Resource::index`.
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

    /// Returns true if the account belongs to this `User` object. An earlier object may have the
    /// same uid.
    pub(super) fn is_of(&self, user: &Arc<User>) -> bool {
        Arc::ptr_eq(&self.user, user)
    }

    /// Returns the units of a resource that the account holds.
    pub fn used(&self, resource: Resource) -> u64 {
        self.used[resource.index()].load(Relaxed)
    }

    /// Adds `units` to the usage of the user, of the account and of the pool. On failure, changes
    /// nothing and returns the value for [`Refused::limit`].
    pub(super) fn add(&self, resource: Resource, units: u64) -> Result<(), u64> {
        if !self.user.add(resource, units) {
            return Err(self.user.limit(resource));
        }
        let used = &self.used[resource.index()];
        let held = used.fetch_add(units, Relaxed).saturating_add(units);
        let holder = (self.user.weight(), held);
        if self.pools.add(resource, units, holder) {
            return Ok(());
        }
        used.fetch_sub(units, Relaxed);
        self.user.subtract(resource, units);
        Err(held.saturating_sub(units))
    }

    /// Subtracts `units` from the usage of the user, of the account and of the pool.
    pub(super) fn subtract(&self, resource: Resource, units: u64) {
        self.pools.subtract(resource, units);
        self.used[resource.index()].fetch_sub(units, Relaxed);
        self.user.subtract(resource, units);
    }
}
