//! Moving the events of a connection to another channel.

use super::{channel::Channel, channels, connection::Connection, session};

impl Channel {
    /// Makes the service report the events of `connection` to this channel.
    ///
    /// The request goes through the default channel whenever possible. The service reads the
    /// channels in any order, so requests through two channels could be carried out in the wrong
    /// order when a connection is added to one epoll instance and soon after to another one.
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
