//! Accounts count and limit the resources of the service that each user (uid) holds.
//!
//! A *pool* is the capacity of one resource at one place. A place is a core (polling thread), or
//! the control plane. A user gets one more unit of a [`Resource`] if three conditions are met:
//!
//! - The user's own limit allows the unit. The limit holds for the whole service: a [`User`] counts
//!   the usage on all cores and in the control plane together, so that a limit need not be split
//!   over the cores.
//! - The pool has a free unit. A [`Ledger`] has the pools of one place. The pools of different
//!   places are not added up, because one core's flow table cannot hold another core's connections.
//! - The user's share of the pool allows the unit. The share depends on the user's [`Weight`]. An
//!   eighth of the pool is reserved for root. Any other user may hold at most as many units as are
//!   then still free outside this eighth. A single user can therefore hold 7/16 of a pool, and a
//!   second user then 7/32. A further user still finds free units.
//!
//! An [`Account`] is a user's entry in a ledger. A [`Charge`] is a number of units that a user has
//! taken. Dropping the charge returns the units, so that no owner can forget to return them. A
//! [`Line`] reports a user's usage, limit and refusals of one resource.
//!
//! The counters are atomic, because the programs of one user are on all cores. The counters change
//! only when an object, for example a connection or a buffer, is opened, resized or closed.

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
