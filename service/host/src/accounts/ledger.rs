//! The accounts of one place: a core, or the control plane.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{Account, Resource, User, UserId, Weight};

/// Everybody's part of a pool.
#[derive(Debug)]
struct Pool {
    capacity: AtomicU64,
    used: AtomicU64,
}

/// The pools of one place.
#[derive(Debug)]
pub(super) struct Pools([Pool; Resource::COUNT]);

impl Pools {
    /// Adds to what is used, for somebody of `weight` who holds `held` with it. False, and nothing
    /// is added, if that is more than they may.
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

    /// Takes off what is used.
    pub(super) fn take_off(&self, resource: Resource, units: u64) {
        self.0[resource.index()].used.fetch_sub(units, Relaxed);
    }
}

/// The accounts of all users in one place, and the pools that they share there.
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
    /// So much of a resource is here for everybody. Without this it is unlimited.
    pub fn set_capacity(&self, resource: Resource, capacity: u64) {
        self.pools.0[resource.index()]
            .capacity
            .store(capacity, Relaxed);
    }

    /// Units of a resource that all users have here.
    pub fn used(&self, resource: Resource) -> u64 {
        self.pools.0[resource.index()].used.load(Relaxed)
    }

    /// The account of `user` here, opened if there is none. It is closed with the last that holds
    /// it, charges among them.
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
