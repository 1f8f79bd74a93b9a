//! A user of the service, with the user's totals over all cores and the control plane.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Resource;

/// Number of a user: the uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(pub u32);

impl UserId {
    /// The superuser.
    pub const ROOT: Self = Self(0);
}

/// Divisor of a pool's capacity that gives the part reserved for root: an eighth.
const ROOT_PART: u64 = 8;

/// The share of a pool that a user may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The user may hold at most as many units as remain free, not counting the part reserved for
    /// root.
    User,
    /// Root may hold at most seven times as many units as remain free. If no other user holds units
    /// of the pool, this limit is seven eighths of the pool.
    Root,
    /// The user may hold the whole pool.
    Unlimited,
}

impl Weight {
    /// Returns true if a user of this weight may hold `held` units of a pool. `capacity` is the
    /// size of the pool in units, and `free` is the number of units that remain free.
    pub(super) fn allows(self, held: u64, free: u64, capacity: u64) -> bool {
        match self {
            Self::User => held <= free.saturating_sub(capacity / ROOT_PART),
            Self::Root => held <= free.saturating_mul(ROOT_PART - 1),
            Self::Unlimited => true,
        }
    }
}

/// A user's total of one resource over all cores and the control plane: units in use, the limit of
/// these units, and the number of refusals.
#[derive(Debug)]
struct Total {
    used: AtomicU64,
    limit: AtomicU64,
    refused: AtomicU64,
}

/// A user's usage, limit and refusals of one resource, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The resource.
    pub resource: Resource,
    /// Units held now.
    pub used: u64,
    /// Limit; `u64::MAX` means no limit.
    pub limit: u64,
    /// Number of refusals.
    pub refused: u64,
}

/// A user, with limits that hold for all cores and the control plane together.
#[derive(Debug)]
pub struct User {
    id: UserId,
    weight: Weight,
    totals: [Total; Resource::COUNT],
}

impl User {
    /// Returns a user without limits.
    pub fn new(id: UserId, weight: Weight) -> Self {
        let total = |_| Total {
            used: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            refused: AtomicU64::new(0),
        };
        Self {
            id,
            weight,
            totals: std::array::from_fn(total),
        }
    }

    /// Returns a user without limits, who may hold whole pools, for a simulator or test that keeps
    /// no accounts.
    pub fn unlimited() -> Self {
        Self::new(UserId::ROOT, Weight::Unlimited)
    }

    /// Returns the user's uid.
    pub fn id(&self) -> UserId {
        self.id
    }

    /// Returns the user's weight.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// Sets the limit of a resource. The user keeps units that already exceed the limit.
    pub fn set_limit(&self, resource: Resource, limit: u64) {
        self.total(resource).limit.store(limit, Relaxed);
    }

    /// Returns the user's limit of a resource.
    pub fn limit(&self, resource: Resource) -> u64 {
        self.total(resource).limit.load(Relaxed)
    }

    /// Returns the number of units of a resource that the user holds.
    pub fn used(&self, resource: Resource) -> u64 {
        self.total(resource).used.load(Relaxed)
    }

    /// Returns usage, limit and refusals of every resource.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        Resource::ALL.iter().map(|resource| {
            let total = self.total(*resource);
            Line {
                resource: *resource,
                used: total.used.load(Relaxed),
                limit: total.limit.load(Relaxed),
                refused: total.refused.load(Relaxed),
            }
        })
    }

    /// Counts a refusal.
    pub fn note_refused(&self, resource: Resource) {
        self.total(resource).refused.fetch_add(1, Relaxed);
    }

    /// Adds `units` to the user's usage. Returns false and adds nothing if the sum would exceed the
    /// limit.
    pub(super) fn add(&self, resource: Resource, units: u64) -> bool {
        let total = self.total(resource);
        let used = total.used.fetch_add(units, Relaxed).saturating_add(units);
        if used > total.limit.load(Relaxed) {
            total.used.fetch_sub(units, Relaxed);
            return false;
        }
        true
    }

    /// Subtracts `units` from the user's usage.
    pub(super) fn subtract(&self, resource: Resource, units: u64) {
        self.total(resource).used.fetch_sub(units, Relaxed);
    }

    fn total(&self, resource: Resource) -> &Total {
        &self.totals[resource.index()]
    }
}
