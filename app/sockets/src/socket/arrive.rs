//! Events about connections that come into being.

use tidelane_client::{ClientEvent, StreamOptions};

use super::{
    Inner, Socket,
    options::Options,
    registry,
    state::{Connecting, State},
};
use crate::service::{Connection, Lane, session};

/// A connection as an event announces it.
#[derive(Clone, Copy)]
struct Announced {
    session: u32,
    slot: u32,
    generation: u32,
    cookie: u64,
}

/// Handles an event other than `Ready`. Returns the socket that has news.
pub(crate) fn control_event(
    lane: &'static Lane,
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
            lane,
            Announced {
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
            lane,
            Announced {
                session,
                slot,
                generation,
                cookie,
            },
        ),
        // The slot was taken away from its socket at close.
        ClientEvent::Released { slot: _ } | ClientEvent::Ready { slot: _ } => None,
    }
}

impl Announced {
    fn take_up(self, options: &Options) -> Option<Connection> {
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

    /// Ends a connection that nobody takes.
    fn discard(self, lane: &'static Lane) {
        if let Some(connection) = self.take_up(&Options::DEFAULT) {
            discard(lane, connection);
        }
    }
}

fn connect_started(
    lane: &'static Lane,
    announced: Announced,
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
        let mut connection = announced.take_up(options)?;
        if connection.stream.submit_due() {
            lane.submit_now(&mut connection);
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
    // The program closed the socket before its connect began.
    announced.discard(lane);
    None
}

fn accepted(lane: &'static Lane, announced: Announced) -> Option<&'static Socket> {
    if let Some((socket, mut inner)) = Socket::of_cookie(announced.cookie)
        && let Inner {
            state: State::Listening(listening),
            options,
            ..
        } = &mut *inner
    {
        let connection = announced.take_up(options)?;
        listening.queue.push_back((connection, lane));
        listening.arrivals += 1;
        return Some(socket);
    }
    announced.discard(lane);
    None
}

/// Ends a connection that nobody takes.
pub(crate) fn discard(lane: &'static Lane, mut connection: Connection) {
    connection.stream.close(true, None);
    lane.submit_now(&mut connection);
}
