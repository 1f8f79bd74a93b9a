//! Converts the cause with which a connection has ended. The service (the process `tidelaned`)
//! reports a [`close_cause`], and the ring API (crate `tidelane-rings`) reports a [`Cause`].

use tidelane_abi::close_cause;
use tidelane_rings::Cause;

/// Returns the [`Cause`] for `cause`, a number of [`close_cause`]. Returns `None` if both sides
/// have closed the connection by FIN.
pub fn cause_of(cause: u32) -> Option<Cause> {
    Some(match cause {
        close_cause::FINISHED => return None,
        close_cause::RESET => Cause::Reset,
        close_cause::REFUSED => Cause::Refused,
        close_cause::TIMED_OUT => Cause::TimedOut,
        close_cause::HOST_UNREACHABLE | close_cause::NET_UNREACHABLE => Cause::Unreachable,
        _ => Cause::Other,
    })
}
