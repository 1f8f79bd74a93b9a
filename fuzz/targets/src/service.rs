//! A service in this process: the daemon's sessions, claims and cores, with kernel sockets of a
//! separate network namespace. Only the parts that the fuzzer controls are replaced.
//!
//! ```text
//!   victim, attackers ==socket pairs==> Session, Shared, Claims --> ClaimSet (the demux)
//!        region, rings  <=============> Host --frames--> Peer (a host of its own)
//! ```
//!
//! Invariants after each input, whatever the attackers did:
//!
//! * nothing panics;
//! * every claim is on a port that the kernel would not give to another socket;
//! * a socket that entitles to no claim has got no claim;
//! * the victim's connection continues with the right bytes, and new ones reach the victim;
//! * no byte of the victim is in an attacker's memory;
//! * nothing is left after the end of all sessions: programs, flows, buffers, claims, descriptors.

mod core;
mod ground;
mod kernel;
mod palette;
mod party;
mod scene;

pub use self::{
    ground::Ground,
    palette::Kind,
    party::may_be_secret,
    scene::{Scene, run},
};
