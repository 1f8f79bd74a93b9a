//! Shared connections: after `fork`, several processes have a descriptor of the same connection.
//!
//! The payload of a connection is in the memory of one process at a time. Before another process
//! uses the connection, this other process asks the service (the process `tidelaned`) to migrate
//! the connection: the service moves the payload to the memory of this other process (see
//! `docs/design/fork.md`). A session is the registration of a process with the service. A slot is
//! the record of a connection in the memory that a process shares with the service.

use tidelane_abi::{not_accelerated, program_flags, refusal, service_flags};
use tidelane_client::Refusal;

use super::{
    Inner, Socket, registry,
    state::{Connecting, State},
};
use crate::{
    service::{Channel, Connection, channels, session},
    sys::Errno,
};

/// Prepares a socket for `fork`. Returns true if the parent has to prepare a session for the child.
/// The parent has to do so if the socket has a connection, which the fork makes shared, or if the
/// socket listens in both stacks (service and kernel).
///
/// A child that serves its parent's listener may change its user before the child registers, and
/// the service may not admit the new user. With the prepared session, the child can register
/// nevertheless.
pub(crate) fn share(socket: &'static Socket) -> bool {
    let Some(mut inner) = socket.try_enter() else {
        return false;
    };
    let has = matches!(inner.state, State::Inherited(_)) || inner.connection().is_some();
    inner.shared |= has;
    has || matches!(&inner.state, State::Listening(listening) if !listening.is_kernel_only())
}

/// Sets the state of a socket in a child after fork. `inherits` is true if the parent prepared a
/// session for this process.
pub(crate) fn inherit(socket: &'static Socket, inherits: bool) {
    let mut inner = socket.unlock_after_fork();
    inner.channel = None;
    let connection = inner.connection().map(|held| held.stream.connection());
    let state = std::mem::take(&mut inner.state);
    inner.state = match state {
        State::Listening(listening) => {
            let inherited = listening.inherited();
            // This process must not drop the connections in the accept queue, because they belong
            // to the parent's session.
            std::mem::forget(listening);
            State::Listening(inherited)
        }
        State::Stream(_) | State::Connecting(_) => {
            std::mem::forget(state);
            match connection.filter(|_| inherits) {
                Some(connection) => State::Inherited(connection),
                None => State::LostByFork,
            }
        }
        State::Inherited(_) if !inherits => State::LostByFork,
        other => other,
    };
    inner.shared = matches!(inner.state, State::Inherited(_));
}

impl Inner {
    /// Returns true if other processes have descriptors of the connection, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared_flags() & service_flags::SHARED != 0
    }

    /// Returns true if the connection is in another process.
    pub(crate) fn is_migrated(&self) -> bool {
        self.shared_flags() & service_flags::MIGRATED != 0
    }

    /// Returns true if a call that waits must migrate the connection to this process and look at
    /// the connection: an event is pending, or the service is gone.
    pub(crate) fn must_look_at_migrated(&self) -> bool {
        let flags = self.shared_flags();
        flags & service_flags::EVENT_PENDING != 0
            || flags & service_flags::MIGRATED != 0 && self.has_lost_service()
    }

    /// Returns true if the session of the connection has ended because the service is gone. Then
    /// the connection cannot be migrated back from another process.
    pub(crate) fn has_lost_service(&self) -> bool {
        match &self.state {
            State::Stream(connection)
            | State::Connecting(Connecting {
                connection: Some(connection),
                ..
            }) => connection.session <= session::last_gone(),
            _ => false,
        }
    }

    /// Returns the `service_flags` of a shared connection, or 0 if the connection is not shared.
    fn shared_flags(&self) -> u32 {
        match &self.state {
            _ if !self.shared => 0,
            State::Inherited(_) => service_flags::SHARED | service_flags::MIGRATED,
            State::Stream(connection)
            | State::Connecting(Connecting {
                connection: Some(connection),
                ..
            }) => connection.stream.service_flags(),
            _ => 0,
        }
    }
}

/// Migrates the connection to this process if the connection is in another process, because the
/// program is about to use it.
#[cold]
pub(crate) fn migrate_here(socket: &'static Socket, inner: &mut Inner) {
    let flags = inner.shared_flags();
    if flags & service_flags::SHARED == 0 {
        // All other processes have closed their descriptors of the connection.
        inner.shared = false;
    } else if flags & service_flags::MIGRATED != 0 {
        take(socket, inner);
    }
}

/// Migrates the connection to this process if an event of the connection is pending. Callers that
/// wait for an event use this function. If waiting alone migrated the connection, two waiting
/// processes would take the connection from each other forever.
#[cold]
pub(crate) fn migrate_if_pending(socket: &'static Socket, inner: &mut Inner) {
    let flags = inner.shared_flags();
    if flags & service_flags::MIGRATED == 0 || flags & service_flags::EVENT_PENDING != 0 {
        migrate_here(socket, inner);
    }
}

/// Migrates the connection from another process to this process. Changes nothing if the connection
/// already is in this process. If the service refuses, the socket becomes `LostByFork`.
fn take(socket: &'static Socket, inner: &mut Inner) {
    let (connection, old) = match &inner.state {
        State::Inherited(connection) => (*connection, None),
        State::Stream(old)
        | State::Connecting(Connecting {
            connection: Some(old),
            ..
        }) => (old.stream.connection(), Some(old)),
        _ => return,
    };
    let came = take_to_channel(socket, inner, connection, old);
    // The service also sets the flag MIGRATED for a moment while it refuses a request of another
    // process. The connection is then still in this process (refusal AT_HOME), and this function
    // changes nothing. The sharing may even have ended since.
    let at_home = matches!(came, Err(Refusal::Refused(refusal::AT_HOME)));
    if came.is_err() && old.is_some_and(|old| at_home || old.stream.is_here()) {
        return;
    }
    if let Some(old) = old {
        // The service may already have reused the slot for another socket, which then keeps the
        // slot.
        registry::clear_slot(old.stream.slot(), socket);
    }
    let old = std::mem::replace(&mut inner.state, State::LostByFork);
    if let State::Stream(old)
    | State::Connecting(Connecting {
        connection: Some(old),
        ..
    }) = old
    {
        old.stream.forget();
    }
    inner.shared = false;
    let Ok((mut taken, channel)) = came else {
        return;
    };
    taken.stream.limit_sending(inner.options.sending());
    let flags = taken.stream.flags();
    inner.shut_write = flags & program_flags::SHUT_WRITE != 0;
    inner.shut_read = flags & program_flags::SHUT_READ != 0;
    inner.channel = Some(channel);
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

/// Asks the service to migrate the connection to this process and to one of its channels (rings
/// that this process shares with the service). Prefers the channel of the epoll instance with which
/// the socket is registered. Returns the connection and the channel.
fn take_to_channel(
    socket: &'static Socket,
    inner: &Inner,
    connection: u64,
    old: Option<&Connection>,
) -> Result<(Connection, &'static Channel), Refusal> {
    let session = session::establish().ok_or(Refusal::ServiceGone)?;
    if old.is_some_and(|old| old.session != session.generation) {
        return Err(Refusal::ServiceGone);
    }
    let registered = inner.registrations(socket).next();
    let registered = registered.and_then(|registration| channels::numbered(registration.channel));
    let channel = registered.or(inner.channel).or_else(channels::preferred);
    let limit = || Refusal::Limit(not_accelerated::LIMIT);
    let channel = channel.ok_or_else(limit)?;
    channel.activate(session).map_err(|_| limit())?;
    let context = channel.with_context(session.generation, |context| context.id());
    let program = session.program().ok_or(Refusal::ServiceGone)?;
    let context = context.ok_or(Refusal::ServiceGone)?;
    let mut stream = program.migrate_here(connection, context)?;
    stream.set_urgent_inline(inner.options.urgent_inline());
    let taken = Connection {
        stream,
        session: session.generation,
    };
    Ok((taken, channel))
}

/// Calls `attempt`, which uses the connection, for example reads or writes payload. During the
/// call, a shared connection is marked as busy, so that the service does not migrate the
/// connection. If the connection is in another process, or is moving to another process, returns
/// `None` and does not call `attempt`.
#[inline]
pub(crate) fn attempt(
    inner: &mut Inner,
    attempt: &mut impl FnMut(&mut Inner) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    if !inner.shared {
        return Some(attempt(inner));
    }
    let held = inner.connection().map(|held| held.stream.set_busy());
    if held == Some(false) {
        return None;
    }
    let result = attempt(inner);
    if let Some(held) = inner.connection() {
        held.stream.clear_busy();
    }
    Some(result)
}
