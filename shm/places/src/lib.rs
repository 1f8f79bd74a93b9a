//! Paths of the files of a service (a process `tidelaned`), and functions that open the files
//! without following the links of other users. NAME stands for the name of the service.
//!
//! ```text
//!   /run/tidelane/NAME/pid, control.sock, admin.sock      /var/log/tidelane/NAME.log
//! ```
//!
//! If a privileged process followed a symbolic link of another user, that user could choose the
//! file to which the process writes. Each directory below `/run` and `/var/log` is therefore opened
//! from the descriptor of its parent directory, as one path component and without following links.
//! Each of these directories is used only if no other user can write to it ([`TrustedDir`]).
#![forbid(unsafe_code)]

mod name;
mod trusted_dir;

pub use name::{NAME_LEN_MAX, ServiceName};
pub use trusted_dir::TrustedDir;

use std::path::PathBuf;

/// Parent of the services' run directories.
pub const RUN: &str = "/run/tidelane";
/// Directory of the services' logs.
pub const LOG: &str = "/var/log/tidelane";

/// Returns the run directory of a service, which has its pid file and its sockets.
pub fn run_dir(name: &ServiceName) -> PathBuf {
    PathBuf::from(RUN).join(name.as_str())
}
