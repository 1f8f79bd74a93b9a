//! Assignment of a connection to another channel, over which the service (the process `tidelaned`)
//! then reports the connection's events. A channel has a context: the rings over which this process
//! exchanges requests and events with the service. A session is the registration of this process
//! with the service.

use super::{channel::Channel, channels, connection::Connection, session};

impl Channel {
    /// Makes the service report the events of `connection` to this channel.
    ///
    /// A program may add a connection to one epoll instance and soon after to another instance.
    /// Each of the two additions makes a request. If the two requests went through two channels,
    /// the service could carry out the requests in the wrong order. Both requests therefore go
    /// through the default channel, which also serves the sockets in no epoll instance. A request
    /// goes through this channel only if the default channel cannot get a context.
    ///
    /// Returns false, and assigns nothing, if this channel cannot get a context of the connection's
    /// session.
    pub(crate) fn take_over(&'static self, connection: &Connection) -> bool {
        let slot = connection.stream.slot();
        let Some(session) = session::last() else {
            return false;
        };
        if session.generation != connection.session || self.activate(session).is_err() {
            return false;
        }
        let Some(here) = self.with_context(connection.session, |context| context.id()) else {
            return false;
        };
        let channel = channels::default().filter(|channel| channel.activate(session).is_ok());
        let sent = channel
            .unwrap_or(self)
            .with_context(connection.session, |context| {
                context.assign_to(slot, here);
                context.flush();
            });
        sent.is_some()
    }
}
