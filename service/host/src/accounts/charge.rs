//! Charges: units that a user has taken, each owned by the object that they were taken for.

use std::sync::Arc;

use super::{Account, Refused, Resource};

/// Units of a resource that a user has. They go back when it is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    resource: Resource,
    units: u64,
}

impl Charge {
    pub(super) fn new(account: Arc<Account>, resource: Resource, units: u64) -> Self {
        Self {
            account,
            resource,
            units,
        }
    }

    /// Whose it is.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// How many units it is.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Makes it `units` more; refused, it stays as it is.
    pub fn grow(&mut self, units: u64) -> Result<(), Refused> {
        let mut more = self.account.charge(self.resource, units)?;
        self.units += std::mem::take(&mut more.units);
        Ok(())
    }

    /// Takes over what the same user was charged of the same resource; any other charge comes back.
    pub fn absorb(&mut self, mut other: Charge) -> Result<(), Charge> {
        let same = Arc::ptr_eq(&self.account, &other.account) && self.resource == other.resource;
        if !same {
            return Err(other);
        }
        self.units += std::mem::take(&mut other.units);
        Ok(())
    }

    /// Gives `units` of it back, or all if it is less.
    pub fn shrink(&mut self, units: u64) {
        let units = units.min(self.units);
        self.units -= units;
        self.account.take_off(self.resource, units);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.take_off(self.resource, self.units);
    }
}
