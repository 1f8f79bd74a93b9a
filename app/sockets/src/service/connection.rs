//! An accelerated connection of this process: a connection that the service (the process
//! `tidelaned`) carries.

use tidelane_client::Stream;

/// An accelerated connection, and the session with the service to which the connection belongs.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// [`super::session::ProcessSession::generation`] of the session.
    pub(crate) session: u32,
}
