//! Hosts, programs and links in virtual time, derived from one seed.
//!
//! The hosts are `service/host`, driven in the same way as by `tidelaned`. The programs use
//! `app/client`, each with a region of its own. The links are `sim/netem`. Only the surroundings
//! are simulated: time, frames in flight, doorbells, netlink's answers, and the behaviour of
//! programs.
//!
//! ```text
//!  Scenario --World::new--> machines (Host + page) <--rings--> processes (Program, workers, sides)
//!                              |     ^                                 |
//!                        frames v     | frames                         v
//!                             links (netem::Link)                   Ledger: bytes written and read
//! ```
//!
//! The checkers hold that bytes arrive intact and in order ([`side`](crate)), the end of file
//! follows the last byte, no connection ends without a reason, every connection makes progress, an
//! idle service sleeps, and no byte of one user is in another's memory. At the end nothing may be
//! left: no flow, no buffer, no TIME-WAIT, no timer, no charge to any user. Equal seeds give equal
//! runs down to the last frame: [`Report::digest`].
#![forbid(unsafe_code)]

mod bloat;
mod bulk;
mod cwnd_rules;
mod digest;
mod family;
mod fault;
mod foreign;
mod foreign_bytes;
mod ledger;
mod linux_bulk;
mod machine;
mod pattern;
mod pipe;
mod plan;
mod program;
mod region_fuzzer;
mod report;
mod scenario;
mod service;
mod side;
mod topology;
mod users;
mod wire_rules;
mod worker;
mod world;

pub use tidelane_engine::Algorithm;

pub use crate::{
    bloat::{Bloat, RoundTrips},
    bulk::{Bulk, Goodput},
    family::{Bound, Family},
    fault::Fault,
    ledger::Violation,
    linux_bulk::LinuxBulk,
    pattern::Content,
    plan::{ConnectionPlan, EndPlan, Ending, Role, Round, Traffic},
    region_fuzzer::RegionFuzzer,
    report::Report,
    scenario::{Conduct, ForeignSpec, HostSpec, ListenerSpec, ProgramSpec, Scenario, Theme},
    topology::{Middle, Topology},
    world::World,
};

/// Runs the scenario of `seed` and checks all rules.
pub fn run_seed(seed: u64) -> Result<Report, Violation> {
    run(Scenario::from_seed(seed))
}

/// Runs a scenario and checks all rules.
pub fn run(scenario: Scenario) -> Result<Report, Violation> {
    let no_memory = |error: std::io::Error| Violation {
        at: tidelane_time::Instant::ZERO,
        rule: "the machine has memory",
        text: error.to_string(),
    };
    World::new(scenario).map_err(no_memory)?.run()
}
