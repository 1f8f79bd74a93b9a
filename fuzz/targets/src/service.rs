//! A service in this process. It has the daemon's sessions, claims and cores, and kernel sockets in
//! a separate network namespace. Only the parts that the fuzzer controls are replaced.
//!
//! ```text
//!   victim, attackers ==socket pairs==> Session, Shared, Claims --> ClaimSet (the demux)
//!        region, rings  <=============> Host --frames--> Peer (on another host)
//! ```
//!
//! After each input, these invariants must hold, regardless of the attackers' actions:
//!
//! * nothing panics;
//! * every claim is on a port that the kernel would not give to another socket;
//! * no claim was made with a socket that does not permit it;
//! * the victim's connection continues with the correct bytes, and new connections reach the
//!   victim;
//! * no byte of the victim is in an attacker's memory;
//! * after the end of all sessions, no programs, flows, buffers, claims or descriptors are left.

mod core;
mod descriptors;
mod fuzz_program;
mod kernel;
mod scene;
mod test_namespace;

pub use self::{
    descriptors::Kind,
    fuzz_program::may_be_secret,
    scene::{Scene, run},
    test_namespace::TestNamespace,
};
