//! Connections whose events come to another lane from now on.

use super::{connection::Connection, lane::Lane, lanes, session};

impl Lane {
    /// Events of the connection come to this lane from now on.
    ///
    /// The service is told through the default lane. A connection that comes into one epoll
    /// instance, and soon into another, would else end where the service looks last.
    pub(crate) fn take_over(&'static self, connection: &Connection) {
        let slot = connection.stream.slot();
        let Some(session) = session::last() else {
            return;
        };
        if session.generation != connection.session || self.activate(session).is_err() {
            return;
        }
        let Some(here) = self.with_context(connection.session, |context| context.id()) else {
            return;
        };
        let teller = lanes::default().filter(|lane| lane.activate(session).is_ok());
        teller
            .unwrap_or(self)
            .with_context(connection.session, |context| {
                context.assign_to(slot, here);
                context.flush();
            });
    }
}
