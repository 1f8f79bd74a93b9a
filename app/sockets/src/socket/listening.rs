//! A listener in both stacks: the service's listener, the lanes that joined it, and what they got.

use std::{collections::VecDeque, os::fd::RawFd};

use tidelane_abi::{OpenOptions, not_accelerated, refusal};
use tidelane_client::{Listen, ListenerHandle, Refusal};

use super::{
    Inner, Socket, arrive, registry,
    state::{Listening, State},
};
use crate::{
    service::{Lane, beside, exceptions, outage, session, within_host},
    sys::{self, Few, Section},
    table,
};

/// After the service refused or went, it is not asked again before this time has passed.
const RETRY_NS: u64 = 1_000_000_000;
/// `Listening::retry_at_ns` of a listener that is the kernel's alone.
pub(crate) const NEVER: u64 = u64::MAX;

impl Listening {
    /// A listener of this process. `handle`: the service's, or none while there is no service.
    pub(crate) fn new(
        handle: Option<(ListenerHandle, u32)>,
        backlog: i32,
        opening: OpenOptions,
    ) -> Self {
        outage::note_listener();
        Self {
            handle,
            watched: true,
            backlog,
            opening,
            joined: Few::new(),
            queue: VecDeque::new(),
            arrivals: 0,
            retry_at_ns: 0,
        }
    }

    /// After fork: the parent's listener, to be taken up again when this process wants it.
    pub(crate) fn inherited(&self) -> Self {
        let retry_at_ns = if self.is_kernels() { NEVER } else { 0 };
        Self {
            handle: None,
            watched: false,
            backlog: self.backlog,
            opening: self.opening,
            joined: Few::new(),
            queue: VecDeque::new(),
            arrivals: 0,
            retry_at_ns,
        }
    }

    /// Whether the service has the listener; if it has not (any more), asks it, now and then.
    fn revive(&mut self, fd: RawFd, cookie: u64) -> bool {
        let known = session::current().map(|session| session.generation);
        if let Some((_, session)) = self.handle
            && known == Some(session)
        {
            return true;
        }
        let now = sys::monotonic_ns();
        if now < self.retry_at_ns {
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
        self.watch();
        set_kernel_nonblocking(fd);
        for lane in self.joined.iter() {
            self.tell_join(cookie, lane);
        }
        true
    }

    /// The process looks for the next service for the listener from now on.
    fn watch(&mut self) {
        if !std::mem::replace(&mut self.watched, true) {
            outage::note_listener();
        }
    }

    fn tell_join(&self, cookie: u64, lane: &'static Lane) {
        let Some((handle, generation)) = self.handle else {
            return;
        };
        let session = session::current().filter(|session| session.generation == generation);
        let Some(session) = session else { return };
        if lane.activate(session).is_err() {
            return;
        }
        lane.with_context(generation, |context| {
            let _ = context.listener_join(handle, cookie);
            context.flush();
        });
    }

    /// Ends the service's listener for good. Connections that wait for the program still do.
    pub(crate) fn leave_to_kernel(&mut self) {
        let _section = Section::enter();
        let lanes = self.joined.clone();
        self.retry_at_ns = NEVER;
        if std::mem::take(&mut self.watched) {
            outage::forget_listener();
        }
        if let Some((handle, generation)) = self.handle.take() {
            for lane in lanes.iter() {
                lane.with_context(generation, |context| {
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

    /// Returns true if the kernel has it alone, for good.
    pub(crate) fn is_kernels(&self) -> bool {
        self.retry_at_ns == NEVER
    }

    /// Closes what the program did not accept, and the service's listener.
    pub(crate) fn close(mut self) {
        self.leave_to_kernel();
        for (connection, lane) in self.queue.drain(..) {
            arrive::discard(lane, connection);
        }
    }

    /// Whether some lane gets its connections, as far as the service is there.
    pub(crate) fn is_attended(&self) -> bool {
        !self.joined.is_empty() && self.is_attached()
    }

    fn is_attached(&self) -> bool {
        let session = session::current().map(|session| session.generation);
        self.handle
            .is_some_and(|(_, generation)| Some(generation) == session)
    }
}

/// Gives the process's listeners to a new service, if they have none and there is one. To be called
/// before a thread sleeps, without locks.
#[inline]
pub(crate) fn look_for_service() {
    if outage::is_now() {
        find_service();
    }
}

#[cold]
fn find_service() {
    let Some(session) = session::establish() else {
        return;
    };
    outage::note_end(session.generation);
    for fd in table::descriptors() {
        if let Some(socket) = registry::of(fd)
            && let Some(mut inner) = socket.enter(fd)
        {
            let cookie = socket.cookie(inner.generation);
            if let State::Listening(listening) = &mut inner.state
                && listening.watched
            {
                listening.retry_at_ns = 0;
                listening.revive(fd, cookie);
            }
        }
    }
}

/// Connections of the listener shall come to `lane` (also). Returns the lanes where they came
/// before: threads that wait there for the listener are to look at this one, too.
#[must_use]
pub(crate) fn join(
    socket: &'static Socket,
    inner: &mut Inner,
    fd: RawFd,
    lane: &'static Lane,
) -> Few<&'static Lane> {
    let cookie = socket.cookie(inner.generation);
    let State::Listening(listening) = &mut inner.state else {
        return Few::new();
    };
    let is_attached = listening.revive(fd, cookie);
    if listening.retry_at_ns == NEVER
        || listening
            .joined
            .iter()
            .any(|other| std::ptr::eq(other, lane))
    {
        return Few::new();
    }
    let before = listening.joined.clone();
    beside::joined(lane, &before);
    // Without a service, the lane waits for the next one.
    listening.joined.push(lane);
    if is_attached {
        listening.tell_join(cookie, lane);
    } else {
        listening.watch();
    }
    before
}

/// Asks the service for the listener's connections, if it is not attended: they come to the lanes
/// that joined, and to `lane` if there are none. Returns as [`join`].
#[must_use]
pub(crate) fn attend(
    socket: &'static Socket,
    inner: &mut Inner,
    fd: RawFd,
    lane: &'static Lane,
) -> Few<&'static Lane> {
    let cookie = socket.cookie(inner.generation);
    match &mut inner.state {
        State::Listening(listening) if !listening.joined.is_empty() => {
            listening.revive(fd, cookie);
            Few::new()
        }
        _ => join(socket, inner, fd, lane),
    }
}

/// Connections of the listener shall not come to `lane` any more.
pub(crate) fn leave(inner: &mut Inner, lane: &'static Lane) {
    let State::Listening(listening) = &mut inner.state else {
        return;
    };
    if !listening.joined.remove(|other| std::ptr::eq(other, lane)) {
        return;
    }
    if let Some((handle, session)) = listening.handle {
        lane.with_context(session, |context| {
            let _ = context.listener_leave(handle);
            context.flush();
        });
    }
}

/// An option was set: if the socket listens, its connections to come are to have it. `again`: the
/// service is to look at the socket itself.
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

/// Asks the service to take the listener's port. The error is a [`not_accelerated`] reason.
pub(crate) fn attach(
    fd: RawFd,
    cookie: u64,
    backlog: i32,
    options: OpenOptions,
) -> Result<(ListenerHandle, u32), u32> {
    let _section = Section::enter();
    // Also for a listener that is left to the kernel: the session reports the reason.
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

/// Nobody may block in the kernel's accept and miss the service's connections.
pub(crate) fn set_kernel_nonblocking(fd: RawFd) {
    if let Ok(flags) = sys::fcntl(fd, libc::F_GETFL, 0) {
        let _ = sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
    }
}
