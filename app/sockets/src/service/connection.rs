//! An accelerated connection of this process: a connection that the service (the process
//! `tidelaned`) carries.

use tidelane_client::Stream;

/// An accelerated connection, and the session with the service to which the connection belongs.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// Number of the session: [`super::session::ProcessSession::generation`].
    pub(crate) session: u32,
}
