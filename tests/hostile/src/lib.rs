//! Hostile input: packets that no honest peer would send, and programs that overwrite their shared
//! memory.
//!
//! ```text
//!   verified peer (an engine) <==== flows whose every byte is checked ====> victim (an engine)
//!   forger: segments near every edge of the victim's state, to flows of its own  --> victim
//!           and harmless by the RFCs to the verified ones
//! ```
//!
//! The victim's driver checks the promises of the engine: payload is placed within the receive
//! window, and only written bytes are sent.
#![forbid(unsafe_code)]

pub mod attack;
pub mod forge;
pub mod party;
