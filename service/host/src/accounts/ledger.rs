//! The ledger of one core (polling thread) or of the control plane. A ledger has an account for
//! each user, and a pool (capacity and usage) for each resource.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use super::{Account, Resource, User, UserId, pools::Pools};

/// The accounts of all users on one core or in the control plane, and the pools that they share.
#[derive(Debug)]
pub struct Ledger {
    pools: Arc<Pools>,
    accounts: BTreeMap<UserId, Weak<Account>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            pools: Arc::new(Pools::unlimited()),
            accounts: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// Sets the capacity of a pool. A pool without a set capacity is unlimited.
    pub fn set_capacity(&self, resource: Resource, capacity: u64) {
        self.pools.set_capacity(resource, capacity);
    }

    /// Returns the usage of a pool: the units that all users of this ledger hold together.
    pub fn used(&self, resource: Resource) -> u64 {
        self.pools.used(resource)
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
