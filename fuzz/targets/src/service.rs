//! A Tidelane service that runs in the fuzzer's process instead of in the daemon `tidelaned`.
//!
//! Three parts run the daemon's code: the sessions with the registered programs, the claims of
//! ports (a claim directs a port's packets to the service), and the `Host`. A core is a polling
//! thread of the daemon, and the `Host` is the core's TCP/IP stack. The kernel sockets are real,
//! and belong to a separate network namespace. The fuzzer replaces the NIC, the core's thread and
//! clock, and the demux, which passes the packets of claimed ports to the service. The programs are
//! a well-behaved victim and several attackers.
//!
//! ```text
//!   victim, attackers ==socket pairs==> Session, ServiceState, Claims --> ClaimSet (the demux)
//!        region, rings  <=============> Host --frames--> Peer (on another host)
//! ```
//!
//! After each input, these invariants must hold, regardless of the attackers' actions:
//!
//! * nothing panics;
//! * every claim is on a port that the kernel would not give to another socket;
//! * the service grants no claim for a descriptor whose kind does not permit the claim, for example
//!   a pipe or an unbound socket;
//! * the victim's connection continues with the correct bytes, and new connections reach the
//!   victim;
//! * no byte of the victim is in an attacker's memory;
//! * after the end of all sessions, no programs, flows, buffers, descriptors or claims remain,
//!   except claims of ephemeral ports, which the service keeps for its later connections.

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
