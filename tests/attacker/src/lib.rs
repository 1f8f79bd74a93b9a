//! A hostile program for the interop tests.
//!
//! The program speaks the registration protocol itself, with any message and any descriptor, and
//! owns its region. The library that programs use would refuse many of these attempts.
//!
//! ```text
//! protocol   Service: the registration socket, any message
//! sockets    kernel sockets in every state that a claim might be tried with
//! region     Program: a registration, its memory, what lies there
//! link       frames by hand
//! rings      connections carried by hand
//! attacks    one file each; each prints lines of JSON: what was refused, what was obtained
//! ```
//!
//! Attack only services that the test itself started, in namespaces that it made.

use std::path::PathBuf;

use serde_json::Value;

use crate::protocol::{Failure, Service};

pub mod attacks;
pub mod link;
pub mod protocol;
pub mod region;
pub mod rings;
pub mod sockets;
mod sys;

/// The service that is attacked, by its control socket.
#[derive(Clone, Debug)]
pub struct Target(pub PathBuf);

impl Target {
    /// The service of this name.
    pub fn of_name(name: &str) -> Target {
        Target(PathBuf::from(format!("/run/tidelane/{name}/control.sock")))
    }

    /// A new connection to the control socket.
    pub fn connect(&self) -> Result<Service, Failure> {
        Service::connect(&self.0)
    }
}

/// Prints one line that a test can wait for.
fn report(line: &Value) {
    // Standard output is line-buffered, even into a file.
    println!("{line}");
}
