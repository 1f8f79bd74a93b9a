//! A hash state without randomness: iteration order and cost must repeat in the simulator.
//!
//! Only for maps whose keys the service chooses; what a peer can choose is hashed with the engine's
//! secret.

use std::hash::{BuildHasherDefault, DefaultHasher};

/// Builds hashers that all start from the same state.
pub type FixedState = BuildHasherDefault<DefaultHasher>;
