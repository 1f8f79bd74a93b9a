//! Hostile input: packets that no honest peer would send, and programs that write what they like.
//!
//! ```text
//!   verified peer (an engine) <==== flows whose every byte is checked ====> victim (an engine)
//!   forger: segments near every edge of the victim's state, to flows of its own  --> victim
//!           and harmless by the RFCs to the verified ones
//! ```
//!
//! The victim's environment checks what the engine promises its driver: bytes are placed within the
//! receive window and sent from what was written.
#![forbid(unsafe_code)]

pub mod attack;
pub mod forge;
pub mod party;
