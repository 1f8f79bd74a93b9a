//! Hosts, programs and wires in virtual time, from one seed.
//!
//! The hosts are `service/host`, driven as `tidelaned` drives them; the programs use `app/client`,
//! each over a region of its own; the wires are `sim/netem`. What is simulated is only what lies
//! around them: time, frames on their way, doorbells, netlink's answers, what programs want.
//!
//! ```text
//!  Scenario --World::new--> machines (Host + page) <--rings--> processes (Program, workers, sides)
//!                              |     ^                                 |
//!                        frames v     | frames                         v
//!                             cables (netem::Link)                  Ledger: who wrote, read, ended
//! ```
//!
//! Checked are: bytes arrive intact and in order ([`side`](crate)), the end of file comes after the
//! last byte, no connection ends without a reason, every connection moves on, an idle service
//! sleeps, no byte of one user is in another's memory, and in the end nothing is left: no flow, no
//! buffer, no TIME-WAIT, no timer, nothing on any user's account. Equal seeds give equal runs, down
//! to the last frame: [`Report::digest`].
#![forbid(unsafe_code)]

mod bloat;
mod bulk;
mod cwnd_rules;
mod digest;
mod family;
mod foreign;
mod foreign_bytes;
mod ledger;
mod linux_bulk;
mod machine;
mod misconduct;
mod mishap;
mod pattern;
mod pipe;
mod plan;
mod program;
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
    ledger::Violation,
    linux_bulk::LinuxBulk,
    misconduct::Misconduct,
    mishap::Mishap,
    pattern::Content,
    plan::{ConnectionPlan, EndPlan, Ending, Role, Round, Traffic},
    report::Report,
    scenario::{Conduct, ForeignSpec, HostSpec, ListenerSpec, ProgramSpec, Scenario, Theme},
    topology::{Middle, Topology},
    world::World,
};

/// Runs the scenario of `seed`.
pub fn run_seed(seed: u64) -> Result<Report, Violation> {
    run(Scenario::from_seed(seed))
}

/// Runs a scenario.
pub fn run(scenario: Scenario) -> Result<Report, Violation> {
    let no_memory = |error: std::io::Error| Violation {
        at: tidelane_time::Instant::ZERO,
        rule: "the machine has memory",
        text: error.to_string(),
    };
    World::new(scenario).map_err(no_memory)?.run()
}
