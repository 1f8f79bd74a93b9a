//! A simulated world: hosts, programs and links in virtual time, all derived from one seed.
//!
//! A host of Tidelane runs the code of `service/host`. The simulator drives this code as the
//! service `tidelaned` does. The programs of the host use the client library `app/client`, each
//! with its own region of shared memory. A run may also have a host with smoltcp (another TCP/IP
//! stack), direct hosts (which run TCP within their programs), and programs with their own stacks
//! on mux ports (packet rings) of a host. `sim/netem` provides the links. Only the environment is
//! simulated: time, frames in flight, doorbells (wake-ups between programs and service), answers of
//! netlink, and the behaviour of programs.
//!
//! ```text
//!  Scenario --World::new--> machines (Host + page) <--rings--> processes (Program, workers, ends)
//!                              |     ^                                 |
//!                        frames v     | frames                         v
//!                             links (netem::Link)                   Ledger: bytes written and read
//! ```
//!
//! A worker is a thread of a program, and an end is one end of a connection. The page is memory in
//! which the programs see whether a core of the service sleeps.
//!
//! A run checks these rules:
//!
//! - Bytes arrive intact and in order, and the end of file follows the last byte (`ledger.rs`).
//! - No connection ends without a reason, and every connection makes progress.
//! - An idle service sleeps.
//! - The memory that a user's programs share with the service contains no byte of a connection
//!   between other users.
//! - The segments that Tidelane's TCP sends over a link obey the rules of TCP (`wire_rules.rs`) and
//!   of congestion control (`cwnd_rules.rs`).
//! - Mux ports send and receive only packets of their own 3-tuples of protocol, local address and
//!   local port (`ports/oracle.rs`).
//! - At the end, the hosts have no flow, buffer, TIME-WAIT, timer or mux port, and no user is
//!   charged for a resource.
//!
//! Equal seeds give equal runs down to the last frame ([`Report::digest`]).
#![forbid(unsafe_code)]

mod allowances;
mod bulk;
mod connection_end;
mod cwnd_rules;
mod digest;
mod direct;
mod family;
mod fault;
mod foreign_bytes;
mod host_spec;
mod latency_under_load;
mod ledger;
mod linux_bulk;
mod machine;
mod pattern;
mod pipe;
mod plan;
mod ports;
mod program;
mod program_spec;
mod region_fuzzer;
mod report;
mod scenario;
mod service;
mod smoltcp_host;
mod smoltcp_spec;
mod topology;
mod wire_rules;
mod worker;
mod world;

pub use tidelane_engine::Algorithm;

pub use crate::{
    bulk::{Bulk, Goodput},
    direct::DirectSpec,
    family::{Bound, Family},
    fault::Fault,
    host_spec::HostSpec,
    latency_under_load::{LatencyUnderLoad, RoundTrips},
    ledger::Violation,
    linux_bulk::LinuxBulk,
    pattern::Content,
    plan::{ConnectionPlan, EndPlan, Ending, Role, Round, Traffic},
    ports::{ChangeKind, Harm, HostileSpec, PortChange, PortSpec, PortStack, PortsSpec},
    program_spec::{Behaviour, ListenerSpec, ProgramSpec},
    region_fuzzer::RegionFuzzer,
    report::Report,
    scenario::{Scenario, Theme},
    smoltcp_spec::SmoltcpSpec,
    topology::{Middle, Topology},
    world::World,
};

/// Runs the scenario of `seed`. Returns an error if a rule is broken, or if memory for the run is
/// lacking.
pub fn run_seed(seed: u64) -> Result<Report, Violation> {
    run(Scenario::from_seed(seed))
}

/// Runs a scenario. Returns an error if a rule is broken, or if memory for the run is lacking.
pub fn run(scenario: Scenario) -> Result<Report, Violation> {
    let no_memory = |error: std::io::Error| Violation {
        at: tidelane_time::Instant::ZERO,
        rule: "the machine has memory",
        text: error.to_string(),
    };
    World::new(scenario).map_err(no_memory)?.run()
}
