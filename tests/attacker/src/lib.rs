//! A hostile program for the interop tests.
//!
//! The program implements the registration protocol itself, so that it can send any message and any
//! descriptor, and it can write anywhere in its region. The library would refuse many of these
//! attempts.
//!
//! ```text
//! protocol   Service: the registration socket, any message
//! sockets    kernel sockets in every state that a claim might be tried with
//! region     Program: a registration, its memory and the bytes in it
//! link       raw frames
//! rings      connections over raw rings
//! attacks    one file each; an attack prints lines of JSON with refusals and successes
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

/// The attacked service, by its control socket.
#[derive(Clone, Debug)]
pub struct Target(pub PathBuf);

impl Target {
    /// Returns the service called `name`.
    pub fn of_name(name: &str) -> Target {
        Target(PathBuf::from(format!("/run/tidelane/{name}/control.sock")))
    }

    /// Opens a new connection to the control socket.
    pub fn connect(&self) -> Result<Service, Failure> {
        Service::connect(&self.0)
    }
}

/// Prints one line for which a test can wait.
fn report(line: &Value) {
    // Standard output is line-buffered, even into a file.
    println!("{line}");
}
