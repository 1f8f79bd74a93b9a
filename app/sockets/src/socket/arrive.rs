//! Handling of events about new connections: the answers to connect requests, and the connections
//! of listeners. The events arrive on a channel, a set of rings that this process shares with the
//! service (the process `tidelaned`).

use tidelane_client::{ClientEvent, StreamOptions};

use super::{
    Inner, Socket,
    options::Options,
    registry,
    state::{Connecting, State},
};
use crate::service::{Channel, Connection, session};

/// A connection that an event announces.
///
/// The event arrived in the session (registration of this process with the service) with the number
/// `session`. `slot` and `generation` identify the slot, which is the connection's record in shared
/// memory. `cookie` identifies the socket or the listener to which the connection belongs.
#[derive(Clone, Copy)]
struct AnnouncedConnection {
    session: u32,
    slot: u32,
    generation: u32,
    cookie: u64,
}

/// Handles an event about a new connection. Returns the socket whose readiness the event may have
/// changed. Does nothing for `Ready` (a change of an existing connection) and `Released`.
pub(crate) fn control_event(
    channel: &'static Channel,
    session: u32,
    event: ClientEvent,
) -> Option<&'static Socket> {
    match event {
        ClientEvent::ConnectStarted {
            cookie,
            slot,
            generation,
            syn_room,
        } => connect_started(
            channel,
            AnnouncedConnection {
                session,
                slot,
                generation,
                cookie,
            },
            syn_room,
        ),
        ClientEvent::ConnectFailed { cookie, cause } => {
            let (socket, mut inner) = Socket::of_cookie(cookie)?;
            if matches!(inner.state, State::Connecting(_)) {
                inner.fail_connect(cause);
            }
            Some(socket)
        }
        ClientEvent::ConnectKernel { cookie, reason } => {
            let (socket, mut inner) = Socket::of_cookie(cookie)?;
            if let State::Connecting(connecting) = &mut inner.state {
                connecting.kernel = Some(reason);
            }
            Some(socket)
        }
        ClientEvent::Accepted {
            cookie,
            listener: _,
            slot,
            generation,
        } => accepted(
            channel,
            AnnouncedConnection {
                session,
                slot,
                generation,
                cookie,
            },
        ),
        // `Released` needs no handling: either `close` has already removed the slot from the
        // registry, or the next connection in the slot replaces the slot's entry there.
        ClientEvent::Released { slot: _ } | ClientEvent::Ready { slot: _ } => None,
    }
}

impl AnnouncedConnection {
    /// Creates the connection. Returns `None` if another session has replaced the connection's
    /// session, or if there is no slot with this number.
    fn into_connection(self, options: &Options) -> Option<Connection> {
        let session = session::last().filter(|last| last.generation == self.session)?;
        let flags = options.program_flags();
        let mut stream = session
            .program()?
            .stream(self.slot, self.generation, flags)?;
        stream.set_urgent_inline(options.urgent_inline());
        let more = options.for_stream();
        if more != StreamOptions::default() {
            stream.set_options(&more);
        }
        Some(Connection {
            stream,
            session: self.session,
        })
    }

    /// Aborts a connection that no socket takes.
    fn discard(self, channel: &'static Channel) {
        if let Some(connection) = self.into_connection(&Options::DEFAULT) {
            discard(channel, connection);
        }
    }
}

/// Handles CONNECT_STARTED: assigns the connection to its socket. `syn_room` is the number of
/// payload bytes that the SYN can carry, or 0 if the SYN does not wait for payload.
fn connect_started(
    channel: &'static Channel,
    announced: AnnouncedConnection,
    syn_room: u32,
) -> Option<&'static Socket> {
    if let Some((socket, mut inner)) = Socket::of_cookie(announced.cookie)
        && let Inner {
            state: State::Connecting(connecting),
            options,
            ..
        } = &mut *inner
        && connecting.connection.is_none()
    {
        let mut connection = announced.into_connection(options)?;
        if connection.stream.submit_due() {
            channel.submit_now(&mut connection);
        }
        registry::set_slot(announced.slot, socket);
        *connecting = Connecting {
            session: announced.session,
            connection: Some(connection),
            kernel: None,
            syn_room,
        };
        return Some(socket);
    }
    // No socket waits for this answer, for example because the program has closed the socket.
    announced.discard(channel);
    None
}

/// Handles ACCEPTED: puts the connection into the accept queue of its listener.
fn accepted(channel: &'static Channel, announced: AnnouncedConnection) -> Option<&'static Socket> {
    if let Some((socket, mut inner)) = Socket::of_cookie(announced.cookie)
        && let Inner {
            state: State::Listening(listening),
            options,
            ..
        } = &mut *inner
    {
        let connection = announced.into_connection(options)?;
        listening.queue.push_back((connection, channel));
        listening.queued_count += 1;
        return Some(socket);
    }
    announced.discard(channel);
    None
}

/// Aborts a connection that no socket takes.
pub(crate) fn discard(channel: &'static Channel, mut connection: Connection) {
    connection.stream.close(true, None);
    channel.submit_now(&mut connection);
}
