//! The calls `listen` and `accept`. A socket listens in two stacks, in the service (the process
//! `tidelaned`) and in the kernel. The program accepts the connections of both stacks from one
//! descriptor.
//!
//! A channel is a set of rings that this process shares with the service. A channel joins a
//! listener to get connections: the service delivers each connection of a listener to one of the
//! channels that have joined the listener.

use std::{os::fd::RawFd, sync::atomic::Ordering};

use tidelane_abi::{not_accelerated, program_flags};
use tidelane_client::ListenerHandle;

use super::descriptors;
use crate::{
    readiness::{
        Instance,
        wait::{self, Deadline},
        wake,
    },
    service::{Channel, Connection, channels, exceptions, report, session},
    socket::{
        Inner, Socket, groups,
        listening::{
            self, attach, ensure_joined, join, restore_blocking, set_kernel_nonblocking, suspend,
        },
        options::Options,
        registry,
        state::{Listening, State},
    },
    sys::{self, Address, Errno, Guard, Handled, Section, TO_KERNEL, fail},
};

/// Result of an attempt to accept a connection while no connection is pending.
const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);

/// An accepted connection.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Descriptor of the connection.
    pub fd: RawFd,
    /// Address of the peer. `None` for a connection that the kernel carries: the caller asks the
    /// kernel with `getpeername`.
    pub peer: Option<Address>,
}

/// Handles EADDRINUSE of a `bind`: waits until the service has released the ports of programs that
/// have ended. Returns true if the service has done so, because a second `bind` may then succeed.
pub fn may_bind_again() -> bool {
    session::await_ended_programs()
}

/// Carries out `listen` of a socket: listens in the kernel, and also in the service unless the
/// listener has to be left to the kernel.
pub fn listen(socket: &'static Socket, fd: RawFd, backlog: i32) -> Handled {
    let _section = Section::enter();
    let mut inner = socket.enter(fd)?;
    match &inner.state {
        State::Fresh | State::Failed => {}
        State::Free | State::Kernel => return TO_KERNEL,
        State::Listening(_) => return Some(listen_again(socket, &mut inner, fd, backlog)),
        State::Connecting(_) | State::Stream(_) | State::Inherited(_) | State::LostByFork => {
            return fail(libc::EINVAL);
        }
    }
    if let Err(error) = listen_nonblocking(socket, fd, backlog) {
        return Some(Err(error));
    }
    let in_group = sys::socket_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1);
    let kernel_only = inner.options.kernel_only || in_group && groups::is_kernel_only(fd);
    let cookie = socket.cookie(inner.generation);
    let opening = inner.options.opening();
    let attached = if kernel_only {
        Err(not_accelerated::OPTION)
    } else {
        attach(fd, cookie, backlog, opening)
    };
    match attached {
        Ok(handle) => Some(Ok(listen_in_both(
            socket,
            inner,
            fd,
            Listening::new(Some(handle), backlog, opening),
        ))),
        // No service runs. The process offers the listener to the next service.
        Err(not_accelerated::SERVICE_GONE) => {
            if let Err(error) = report::fall_back(fd, "listen", not_accelerated::SERVICE_GONE) {
                leave_blocking_to_kernel(socket, fd);
                return Some(Err(error));
            }
            let listening = Listening::new(None, backlog, opening);
            Some(Ok(listen_in_both(socket, inner, fd, listening)))
        }
        Err(reason) => {
            leave_blocking_to_kernel(socket, fd);
            drop(inner);
            if kernel_only && in_group {
                groups::leave_to_kernel(fd);
            }
            if let Err(error) = report::fall_back(fd, "listen", reason) {
                return Some(Err(error));
            }
            descriptors::leave_to_kernel(socket, fd);
            Some(Ok(0))
        }
    }
}

/// Listens in the kernel, and makes the kernel socket non-blocking, for the reason that
/// [`listen_in_both`] gives. Another process may share the socket, and may call `accept` as soon as
/// the kernel listens. The function therefore makes the socket non-blocking before `listen`. The
/// other process may make the socket blocking before the kernel listens, so the function makes the
/// socket non-blocking again after `listen`.
fn listen_nonblocking(socket: &Socket, fd: RawFd, backlog: i32) -> Result<(), Errno> {
    set_kernel_nonblocking(fd, true);
    let mut result = sys::listen(fd, backlog);
    if result == Err(Errno(libc::EADDRINUSE)) {
        // Another process may have shut the socket down without telling the service. The service
        // then still reserves the listener's port.
        suspend(fd);
        result = sys::listen(fd, backlog);
    }
    match result {
        Ok(_) => set_kernel_nonblocking(fd, true),
        Err(_) => restore_blocking(socket, fd),
    }
    result.map(|_| ())
}

/// Makes the kernel socket blocking again after `listen`, unless the program has set O_NONBLOCK.
/// The kernel handles the calls of this socket from now on.
fn leave_blocking_to_kernel(socket: &Socket, fd: RawFd) {
    if socket.blocks() {
        set_kernel_nonblocking(fd, false);
    }
}

/// Sets the state of a socket that listens in the kernel and, as soon as a service runs, also in
/// the service. Returns 0, the result of `listen`.
///
/// The kernel socket must be non-blocking: no thread may block in the kernel's `accept` while a
/// connection of the service is pending. The program's setting of O_NONBLOCK stays in `socket`.
fn listen_in_both(
    socket: &'static Socket,
    mut inner: Guard<'static, Inner>,
    fd: RawFd,
    listening: Listening,
) -> usize {
    inner.state = State::Listening(listening);
    drop(inner);
    join_watching_channels(socket, fd);
    0
}

/// Carries out `listen` on a socket that already listens: changes the backlog in the service and in
/// the kernel.
fn listen_again(
    socket: &Socket,
    inner: &mut Inner,
    fd: RawFd,
    backlog: i32,
) -> Result<usize, Errno> {
    listen_nonblocking(socket, fd, backlog)?;
    if let State::Listening(listening) = &mut inner.state {
        listening.backlog = backlog;
    }
    listening::options_changed(socket, inner, fd, true);
    Ok(0)
}

/// The program may have registered the socket with epoll instances before `listen`. Lets the
/// channel of each of these instances join the listener.
fn join_watching_channels(socket: &'static Socket, fd: RawFd) {
    let Some(mut inner) = socket.enter(fd) else {
        return;
    };
    let channels: Vec<_> = inner
        .registrations(socket)
        .filter_map(|registration| channels::numbered(registration.channel))
        .collect();
    for channel in channels {
        wake::on_channel_joined(socket, &join(socket, &mut inner, fd, channel));
    }
}

/// Carries out `accept4`: takes a pending connection of the service, or of the kernel if no
/// connection of the service is pending.
pub fn accept(socket: &'static Socket, fd: RawFd, flags: i32) -> Handled<Accepted> {
    let _section = Section::enter();
    let timeout = {
        let mut inner = socket.enter(fd)?;
        let listening = match &mut inner.state {
            State::Listening(listening) => listening,
            State::Free | State::Fresh | State::Kernel => return None,
            _ => return fail(libc::EINVAL),
        };
        if let Some((handle, _)) = listening.handle
            && let Some(reason) = exceptions::of_attached_listener(handle)
        {
            listening.leave_to_kernel();
            session::report_not_accelerated(fd, reason);
        }
        if !listening.is_joined()
            && let Some(channel) = channels::default()
        {
            wake::on_channel_joined(socket, &ensure_joined(socket, &mut inner, fd, channel));
        }
        inner.options.receive_timeout_ns
    };
    let mut peer = None;
    let mut attempt = |inner: &mut Inner| accept_one(inner, fd, flags, &mut peer);
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

/// Processes the pending events of the channels that joined the listener. An event may put a
/// connection into the accept queue. Returns `None` if `fd` was closed meanwhile.
fn pump_joined(socket: &'static Socket, fd: RawFd) -> Option<()> {
    let channels = socket.enter(fd)?.channels();
    for channel in channels.iter() {
        Instance::of(channel).pump();
    }
    Some(())
}

/// Accepts a connection, and returns its descriptor. Writes the peer's address to `peer` if the
/// service carries the connection. Returns EAGAIN if no connection is pending.
fn accept_one(
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
        if !listening.is_kernel_only() {
            session::report_not_accelerated(accepted, not_accelerated::KERNEL_PEER);
        }
        return Ok(accepted as usize);
    }
    let new_fd = session::placeholder(flags & libc::SOCK_CLOEXEC != 0)?;
    let Some(socket) = registry::take_free() else {
        let _ = sys::close(new_fd);
        return Err(Errno(libc::ENFILE));
    };
    let handle = listening.handle;
    let Some((connection, channel)) = listening.queue.pop_front() else {
        return Err(WOULD_BLOCK);
    };
    let ids = connection.stream.ids();
    *peer = Some(Address {
        addr: ids.peer_addr,
        port: ids.peer_port,
        inet6: inner.inet6,
    });
    socket
        .nonblocking
        .store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
    let options = inner.options.inherited();
    create_accepted(socket, connection, channel, options, handle).inet6 = inner.inet6;
    registry::set(new_fd, socket);
    Ok(new_fd as usize)
}

/// Assigns a connection from the accept queue to `socket`, a free socket, and tells the service
/// that the queue has room again. `handle` is the service's listener with its session (the
/// registration of this process with the service). Returns the locked socket.
fn create_accepted(
    socket: &'static Socket,
    mut connection: Connection,
    channel: &'static Channel,
    options: Options,
    handle: Option<(ListenerHandle, u32)>,
) -> Guard<'static, Inner> {
    let (slot, session) = (connection.stream.slot(), connection.session);
    connection.stream.set_flag(program_flags::TAKEN);
    connection.stream.set_urgent_inline(options.urgent_inline());
    channel.with_context(session, |context| {
        if let Some((listener, _)) = handle {
            context.accept_taken(listener, slot);
        }
        context.submit(&mut connection.stream);
    });
    let mut inner = socket.start(!socket.blocks(), State::Stream(connection));
    inner.channel = Some(channel);
    inner.options = options;
    registry::set_slot(slot, socket);
    inner
}
