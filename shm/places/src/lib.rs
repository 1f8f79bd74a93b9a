//! Where a service keeps its files, and how they are opened.
//!
//! ```text
//!   /run/tidelane/NAME/pid, control.sock, admin.sock      /var/log/tidelane/NAME.log
//! ```
//!
//! A process with privileges that follows a symbolic link which another user left for it writes
//! to a file of that user's choice. Each directory below `/run` and `/var/log` is therefore opened
//! as one component, without following a link, from the descriptor of the directory above, and is
//! used only if nobody but its owner can write to it ([`OwnDir`]).
#![forbid(unsafe_code)]

mod name;
mod own_dir;

pub use name::{NAME_LEN_MAX, ServiceName};
pub use own_dir::OwnDir;

use std::path::PathBuf;

/// Where services have their run directories.
pub const RUN: &str = "/run/tidelane";
/// Where services have their logs.
pub const LOG: &str = "/var/log/tidelane";

/// The run directory of a service.
pub fn run_dir(name: &ServiceName) -> PathBuf {
    PathBuf::from(RUN).join(name.as_str())
}
