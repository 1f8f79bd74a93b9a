//! A connection of this process.

use tidelane_client::Stream;

/// A connection and the session that it belongs to.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    /// [`super::session::ProcessSession::generation`] of the session.
    pub(crate) session: u32,
}
