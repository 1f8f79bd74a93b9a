//! Tests of Tidelane's TCP engine with hostile input: forged packets that no honest peer would
//! send.
//!
//! ```text
//!   friend (an engine) <==== verified flows: every byte is checked ====> victim (an engine)
//!
//!   forger ---- any forged segment, to flows between forger and victim ----> victim
//!          ---- segments that the RFCs make harmless, to verified flows ---> victim
//! ```
//!
//! Victim and friend each have a driver ([`party::CheckingDriver`], the environment of the engine).
//! The driver checks two promises of the engine: the engine places payload only within the largest
//! receive window, and sends only bytes that the program has written.
#![forbid(unsafe_code)]

pub mod attack;
pub mod forge;
pub mod party;
