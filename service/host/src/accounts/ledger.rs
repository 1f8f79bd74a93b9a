//! The ledger of one core or of the control plane: its pools, and its account for each user.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{Account, Resource, User, UserId, Weight};

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
    /// Adds `units` to the usage of a pool, on behalf of a user of `weight`. `held` is the user's
    /// own usage, including these units. Returns false and adds nothing if the pool is full, or if
    /// `held` exceeds the user's share.
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

/// The accounts of all users on one core or in the control plane, and the pools that they share.
#[derive(Debug)]
pub struct Ledger {
    pools: Arc<Pools>,
    accounts: BTreeMap<UserId, Weak<Account>>,
}

impl Default for Ledger {
    fn default() -> Self {
        let pool = |_| Pool {
            capacity: AtomicU64::new(u64::MAX),
            used: AtomicU64::new(0),
        };
        Self {
            pools: Arc::new(Pools(std::array::from_fn(pool))),
            accounts: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// Sets the capacity of a pool. A pool without a set capacity is unlimited.
    pub fn set_capacity(&self, resource: Resource, capacity: u64) {
        self.pools.0[resource.index()]
            .capacity
            .store(capacity, Relaxed);
    }

    /// Returns the usage of a pool: the units that all users of this ledger hold together.
    pub fn used(&self, resource: Resource) -> u64 {
        self.pools.0[resource.index()].used.load(Relaxed)
    }

    /// Returns the account of `user`. Opens an account if the user has none. The ledger holds only
    /// a weak reference: the account ends when its last owner, for example a charge, is dropped.
    pub fn account(&mut self, user: &Arc<User>) -> Arc<Account> {
        let known = self.accounts.get(&user.id()).and_then(Weak::upgrade);
        if let Some(account) = known.filter(|account| account.is_of(user)) {
            return account;
        }
        self.accounts
            .retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(Account::new(user.clone(), self.pools.clone()));
        self.accounts.insert(user.id(), Arc::downgrade(&account));
        account
    }
}
