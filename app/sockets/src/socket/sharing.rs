//! Connections that several processes hold, after `fork`.
//!
//! A connection is in the memory of one of its processes: whoever uses it takes it. See
//! `docs/design/fork.md`.

use tidelane_abi::{program_flags, service_flags};

use super::{
    Inner, Socket, registry,
    state::{Connecting, State},
};
use crate::{
    service::{Connection, Lane, lanes, session},
    sys::Errno,
};

/// Returns true if the child needs a session that comes from its parent: the socket has a
/// connection, which is shared from now on, or listens in both stacks. A worker that serves a
/// listener of its parent may have become a user who could not connect to the service.
pub(crate) fn share(socket: &'static Socket) -> bool {
    let Some(mut inner) = socket.visit() else {
        return false;
    };
    let has = matches!(inner.state, State::Inherited(_)) || inner.connection().is_some();
    inner.shared |= has;
    has || matches!(&inner.state, State::Listening(listening) if !listening.is_kernels())
}

/// For the child after fork: what the socket is here. `inherits`: the parent had a session made
/// for this process.
pub(crate) fn inherit(socket: &'static Socket, inherits: bool) {
    let mut inner = socket.unlock_after_fork();
    inner.lane = None;
    let connection = inner.connection().map(|held| held.stream.connection());
    let state = std::mem::take(&mut inner.state);
    inner.state = match state {
        State::Listening(listening) => {
            let inherited = listening.inherited();
            // Its queue holds connections of the parent's.
            std::mem::forget(listening);
            State::Listening(inherited)
        }
        State::Stream(_) | State::Connecting(_) => {
            std::mem::forget(state);
            match connection.filter(|_| inherits) {
                Some(connection) => State::Inherited(connection),
                None => State::Forked,
            }
        }
        State::Inherited(_) if !inherits => State::Forked,
        other => other,
    };
    inner.shared = matches!(inner.state, State::Inherited(_));
}

impl Inner {
    /// Whether other processes hold the connection too.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared_flags() & service_flags::SHARED != 0
    }

    /// Whether another process has the connection.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.shared_flags() & service_flags::ELSEWHERE != 0
    }

    /// Returns true if the service is gone that let another process have the connection.
    pub(crate) fn is_orphaned(&self) -> bool {
        match &self.state {
            State::Stream(connection)
            | State::Connecting(Connecting {
                connection: Some(connection),
                ..
            }) => connection.session <= session::last_gone(),
            _ => false,
        }
    }

    fn shared_flags(&self) -> u32 {
        match &self.state {
            _ if !self.shared => 0,
            State::Inherited(_) => service_flags::SHARED | service_flags::ELSEWHERE,
            State::Stream(connection)
            | State::Connecting(Connecting {
                connection: Some(connection),
                ..
            }) => connection.stream.service_flags(),
            _ => 0,
        }
    }
}

/// The program uses the connection: if another process has it, it comes here.
#[cold]
pub(crate) fn bring_here(socket: &'static Socket, inner: &mut Inner) {
    let flags = inner.shared_flags();
    if flags & service_flags::SHARED == 0 {
        // The others are gone.
        inner.shared = false;
    } else if flags & service_flags::ELSEWHERE != 0 {
        take(socket, inner);
    }
}

/// The program waits for the connection: if something happened to it elsewhere, it comes here. (Not
/// without that: two processes that wait for the same connection must not take it from each other
/// for ever.)
#[cold]
pub(crate) fn bring_news(socket: &'static Socket, inner: &mut Inner) {
    let flags = inner.shared_flags();
    if flags & service_flags::ELSEWHERE == 0 || flags & service_flags::NEWS != 0 {
        bring_here(socket, inner);
    }
}

fn take(socket: &'static Socket, inner: &mut Inner) {
    let old = match std::mem::replace(&mut inner.state, State::Forked) {
        State::Inherited(connection) => (connection, None),
        State::Stream(old) => (old.stream.connection(), Some(old)),
        State::Connecting(Connecting {
            connection: Some(old),
            ..
        }) => (old.stream.connection(), Some(old)),
        other => {
            inner.state = other;
            return;
        }
    };
    let (connection, old) = old;
    if let Some(old) = &old {
        // The slot may be another connection's as soon as the service has the request.
        registry::clear_slot(old.stream.slot(), socket);
    }
    let came = take_to_lane(socket, inner, connection, old.as_ref());
    if let Some(old) = old {
        old.stream.forget();
    }
    inner.shared = false;
    let Some((mut taken, lane)) = came else {
        return;
    };
    taken.stream.limit_sending(inner.options.sending());
    let flags = taken.stream.flags();
    inner.shut_write = flags & program_flags::SHUT_WRITE != 0;
    inner.shut_read = flags & program_flags::SHUT_READ != 0;
    inner.lane = Some(lane);
    registry::set_slot(taken.stream.slot(), socket);
    inner.shared = taken.stream.service_flags() & service_flags::SHARED != 0;
    inner.state = if taken.stream.established() {
        State::Stream(taken)
    } else {
        State::Connecting(Connecting {
            session: taken.session,
            connection: Some(taken),
            kernel: None,
            syn_room: 0,
        })
    };
}

/// Asks the service for the connection, for the lane where its events are waited for.
fn take_to_lane(
    socket: &'static Socket,
    inner: &Inner,
    connection: u64,
    old: Option<&Connection>,
) -> Option<(Connection, &'static Lane)> {
    let session = session::establish()?;
    if old.is_some_and(|old| old.session != session.generation) {
        return None;
    }
    let watched = inner.watches(socket).next();
    let watched = watched.and_then(|watch| lanes::numbered(watch.lane));
    let lane = watched.or(inner.lane).or_else(lanes::expected)?;
    lane.activate(session).ok()?;
    let context = lane.with_context(session.generation, |context| context.id())?;
    let mut stream = session.program()?.take(connection, context).ok()?;
    stream.set_urgent_inline(inner.options.urgent_inline());
    let taken = Connection {
        stream,
        session: session.generation,
    };
    Some((taken, lane))
}

/// An attempt to move bytes, during which the connection is not taken away. EAGAIN if it was.
#[inline]
pub(crate) fn attempt(
    inner: &mut Inner,
    attempt: &mut impl FnMut(&mut Inner) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if !inner.shared {
        return attempt(inner);
    }
    let held = inner.connection().map(|held| held.stream.hold());
    if held == Some(false) {
        return Err(Errno(libc::EAGAIN));
    }
    let result = attempt(inner);
    if let Some(held) = inner.connection() {
        held.stream.release();
    }
    result
}
