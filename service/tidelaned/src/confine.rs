//! Confinement: rights that the service gives up once it is set up.
//!
//! A service that runs as root, and reads what any program and any host on the network sends,
//! must be worth as little as possible to whoever takes it over. When all that needs privilege has
//! been opened, and before the first thread starts, it gives up for good
//!
//! * every capability that is not in [`capabilities::CAPABILITIES`], in all five sets;
//! * gaining one again: `no_new_privs`, locked secure bits;
//! * the file system, but for what [`landlock`] names;
//! * every system call that is not in [`calls::CALLS`]: making another one ends the service, with a
//!   line in the log that names it ([`filter`]);
//! * being read by others: it is not dumpable, and leaves no core file unless it is told to.
//!
//! Threads inherit all of this, so it is entered once, while there is one thread.

use std::{fmt, io};

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    thread::CapabilitySet,
};
use serde_json::{Value, json};

use self::landlock::Readable;
use crate::runtime::RunDir;

pub mod calls;
pub mod capabilities;
pub mod filter;
pub mod landlock;
mod sys;

/// Rights that the process gave up, and those that it could not give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// The capabilities that are left.
    pub capabilities: Vec<&'static str>,
    /// True if no program that this process starts can have other capabilities.
    pub bounded: bool,
    /// Version of the kernel's Landlock; none if the kernel has it not.
    pub landlock: Option<u32>,
    /// True if the process may leave a core file.
    pub core_dumps: bool,
}

/// Which step failed, and the kernel's reason.
#[derive(Debug)]
pub struct ConfineError {
    step: &'static str,
    error: io::Error,
}

impl ConfineError {
    fn at<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self {
            step,
            error: error.into(),
        }
    }
}

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot give up privileges: {}: {}",
            self.step, self.error
        )
    }
}

impl std::error::Error for ConfineError {}

/// Gives up everything that serving does not need. `core_dumps` leaves the operator the memory of a
/// service that crashed, with the bytes of all its users.
pub fn enter(
    run_dir: &RunDir,
    readable: &Readable<'_>,
    core_dumps: bool,
) -> Result<Confinement, ConfineError> {
    read_auxiliary_vector();
    if !core_dumps {
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Resource::Core, none).map_err(ConfineError::at("the limit of core files"))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(ConfineError::at("the dumpable attribute"))?;
    }
    let kept = capabilities::keep_needed()?;
    rustix::thread::set_no_new_privs(true).map_err(ConfineError::at("no_new_privs"))?;
    let landlock = landlock::restrict(run_dir, readable).map_err(ConfineError::at("Landlock"))?;
    filter::install(calls::CALLS).map_err(ConfineError::at("the filter of system calls"))?;
    Ok(Confinement {
        capabilities: kept.names(),
        bounded: kept.bounded,
        landlock,
        core_dumps,
    })
}

/// Gives up everything but what putting back settings of the NIC needs, in the process that does.
pub fn enter_restorer() -> Result<(), ConfineError> {
    read_auxiliary_vector();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(ConfineError::at("the dumpable attribute"))?;
    capabilities::keep_only(CapabilitySet::NET_ADMIN)?;
    rustix::thread::set_no_new_privs(true).map_err(ConfineError::at("no_new_privs"))?;
    landlock::restrict_all().map_err(ConfineError::at("Landlock"))?;
    filter::install(calls::RESTORER_CALLS).map_err(ConfineError::at("the filter of system calls"))
}

/// Has the auxiliary vector read now.
///
/// The library behind the system calls reads the vector at first use. Before Linux 6.4, which has
/// PR_GET_AUXV, it opens `/proc/self/auxv` by `open`, a call that the filter denies.
fn read_auxiliary_vector() {
    let _ = rustix::param::page_size();
}

impl Confinement {
    /// For the admin socket.
    pub fn to_json(&self) -> Value {
        json!({
            "capabilities": self.capabilities,
            "bounding_set": if self.bounded { "reduced" } else { "unchanged" },
            "landlock": self.landlock,
            "system_calls": "filtered",
            "core_dumps": self.core_dumps,
        })
    }

    /// A line for each missing part, for the log.
    pub fn shortcomings(&self) -> Vec<&'static str> {
        let missing = [
            (
                self.landlock.is_none(),
                "this kernel has no Landlock: the service may read and write all files that its \
                 user may",
            ),
            (
                !self.bounded,
                "without CAP_SETPCAP the bounding set of capabilities stays as it is; \
                 no_new_privs holds in its place",
            ),
        ];
        let missing = missing.into_iter().filter(|(is_missing, _)| *is_missing);
        missing.map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
