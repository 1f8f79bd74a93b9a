//! A hostile program for the interop tests, which attacks the service (`tidelaned`) and the host's
//! network.
//!
//! Ordinary programs use the service through the preload library, which intercepts their socket
//! calls. The hostile program does not use this library, which would refuse many of the attempts.
//! The program implements the registration protocol (messages to the service over a unix socket)
//! itself. The program can send any message with any descriptor, and can write anywhere in the
//! memory that it shares with the service.
//!
//! ```text
//! protocol   Service: a connection to the registration socket, for any message
//! sockets    bound and listening kernel sockets, with which attacks claim ports
//! region     Program: a registration and the memory shared with the service
//! link       Link: raw Ethernet frames
//! rings      Rings: use of TCP connections over rings (queues in the shared memory)
//! attacks    one module per attack; each prints lines of JSON with the answers of the service
//! ```
//!
//! A test must attack only a service that it started itself, in namespaces that it made.

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

/// The path of the attacked service's registration socket.
#[derive(Clone, Debug)]
pub struct Target(pub PathBuf);

impl Target {
    /// Returns the path of the registration socket of the service called `name`.
    pub fn of_name(name: &str) -> Target {
        Target(PathBuf::from(format!("/run/tidelane/{name}/control.sock")))
    }

    /// Opens a new connection to the registration socket.
    pub fn connect(&self) -> Result<Service, Failure> {
        Service::connect(&self.0)
    }
}

/// Prints one line of JSON to standard output. A test can wait for the line.
fn report(line: &Value) {
    // Rust's standard output is line-buffered even if it is a file, so no flush is needed.
    println!("{line}");
}
