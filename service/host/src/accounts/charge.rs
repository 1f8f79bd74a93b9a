//! Charges: units that a user has taken. The object that needs the units owns their charge.

use std::sync::Arc;

use super::{Account, Refused, Resource};

/// Units of a resource that a user has taken. Dropping the charge returns the units.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    resource: Resource,
    units: u64,
}

impl Account {
    /// Charges the user for `units` of a resource until the charge is dropped. Counts a refusal in
    /// the user's statistics.
    pub fn charge(self: &Arc<Self>, resource: Resource, units: u64) -> Result<Charge, Refused> {
        match self.add(resource, units) {
            Ok(()) => Ok(Charge::new(self.clone(), resource, units)),
            Err(limit) => {
                self.user().note_refused(resource);
                Err(Refused {
                    user: self.user().id(),
                    resource,
                    limit,
                })
            }
        }
    }

    /// Returns true if a charge of one unit would succeed now. Counts a refusal in the user's
    /// statistics.
    pub fn has_room(self: &Arc<Self>, resource: Resource) -> bool {
        self.charge(resource, 1).is_ok()
    }
}

impl Charge {
    fn new(account: Arc<Account>, resource: Resource, units: u64) -> Self {
        Self {
            account,
            resource,
            units,
        }
    }

    /// Returns the account that is charged.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns the number of units.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Adds `units`. After a refusal the charge is unchanged.
    pub fn grow(&mut self, units: u64) -> Result<(), Refused> {
        let mut more = self.account.charge(self.resource, units)?;
        self.units += std::mem::take(&mut more.units);
        Ok(())
    }

    /// Adds the units of `other` to this charge. Returns `other` unchanged if the charges differ in
    /// account or resource.
    pub fn absorb(&mut self, mut other: Charge) -> Result<(), Charge> {
        let same = Arc::ptr_eq(&self.account, &other.account) && self.resource == other.resource;
        if !same {
            return Err(other);
        }
        self.units += std::mem::take(&mut other.units);
        Ok(())
    }

    /// Gives `units` of the charge back to the account. If the charge has fewer units, gives all
    /// units back.
    pub fn shrink(&mut self, units: u64) {
        let units = units.min(self.units);
        self.units -= units;
        self.account.subtract(self.resource, units);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.subtract(self.resource, self.units);
    }
}
