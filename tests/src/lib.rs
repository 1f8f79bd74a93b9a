//! The harness of the interop tests, the demo and the benches.
//!
//! A [`Wire`] is a test network: a pair of network namespaces joined by a veth pair. A [`Service`]
//! is a process of `tidelaned`, Tidelane's TCP/IP stack, on an interface of the wire. A [`Program`]
//! runs in a namespace of the wire, on the kernel's stack or on Tidelane. When the [`Wire`] is
//! dropped, its services and programs end. The [`guardian`] cleans up at the end of the wire, even
//! if the test process is killed.
#![forbid(unsafe_code)]

pub mod guardian;
pub mod impair;
pub mod machine;
pub mod napi;
pub mod nginx;
pub mod nics;
pub mod program;
pub mod runner;
pub mod running;
pub mod service;
pub mod tasks;
pub mod tools;
pub mod two_machines;
pub mod wire;
pub mod wrk;

use std::process::{Command, Stdio};

pub use nginx::Nginx;
pub use program::Program;
pub use runner::Case;
pub use running::{Finished, Running};
pub use service::Service;
pub use two_machines::PairRole;
pub use wire::{Side, Wire, WireOptions};

/// Reason why a test ends early: the test is skipped or has failed.
#[derive(Debug)]
pub enum Stop {
    /// The machine lacks a tool, a feature or a privilege. The text names what is missing, and if
    /// possible the command that provides it.
    Skip(String),
    /// The test failed.
    Fail(String),
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.to_string())
    }
}

/// Result of a test.
pub type Outcome = Result<(), Stop>;

/// Makes the calling function return [`Stop::Fail`] with a formatted text.
#[macro_export]
macro_rules! fail {
    ($($text:tt)*) => {
        return Err($crate::Stop::Fail(format!($($text)*)))
    };
}

/// If the condition does not hold, makes the calling function return [`Stop::Fail`] with a
/// formatted text.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            $crate::fail!($($text)*);
        }
    };
}

/// Runs a short command to its end, and returns the command's standard output. If the exit status
/// is not 0, returns a failure with the standard error.
pub fn command(arguments: &[&str]) -> Result<String, Stop> {
    command_with(arguments, Stdio::null())
}

/// Runs a command in the network namespace `space`, with the results of [`command`].
pub fn command_in(space: &str, arguments: &[&str]) -> Result<String, Stop> {
    command(&[&["ip", "netns", "exec", space], arguments].concat())
}

/// Runs a command with `input` as its standard input, with the results of [`command`].
pub fn command_with(arguments: &[&str], input: Stdio) -> Result<String, Stop> {
    let program = tools::find_tool(arguments[0]).unwrap_or_else(|| arguments[0].into());
    let output = Command::new(program)
        .args(&arguments[1..])
        .stdin(input)
        .output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Stop::Fail(format!(
        "{}: {}",
        arguments.join(" "),
        errors.trim()
    )))
}
