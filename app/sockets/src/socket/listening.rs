//! Listeners. A tracked socket is a TCP socket of the program that this crate may accelerate. The
//! socket listens at the same port in two stacks: in the service (the process `tidelaned`), and in
//! the kernel for connections over other interfaces. This file is about the service's listener, its
//! channels, and its accept queue.
//!
//! A channel is a set of rings that this process shares with the service. The service delivers the
//! connections of a listener to the channels that have joined the listener. A session is the
//! registration of this process with one service.

use std::{collections::VecDeque, os::fd::RawFd};

use tidelane_abi::{OpenOptions, not_accelerated, refusal};
use tidelane_client::{Listen, ListenerHandle, Refusal};

use super::{
    Inner, Socket, arrive, registry,
    state::{Listening, State},
};
use crate::{
    service::{Channel, default_polling, exceptions, outage, session, within_host},
    sys::{self, Section, SmallVec},
    table,
};

/// Shortest time in nanoseconds between two attempts of `reattach` for the same listener. When a
/// new service runs, `find_service` makes an attempt without this wait.
const RETRY_NS: u64 = 1_000_000_000;
/// `Listening::retry_at_ns` of a listener that is left to the kernel.
pub(crate) const NEVER: u64 = u64::MAX;

impl Listening {
    /// Creates a listener of this process. `handle` is `None` while there is no service.
    pub(crate) fn new(
        handle: Option<(ListenerHandle, u32)>,
        backlog: i32,
        opening: OpenOptions,
    ) -> Self {
        outage::note_listener();
        Self {
            handle,
            wants_service: true,
            backlog,
            opening,
            joined: SmallVec::new(),
            queue: VecDeque::new(),
            queued_count: 0,
            retry_at_ns: 0,
        }
    }

    /// Returns the copy of this listener for a child after fork. The child asks the service to
    /// listen when it first uses the listener.
    pub(crate) fn inherited(&self) -> Self {
        let retry_at_ns = if self.is_kernel_only() { NEVER } else { 0 };
        Self {
            handle: None,
            wants_service: false,
            backlog: self.backlog,
            opening: self.opening,
            joined: SmallVec::new(),
            queue: VecDeque::new(),
            queued_count: 0,
            retry_at_ns,
        }
    }

    /// Returns true if the current service has the listener. If the service does not have the
    /// listener yet, first asks the service to listen, but at most once in [`RETRY_NS`].
    fn reattach(&mut self, fd: RawFd, cookie: u64) -> bool {
        let known = session::current().map(|session| session.generation);
        if let Some((_, session)) = self.handle
            && known == Some(session)
        {
            return true;
        }
        let now = sys::monotonic_ns();
        // After a `shutdown` by another process, wait for the next `listen` of any process.
        if now < self.retry_at_ns || !is_listening(fd) {
            return false;
        }
        self.retry_at_ns = now + RETRY_NS;
        let handle = match attach(fd, cookie, self.backlog, self.opening) {
            Ok(handle) => handle,
            Err(not_accelerated::FORKS) => {
                self.retry_at_ns = NEVER;
                return false;
            }
            Err(_) => return false,
        };
        self.handle = Some(handle);
        self.want_service();
        set_kernel_nonblocking(fd, true);
        for channel in self.joined.iter() {
            self.send_join(cookie, channel);
        }
        true
    }

    /// Makes the process look for the next service on behalf of this listener.
    fn want_service(&mut self) {
        if !std::mem::replace(&mut self.wants_service, true) {
            outage::note_listener();
        }
    }

    /// Asks the service to deliver the listener's connections to `channel`.
    fn send_join(&self, cookie: u64, channel: &'static Channel) {
        let Some((handle, generation)) = self.handle else {
            return;
        };
        let session = session::current().filter(|session| session.generation == generation);
        let Some(session) = session else { return };
        if channel.activate(session).is_err() {
            return;
        }
        channel.with_context(generation, |context| {
            let _ = context.listener_join(handle, cookie);
            context.flush();
        });
    }

    /// Gives up the service's listener for good, so that this process gets further connections only
    /// from the kernel. The program can still accept the connections in the accept queue.
    pub(crate) fn leave_to_kernel(&mut self) {
        let _section = Section::enter();
        let channels = self.joined.clone();
        self.retry_at_ns = NEVER;
        if std::mem::take(&mut self.wants_service) {
            outage::forget_listener();
        }
        if let Some((handle, generation)) = self.handle.take() {
            for channel in channels.iter() {
                channel.with_context(generation, |context| {
                    let _ = context.listener_leave(handle);
                    context.flush();
                });
            }
            if let Some(session) = session::current()
                && session.generation == generation
                && let Some(program) = session.program()
            {
                program.unlisten(handle);
            }
        }
    }

    /// Returns true if the listener is left to the kernel for good.
    pub(crate) fn is_kernel_only(&self) -> bool {
        self.retry_at_ns == NEVER
    }

    /// Gives up the service's listener, and aborts the connections in the accept queue.
    pub(crate) fn close(mut self) {
        self.leave_to_kernel();
        for (connection, channel) in self.queue.drain(..) {
            arrive::discard(channel, connection);
        }
    }

    /// Returns true if the service delivers connections of the listener to a channel.
    pub(crate) fn is_joined(&self) -> bool {
        !self.joined.is_empty() && self.is_attached()
    }

    /// Returns true if the current service has the listener.
    fn is_attached(&self) -> bool {
        let session = session::current().map(|session| session.generation);
        self.handle
            .is_some_and(|(_, generation)| Some(generation) == session)
    }
}

/// Offers the process's listeners to a new service, if a new service runs. A thread that is about
/// to sleep calls this function, and holds no lock meanwhile.
#[inline]
pub(crate) fn seek_service() {
    if outage::seeks_service() {
        find_service();
    }
}

/// Registers with a new service, and asks this service to listen for each listener that wants a
/// service.
#[cold]
fn find_service() {
    let Some(session) = session::establish() else {
        return;
    };
    outage::note_offered(session.generation);
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd)
            && let Some(mut inner) = socket.enter(fd)
        {
            let cookie = socket.cookie(inner.generation);
            if let State::Listening(listening) = &mut inner.state
                && listening.wants_service
            {
                listening.retry_at_ns = 0;
                listening.reattach(fd, cookie);
            }
        }
    }
}

/// Makes the service deliver connections of the listener to `channel`, too. Returns the channels
/// that joined before. The caller has to wake the threads that wait for the listener on these
/// channels, so that they also wait on `channel`. Returns no channels if `channel` has already
/// joined, or if the listener is left to the kernel.
#[must_use]
pub(crate) fn join(
    socket: &'static Socket,
    inner: &mut Inner,
    fd: RawFd,
    channel: &'static Channel,
) -> SmallVec<&'static Channel> {
    let cookie = socket.cookie(inner.generation);
    let State::Listening(listening) = &mut inner.state else {
        return SmallVec::new();
    };
    let is_attached = listening.reattach(fd, cookie);
    if listening.retry_at_ns == NEVER
        || listening
            .joined
            .iter()
            .any(|other| std::ptr::eq(other, channel))
    {
        return SmallVec::new();
    }
    let before = listening.joined.clone();
    default_polling::joined(channel, &before);
    // Without a service, `reattach` makes the channel join when the next service runs.
    listening.joined.push(channel);
    if is_attached {
        listening.send_join(cookie, channel);
    } else {
        listening.want_service();
    }
    before
}

/// Makes `channel` join the listener as [`join`] does, if no channel has joined the listener yet.
/// If a channel has already joined, returns no channels, and only asks the current service to
/// listen in case the service does not have the listener yet.
#[must_use]
pub(crate) fn ensure_joined(
    socket: &'static Socket,
    inner: &mut Inner,
    fd: RawFd,
    channel: &'static Channel,
) -> SmallVec<&'static Channel> {
    let cookie = socket.cookie(inner.generation);
    match &mut inner.state {
        State::Listening(listening) if !listening.joined.is_empty() => {
            listening.reattach(fd, cookie);
            SmallVec::new()
        }
        _ => join(socket, inner, fd, channel),
    }
}

/// Stops the delivery of the listener's connections to `channel`.
pub(crate) fn leave(inner: &mut Inner, channel: &'static Channel) {
    let State::Listening(listening) = &mut inner.state else {
        return;
    };
    if !listening
        .joined
        .remove(|other| std::ptr::eq(other, channel))
    {
        return;
    }
    if let Some((handle, session)) = listening.handle {
        channel.with_context(session, |context| {
            let _ = context.listener_leave(handle);
            context.flush();
        });
    }
}

/// Updates the options that new connections of a listener start with, after the program has set an
/// option or the backlog. If these options are unchanged, the service gets a request only if
/// `again` is true. The caller sets `again` after a change of the backlog, and after a change of an
/// option that the service itself reads from the kernel socket.
pub(crate) fn options_changed(socket: &Socket, inner: &mut Inner, fd: RawFd, again: bool) {
    let cookie = socket.cookie(inner.generation);
    let opening = inner.options.opening();
    let State::Listening(listening) = &mut inner.state else {
        return;
    };
    if listening.opening == opening && !again {
        return;
    }
    listening.opening = opening;
    if listening.is_attached()
        && let Ok(handle) = attach(fd, cookie, listening.backlog, opening)
    {
        listening.handle = Some(handle);
    }
}

/// Suspends the service's listener of the kernel socket `fd`. The caller has made sure that the
/// kernel socket does not listen. The suspension holds for all processes that have the socket, and
/// ends when one of them calls `listen`. A process that does not hold the service's listener may
/// also call this function. If the service has no listener of the socket, nothing happens.
pub(crate) fn suspend(fd: RawFd) {
    let _section = Section::enter();
    if let Some(session) = session::establish()
        && let Some(program) = session.program()
    {
        program.suspend_listener(sys::borrow(fd));
    }
}

/// Asks the service to listen at the port of the kernel socket `fd`. Returns the service's listener
/// and its session. The error is a [`not_accelerated`] reason.
pub(crate) fn attach(
    fd: RawFd,
    cookie: u64,
    backlog: i32,
    options: OpenOptions,
) -> Result<(ListenerHandle, u32), u32> {
    let _section = Section::enter();
    // Register even if the listener is left to the kernel, so that the caller can report the reason
    // to the service.
    let session = session::establish();
    if let Some(reason) = exceptions::of_listener(fd) {
        return Err(reason);
    }
    let session = session.ok_or_else(session::unavailable)?;
    let program = session.program().ok_or(not_accelerated::SERVICE_GONE)?;
    let listen = Listen {
        cookie,
        backlog: backlog.max(0) as u32,
        options,
        within_host: within_host::is_chosen(&program),
    };
    match program.listen(sys::borrow(fd), &listen) {
        Ok(handle) => Ok((handle, session.generation)),
        Err(Refusal::ServiceGone) => Err(not_accelerated::SERVICE_GONE),
        Err(Refusal::Refused(refusal::NOT_ACCELERATED | refusal::NOT_ENTITLED)) => {
            Err(not_accelerated::LOCAL_ADDRESS)
        }
        Err(Refusal::Refused(refusal::FORKS)) => Err(not_accelerated::FORKS),
        Err(Refusal::Limit(reason)) => Err(reason),
        Err(_) => Err(not_accelerated::LIMIT),
    }
}

/// Returns true if the kernel socket listens.
fn is_listening(fd: RawFd) -> bool {
    sys::socket_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

/// Makes the kernel socket non-blocking or blocking. The kernel socket of a listener in both stacks
/// is non-blocking, so that no thread blocks in the kernel's `accept` while a connection of the
/// service is pending.
pub(crate) fn set_kernel_nonblocking(fd: RawFd, nonblocking: bool) {
    const O_NONBLOCK: usize = libc::O_NONBLOCK as usize;
    if let Ok(flags) = sys::fcntl(fd, libc::F_GETFL, 0) {
        let wanted = match nonblocking {
            true => flags | O_NONBLOCK,
            false => flags & !O_NONBLOCK,
        };
        if wanted != flags {
            let _ = sys::fcntl(fd, libc::F_SETFL, wanted);
        }
    }
}

/// Makes the kernel socket of a blocking socket blocking again. Does nothing if the kernel socket
/// listens, because another process may listen in both stacks with the same kernel socket, which
/// must then stay non-blocking.
pub(crate) fn restore_blocking(socket: &Socket, fd: RawFd) {
    if socket.blocks() && !is_listening(fd) {
        set_kernel_nonblocking(fd, false);
        // Another process may have called `listen` meanwhile.
        if is_listening(fd) {
            set_kernel_nonblocking(fd, true);
        }
    }
}
