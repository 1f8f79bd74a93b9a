//! Listeners in both stacks, and accepting from both.

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
    service::{Connection, Lane, exceptions, lanes, report, session},
    socket::{
        Inner, Socket, groups,
        listening::{self, attach, attend, join, set_kernel_nonblocking},
        options::Options,
        registry,
        state::{Listening, State},
    },
    sys::{self, Address, Errno, Guard, Handled, Section, TO_KERNEL, fail},
};

const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);

/// An accepted connection.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Its descriptor.
    pub fd: RawFd,
    /// The peer's name; None if the kernel knows it.
    pub peer: Option<Address>,
}

/// The name of a `bind` is in use. Returns true if another attempt may find it free: the service
/// held a port for a program that was killed, and has given it up.
pub fn may_bind_again() -> bool {
    session::await_ended_programs()
}

/// `listen`: in the kernel, and in the service if it takes the address.
pub fn listen(socket: &'static Socket, fd: RawFd, backlog: i32) -> Handled {
    let _section = Section::enter();
    let mut inner = socket.enter(fd)?;
    match &inner.state {
        State::Fresh | State::Failed => {}
        State::Free | State::Kernel => return TO_KERNEL,
        State::Listening(_) => return Some(listen_again(socket, &mut inner, fd, backlog)),
        State::Connecting(_) | State::Stream(_) | State::Inherited(_) | State::Forked => {
            return fail(libc::EINVAL);
        }
    }
    if let Err(error) = sys::listen(fd, backlog) {
        return Some(Err(error));
    }
    let in_group = sys::socket_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1);
    let kernel_only = inner.options.kernel_only || in_group && groups::is_kernels(fd);
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
        // The next service is to have it.
        Err(not_accelerated::SERVICE_GONE) => {
            if let Err(error) = report::fall_back(fd, "listen", not_accelerated::SERVICE_GONE) {
                return Some(Err(error));
            }
            let listening = Listening::new(None, backlog, opening);
            Some(Ok(listen_in_both(socket, inner, fd, listening)))
        }
        Err(reason) => {
            drop(inner);
            if kernel_only && in_group {
                groups::leave_to_kernel(fd);
            }
            if let Err(error) = report::fall_back(fd, "listen", reason) {
                return Some(Err(error));
            }
            descriptors::demote(socket, fd);
            Some(Ok(0))
        }
    }
}

/// The socket listens in the kernel, and in the service, now or when there is one.
fn listen_in_both(
    socket: &'static Socket,
    mut inner: Guard<'static, Inner>,
    fd: RawFd,
    listening: Listening,
) -> usize {
    // Nobody may block in the kernel's accept and miss the service's connections. The program's own
    // idea of O_NONBLOCK is kept in `socket`.
    set_kernel_nonblocking(fd);
    inner.state = State::Listening(listening);
    drop(inner);
    join_watching_lanes(socket, fd);
    0
}

/// `listen` of a listener: the backlog changes in both stacks.
fn listen_again(
    socket: &Socket,
    inner: &mut Inner,
    fd: RawFd,
    backlog: i32,
) -> Result<usize, Errno> {
    sys::listen(fd, backlog)?;
    if let State::Listening(listening) = &mut inner.state {
        listening.backlog = backlog;
    }
    listening::options_changed(socket, inner, fd, true);
    Ok(0)
}

/// An epoll instance had the socket before it listened.
fn join_watching_lanes(socket: &'static Socket, fd: RawFd) {
    let Some(mut inner) = socket.enter(fd) else {
        return;
    };
    let lanes: Vec<_> = inner
        .watches(socket)
        .filter_map(|watch| lanes::numbered(watch.lane))
        .collect();
    for lane in lanes {
        wake::joined(socket, &join(socket, &mut inner, fd, lane));
    }
}

/// `accept4`: the service's connections first, then the kernel's.
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
            && let Some(reason) = exceptions::of_served(handle)
        {
            listening.leave_to_kernel();
            session::note(fd, reason);
        }
        if !listening.is_attended()
            && let Some(lane) = lanes::default()
        {
            wake::joined(socket, &attend(socket, &mut inner, fd, lane));
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
    let lanes = socket.enter(fd)?.lanes();
    for lane in lanes.iter() {
        Instance::of(lane).pump();
    }
    Some(())
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
        if !listening.is_kernels() {
            session::note(accepted, not_accelerated::KERNEL_PEER);
        }
        return Ok(accepted as usize);
    }
    let new_fd = session::placeholder(flags & libc::SOCK_CLOEXEC != 0)?;
    let Some(socket) = registry::take_free() else {
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
    hand_out(socket, connection, lane, options, handle).inet6 = inner.inet6;
    registry::set(new_fd, socket);
    Ok(new_fd as usize)
}

/// Turns an accepted connection into a socket, and tells the service that it was taken.
fn hand_out(
    socket: &'static Socket,
    mut connection: Connection,
    lane: &'static Lane,
    options: Options,
    handle: Option<(ListenerHandle, u32)>,
) -> Guard<'static, Inner> {
    let (slot, session) = (connection.stream.slot(), connection.session);
    connection.stream.set_flag(program_flags::TAKEN);
    connection.stream.set_urgent_inline(options.urgent_inline());
    lane.with_context(session, |context| {
        if let Some((listener, _)) = handle {
            context.accept_taken(listener, slot);
        }
        context.submit(&mut connection.stream);
    });
    let mut inner = socket.start(!socket.blocks(), State::Stream(connection));
    inner.lane = Some(lane);
    inner.options = options;
    registry::set_slot(slot, socket);
    inner
}
