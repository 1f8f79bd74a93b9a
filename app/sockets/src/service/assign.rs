//! Assignment of a connection to another channel. A channel is a set of rings over which this
//! process exchanges requests and events with the service (the process `tidelaned`). These rings
//! are the channel's context, which the service provides.

use super::{channel::Channel, channels, connection::Connection, session};

impl Channel {
    /// Makes the service report the events of `connection` to this channel.
    ///
    /// The request goes through the default channel, the channel of sockets in no epoll instance.
    /// If the default channel cannot get a context, the request goes through this channel.
    ///
    /// A program may add a connection to one epoll instance and soon after to another epoll
    /// instance. If the two requests went through two channels, the service could carry them out in
    /// the wrong order.
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
        let channel = channels::default().filter(|channel| channel.activate(session).is_ok());
        channel
            .unwrap_or(self)
            .with_context(connection.session, |context| {
                context.assign_to(slot, here);
                context.flush();
            });
    }
}
