//! The pools of a ledger. A ledger belongs to one core (polling thread) or to the control plane. A
//! pool is the capacity and the usage of one resource there.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Resource, Weight};

/// Capacity of one resource, and its usage by all users, in units of the resource.
#[derive(Debug)]
struct Pool {
    capacity: AtomicU64,
    used: AtomicU64,
}

/// The pools of one ledger, by resource.
#[derive(Debug)]
pub(super) struct Pools([Pool; Resource::COUNT]);

impl Pools {
    /// Returns pools without a limit.
    pub(super) fn unlimited() -> Self {
        let pool = |_| Pool {
            capacity: AtomicU64::new(u64::MAX),
            used: AtomicU64::new(0),
        };
        Self(std::array::from_fn(pool))
    }

    /// Sets the capacity of a pool.
    pub(super) fn set_capacity(&self, resource: Resource, capacity: u64) {
        self.0[resource.index()].capacity.store(capacity, Relaxed);
    }

    /// Returns the usage of a pool.
    pub(super) fn used(&self, resource: Resource) -> u64 {
        self.0[resource.index()].used.load(Relaxed)
    }

    /// Adds `units` to the usage of a pool, on behalf of a user. `weight` determines the user's
    /// share of the pool. `held` is the user's own usage, including these units. Returns false and
    /// adds nothing if the pool has no room for the units, or if `held` exceeds the user's share.
    pub(super) fn add(
        &self,
        resource: Resource,
        units: u64,
        (weight, held): (Weight, u64),
    ) -> bool {
        let pool = &self.0[resource.index()];
        let used = pool.used.fetch_add(units, Relaxed).saturating_add(units);
        let capacity = pool.capacity.load(Relaxed);
        let free = capacity.checked_sub(used);
        let allowed = free.is_some_and(|free| weight.allows(held, free, capacity));
        if !allowed {
            pool.used.fetch_sub(units, Relaxed);
        }
        allowed
    }

    /// Subtracts `units` from the usage of the resource's pool.
    pub(super) fn subtract(&self, resource: Resource, units: u64) {
        self.0[resource.index()].used.fetch_sub(units, Relaxed);
    }
}
