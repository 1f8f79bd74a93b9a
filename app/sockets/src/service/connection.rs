//! An accelerated connection of this process, which the service (the process `tidelaned`) carries.

use tidelane_client::Stream;

/// An accelerated connection: its stream in shared memory, and the session to which it belongs. A
/// session is a registration of this process with the service.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Number of the session ([`super::session::ProcessSession::generation`]).
    pub(crate) session: u32,
}
