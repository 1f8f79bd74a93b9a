//! A service in this process: the daemon's own sessions, claims and cores, with kernel sockets of a
//! network namespace of its own, and around them only what a fuzzer must decide.
//!
//! ```text
//!   victim, attackers ==socket pairs==> Session, Shared, Claims --> Book (the demux)
//!        region, rings  <=============> Host --frames--> Peer (a host of its own)
//! ```
//!
//! Invariants that hold after each input, whatever the attackers did:
//!
//! * nothing panics;
//! * every claim is on a port that the kernel would give to nobody else;
//! * a socket that entitles to nothing was given nothing;
//! * the victim's connection goes on with the right bytes, and new ones reach it;
//! * no byte of the victim's is in memory of an attacker;
//! * after the end of all sessions nothing of them is left: programs, flows, buffers, claims,
//!   descriptors.

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
