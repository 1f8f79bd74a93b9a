//! Reports about sockets that stay with the kernel. The reports go to the service (the process
//! `tidelaned`) for `tidelane ss`, and to standard error with TIDELANE_STRICT=1 in the environment.

use std::os::fd::RawFd;

use tidelane_abi::not_accelerated;

use super::session;
use crate::sys::{Errno, line};

/// Returns the message for a [`not_accelerated`] reason.
pub(crate) fn reason_text(reason: u32) -> &'static str {
    match not_accelerated::kind(reason) {
        not_accelerated::UNCONNECTED => "not connected",
        not_accelerated::ROUTE => "the destination is not behind an accelerated interface",
        not_accelerated::LOCAL_ADDRESS => "its address is not on an accelerated interface",
        not_accelerated::KERNEL_PEER => "the connection came over the kernel",
        not_accelerated::OPTION => "an option that is not implemented is set",
        not_accelerated::LIMIT => "the service refused the socket: a limit is reached",
        not_accelerated::FORKED => "the connection is the parent process's",
        not_accelerated::SERVICE_GONE => "the service is not running",
        not_accelerated::CHOSEN => "an option of tidelane run leaves it to the kernel",
        not_accelerated::PASSED_ON => "the program hands its connections to other programs",
        not_accelerated::FORKS => "the program forks for each connection",
        not_accelerated::NAMESPACE => "the service does not admit this network namespace",
        not_accelerated::USER => "the service does not admit this user",
        not_accelerated::CGROUP => "BPF programs of its cgroup would be bypassed",
        _ => "for an unknown reason",
    }
}

/// Reports to the service why the socket `fd` stays with the kernel. `doing` is the name of the
/// program's call.
///
/// With TIDELANE_STRICT=1 in the environment, the function also prints the reason and returns
/// ENETUNREACH, so that the program's call fails. For a socket that the user of `tidelane run`
/// chose as an exception, the function prints nothing and returns no error.
pub(crate) fn fall_back(fd: RawFd, doing: &str, reason: u32) -> Result<(), Errno> {
    session::report_not_accelerated(fd, reason);
    if !session::settings().strict || reason == not_accelerated::CHOSEN {
        return Ok(());
    }
    line(format_args!(
        "strict: {doing} on descriptor {fd}: {}",
        reason_text(reason)
    ));
    Err(Errno(libc::ENETUNREACH))
}
