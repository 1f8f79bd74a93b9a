//! The attacks. Each module is one attack and one subcommand of `tidelane-attacker`.

pub mod barrage;
pub mod frames;
pub mod grow;
pub mod idle_registrations;
pub mod linger;
pub mod listen;
pub mod probe;
pub mod punch;
pub mod reserve;
pub mod scan;
pub mod spin;
pub mod staged;
