//! Accounts count and limit the resources of the service that each user (uid) holds.
//!
//! Three conditions decide whether a user gets one more unit of a [`Resource`]:
//!
//! - The user's own limit holds for the whole service. A [`User`] counts the usage on all cores and
//!   in the control plane together, so that a limit need not be split over the cores.
//! - The pool must have room. A [`Ledger`] has the pools of one place (a core, or the control
//!   plane). The pools are not added up, because one core's flow table cannot hold another core's
//!   connections.
//! - The share, by the user's [`Weight`] (root or another user): a user other than root may hold at
//!   most as much of a pool as is free, not counting an eighth that is reserved for root. A single
//!   user can hold 7/16 of a pool, a second user then 7/32, and a further user still finds free
//!   units.
//!
//! An [`Account`] is a user's entry in a ledger. A [`Charge`] is a number of units that a user has
//! taken. Dropping the charge returns the units, so that no owner can forget to return them. A
//! [`Line`] reports a user's usage and limit of one resource.
//!
//! The counters are atomic, because the programs of one user are on all cores. The counters change
//! only when an object is opened or closed.

mod account;
mod charge;
mod ledger;
mod pools;
mod resource;
mod user;

pub use account::{Account, Refused};
pub use charge::Charge;
pub use ledger::Ledger;
pub use resource::Resource;
pub use user::{Line, User, UserId, Weight};

#[cfg(test)]
mod tests;
