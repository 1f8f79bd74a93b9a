//! Accounts: how much of the service each user has, and may have.
//!
//! Three things decide whether a user gets one more of a [`Resource`]:
//!
//! - the user's own limit, which holds for all of the service: a [`User`] counts what they have on
//!   all cores and in the control plane together, so a limit need not be split over the cores;
//! - the pool that it comes from. A [`Ledger`] knows the pools of one place (a core, or the control
//!   plane): a core's flow table is no help to another core's connections, so the pools are not
//!   added up;
//! - the reserve. A user may hold as much of a pool as is free in it, apart from an eighth that is
//!   kept for root ([`Weight`]): a user who is alone gets nearly half, two get less than a third
//!   each, and the next one always finds something.
//!
//! An [`Account`] is a user's page in a ledger, and a [`Charge`] is what was taken. It goes back
//! when the charge is dropped, so nothing that owns one can forget it.
//!
//! Counters are atomics, since a user's programs are on all cores; none is touched unless something
//! is opened or closed.

mod account;
mod charge;
mod ledger;
mod resource;
mod user;

pub use account::{Account, Refused};
pub use charge::Charge;
pub use ledger::Ledger;
pub use resource::Resource;
pub use user::{Line, User, UserId, Weight};

#[cfg(test)]
mod tests;
