//! Confinement: the rights that the Tidelane service gives up once it is set up.
//!
//! The service runs as root and reads data that any program and any host on the network can send.
//! An intruder in the service must therefore gain as little as possible. The service first opens
//! everything that needs privilege. Before the first thread starts, it permanently gives up
//!
//! * every capability that is not in [`capabilities::CAPABILITIES`], in all five capability sets of
//!   Linux. On some systems, the service needs one or two more capabilities, which then stay;
//! * the ways to gain a capability again, which `no_new_privs` and the locked secure bits block;
//! * if the kernel has Landlock: access to all files that [`landlock`] does not name;
//! * every system call that is not in [`calls::CALLS`]: the call ends the service, with a line in
//!   the log that has the call's number ([`filter`]);
//! * if the operator has not requested core files: the dumpable attribute. Processes without
//!   CAP_SYS_PTRACE can then not inspect the service, and a crash leaves no core file.
//!
//! Threads inherit the confinement. The service therefore confines itself once, while it has one
//! thread.

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

/// The result of the confinement: the rights that the process has given up, and the rights that it
/// could not give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Names of the remaining capabilities.
    pub capabilities: Vec<&'static str>,
    /// True if the bounding set is empty. A program that this process starts can then gain no
    /// capabilities.
    pub bounded: bool,
    /// Version of the kernel's Landlock ABI; `None` if the kernel has no Landlock.
    pub landlock: Option<u32>,
    /// True if the process may leave a core file.
    pub core_dumps: bool,
}

/// Error of the confinement: the failed step, and the kernel's error.
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

/// Gives up every right that serving does not need. If `core_dumps` is true, a crash may leave a
/// core file with the data of all users.
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

/// Gives up every right that the restorer does not need. The caller is the restorer, a process that
/// restores settings of the NIC after the service was killed.
pub fn enter_restorer() -> Result<(), ConfineError> {
    read_auxiliary_vector();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(ConfineError::at("the dumpable attribute"))?;
    capabilities::keep_only(CapabilitySet::NET_ADMIN)?;
    rustix::thread::set_no_new_privs(true).map_err(ConfineError::at("no_new_privs"))?;
    landlock::restrict_all().map_err(ConfineError::at("Landlock"))?;
    filter::install(calls::RESTORER_CALLS).map_err(ConfineError::at("the filter of system calls"))
}

/// Makes the crate rustix read the auxiliary vector now.
///
/// The crate reads the vector at first use. Kernels before Linux 6.4 have no PR_GET_AUXV. On these
/// kernels, the crate opens `/proc/self/auxv` by `open`, a call that the filter denies.
fn read_auxiliary_vector() {
    let _ = rustix::param::page_size();
}

impl Confinement {
    /// Formats the state for the admin socket.
    pub fn to_json(&self) -> Value {
        json!({
            "capabilities": self.capabilities,
            "bounding_set": if self.bounded { "reduced" } else { "unchanged" },
            "landlock": self.landlock,
            "system_calls": "filtered",
            "core_dumps": self.core_dumps,
        })
    }

    /// Returns a log line for each part of the confinement that this process could not apply.
    pub fn missing_features(&self) -> Vec<&'static str> {
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
