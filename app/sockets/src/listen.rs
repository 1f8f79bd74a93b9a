//! Listeners in both stacks, and accepting from both.

use std::{collections::VecDeque, os::fd::RawFd, sync::atomic::Ordering};

use tidelane_abi::{OpenOptions, not_accelerated, program_flags, refusal};
use tidelane_client::{ListenerHandle, Refusal};

use crate::{
    Address, arrive,
    errno::{Errno, Handled, TO_KERNEL, fail},
    few::Few,
    lane::{self, Lane},
    options::Options,
    report, session,
    socket::{Connection, Inner, Listening, Socket, State},
    sys, table,
    wait::{self, Deadline},
};

const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
/// After the service refused or went, it is not asked again before this time has passed.
const RETRY_NS: u64 = 1_000_000_000;

/// An accepted connection.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Its descriptor.
    pub fd: RawFd,
    /// The peer's name; None if the kernel knows it.
    pub peer: Option<Address>,
}

/// `listen`: in the kernel, and in the service if it takes the address.
pub fn listen(socket: &'static Socket, fd: RawFd, backlog: i32) -> Handled {
    let mut inner = socket.enter(fd)?;
    match &inner.state {
        State::Fresh | State::Failed => {}
        State::Free | State::Kernel | State::Listening(_) => return TO_KERNEL,
        State::Connecting(_) | State::Stream(_) | State::Inherited(_) | State::Forked => {
            return fail(libc::EINVAL);
        }
    }
    if let Err(error) = sys::listen(fd, backlog) {
        return Some(Err(error));
    }
    let cookie = socket.cookie(inner.generation);
    let opening = inner.options.opening();
    let attached = if inner.options.kernel_only {
        Err(not_accelerated::OPTION)
    } else {
        attach(fd, cookie, backlog, opening)
    };
    match attached {
        Ok(handle) => {
            // Nobody may block in the kernel's accept and miss the service's connections. The
            // program's own idea of O_NONBLOCK is kept in `socket`.
            set_kernel_nonblocking(fd);
            inner.state = State::Listening(Listening::new(handle, backlog, opening));
            drop(inner);
            join_watching_lanes(socket, fd);
            Some(Ok(0))
        }
        Err(reason) => {
            drop(inner);
            if let Err(error) = report::fall_back(fd, "listen", reason) {
                return Some(Err(error));
            }
            crate::descriptors::demote(socket, fd);
            Some(Ok(0))
        }
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

fn set_kernel_nonblocking(fd: RawFd) {
    if let Ok(flags) = sys::fcntl(fd, libc::F_GETFL, 0) {
        let _ = sys::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
    }
}

/// Asks the service to take the listener's port. The error is a [`not_accelerated`] reason.
fn attach(
    fd: RawFd,
    cookie: u64,
    backlog: i32,
    options: OpenOptions,
) -> Result<(ListenerHandle, u32), u32> {
    let session = session::establish().ok_or_else(session::unavailable)?;
    let backlog = backlog.max(0) as u32;
    let fd = crate::borrow(fd);
    match session.program.listen(fd, cookie, backlog, options) {
        Ok(handle) => Ok((handle, session.generation)),
        Err(Refusal::ServiceGone) => Err(not_accelerated::SERVICE_GONE),
        Err(Refusal::Refused(refusal::NOT_ACCELERATED | refusal::NOT_ENTITLED)) => {
            Err(not_accelerated::LOCAL_ADDRESS)
        }
        Err(Refusal::Limit(reason)) => Err(reason),
        Err(_) => Err(not_accelerated::LIMIT),
    }
}

/// An epoll instance had the socket before it listened.
fn join_watching_lanes(socket: &'static Socket, fd: RawFd) {
    let Some(mut inner) = socket.enter(fd) else {
        return;
    };
    let lanes: Vec<_> = inner
        .watches(socket)
        .filter_map(|watch| table::lane_number(watch.lane))
        .collect();
    for lane in lanes {
        join(socket, &mut inner, fd, lane);
    }
}

impl Listening {
    pub(crate) fn new(handle: (ListenerHandle, u32), backlog: i32, opening: OpenOptions) -> Self {
        Self {
            handle: Some(handle),
            backlog,
            opening,
            joined: Few::new(),
            queue: VecDeque::new(),
            arrivals: 0,
            retry_at_ns: 0,
        }
    }

    /// After fork: the parent's listener, to be taken up again when this process wants it.
    pub(crate) fn inherited(backlog: i32, opening: OpenOptions) -> Self {
        Self {
            handle: None,
            backlog,
            opening,
            joined: Few::new(),
            queue: VecDeque::new(),
            arrivals: 0,
            retry_at_ns: 0,
        }
    }
}

/// Connections of the listener shall come to `lane` (also).
pub(crate) fn join(socket: &'static Socket, inner: &mut Inner, fd: RawFd, lane: &'static Lane) {
    let cookie = socket.cookie(inner.generation);
    let State::Listening(listening) = &mut inner.state else {
        return;
    };
    if !listening.revive(fd, cookie) {
        return;
    }
    if listening
        .joined
        .iter()
        .any(|other| std::ptr::eq(other, lane))
    {
        return;
    }
    let before = listening.joined.clone();
    if lane::is_default_among(&before) {
        lane.look_beside();
    }
    listening.joined.push(lane);
    listening.tell_join(cookie, lane);
    if socket.waiters.load(Ordering::SeqCst) > 0 {
        // They sleep where the connections came before, and are to look here, too.
        for other in before.iter() {
            other.wake_sleepers();
        }
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

impl Listening {
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
        let Ok(handle) = attach(fd, cookie, self.backlog, self.opening) else {
            return false;
        };
        self.handle = Some(handle);
        set_kernel_nonblocking(fd);
        for lane in self.joined.iter() {
            self.tell_join(cookie, lane);
        }
        true
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

    /// Closes what the program did not accept, and the service's listener.
    pub(crate) fn close(mut self) {
        let lanes = self.joined.clone();
        if let Some((handle, generation)) = self.handle {
            for lane in lanes.iter() {
                lane.with_context(generation, |context| {
                    let _ = context.listener_leave(handle);
                    context.flush();
                });
            }
            if let Some(session) = session::current()
                && session.generation == generation
            {
                session.program.unlisten(handle);
            }
        }
        for (connection, lane) in self.queue.drain(..) {
            arrive::discard(lane, connection);
        }
    }
}

/// `accept4`: the service's connections first, then the kernel's.
pub fn accept(socket: &'static Socket, fd: RawFd, flags: i32) -> Handled<Accepted> {
    let timeout = {
        let mut inner = socket.enter(fd)?;
        let listening = match &inner.state {
            State::Listening(listening) => listening,
            State::Free | State::Fresh | State::Kernel => return None,
            _ => return fail(libc::EINVAL),
        };
        if !listening.is_attended()
            && let Some(lane) = lane::default_lane()
        {
            join(socket, &mut inner, fd, lane);
        }
        inner.options.receive_timeout_ns
    };
    let mut peer = None;
    let mut attempt = |inner: &mut Inner| take_one(inner, fd, flags, &mut peer);
    let first = attempt(&mut *socket.enter(fd)?);
    let result = match first {
        Err(WOULD_BLOCK) => {
            pump_joined(socket, fd)?;
            let again = attempt(&mut *socket.enter(fd)?);
            if again == Err(WOULD_BLOCK) && socket.blocks() {
                let deadline = Deadline::after(timeout);
                wait::blocking(socket, fd, deadline, Some(fd), attempt)?
            } else {
                again
            }
        }
        other => other,
    };
    Some(result.map(|fd| Accepted {
        fd: fd as RawFd,
        peer,
    }))
}

/// Looks at the rings of the lanes that joined: there may be a connection in them.
fn pump_joined(socket: &'static Socket, fd: RawFd) -> Option<()> {
    let lanes = wait::lanes_of(&*socket.enter(fd)?);
    for lane in lanes.iter() {
        lane.pump();
    }
    Some(())
}

impl Listening {
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

/// One connection, or EAGAIN.
fn take_one(
    inner: &mut Inner,
    fd: RawFd,
    flags: i32,
    peer: &mut Option<Address>,
) -> Result<usize, Errno> {
    let State::Listening(listening) = &mut inner.state else {
        return Err(Errno(libc::EINVAL));
    };
    if listening.queue.is_empty() {
        let accepted = sys::accept4(fd, flags)?;
        session::note(accepted, not_accelerated::KERNEL_PEER);
        return Ok(accepted as usize);
    }
    let new_fd = session::placeholder(flags & libc::SOCK_CLOEXEC != 0)?;
    let Some(socket) = table::new_socket() else {
        let _ = sys::close(new_fd);
        return Err(Errno(libc::ENFILE));
    };
    let handle = listening.handle;
    let Some((connection, lane)) = listening.queue.pop_front() else {
        return Err(WOULD_BLOCK);
    };
    let names = connection.stream.names();
    *peer = Some(Address {
        addr: names.peer_addr,
        port: names.peer_port,
        inet6: inner.inet6,
    });
    socket
        .nonblocking
        .store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
    let options = inner.options.inherited();
    hand_out(socket, connection, lane, options, handle);
    socket.lock().inet6 = inner.inet6;
    table::set_socket(new_fd, Some(socket));
    Ok(new_fd as usize)
}

/// Turns an accepted connection into a socket, and tells the service that it was taken.
fn hand_out(
    socket: &'static Socket,
    mut connection: Connection,
    lane: &'static Lane,
    options: Options,
    handle: Option<(ListenerHandle, u32)>,
) {
    let (slot, session) = (connection.stream.slot(), connection.session);
    connection.stream.set_flag(program_flags::TAKEN);
    connection.stream.set_urgent_inline(options.urgent_inline());
    lane.with_context(session, |context| {
        if let Some((listener, _)) = handle {
            context.accept_taken(listener, slot);
        }
        context.submit(&mut connection.stream);
    });
    socket.start(!socket.blocks(), State::Stream(connection));
    let mut inner = socket.lock();
    inner.lane = Some(lane);
    inner.options = options;
    drop(inner);
    table::set_slot(slot, socket);
}
