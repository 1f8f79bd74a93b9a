//! Sockets that come into being, and active opens.

use std::os::fd::RawFd;

use tidelane_abi::{ROUTE_ACCELERATED, ROUTE_KERNEL, ROUTE_WITHIN_HOST, not_accelerated};
use tidelane_client::{Connect, Program, Refusal};

use super::{descriptors, process};
use crate::{
    readiness::{
        instance,
        wait::{self, Deadline},
        wake,
    },
    service::{Lane, exceptions, lanes, report, session, within_host},
    socket::{
        Inner, Socket,
        registrations::WatchRef,
        registry,
        state::{Connecting, State},
    },
    sys::{
        self, Address, Errno, Guard, Handled, Section, TO_KERNEL, cancellation_unsafe::CANCELLED,
        fail,
    },
};

const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
/// `getsockname` waits so long for the service to choose a local address.
const NAME_WAIT_NS: u64 = 4_000_000_000;

/// The kernel made the socket `fd`: if it is one that may be accelerated, it is ours to watch.
pub fn created(fd: RawFd, family: i32, kind: i32, protocol: i32) {
    let _section = Section::enter();
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
    if (family == libc::AF_INET || family == libc::AF_INET6) && stream && tcp {
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        track(fd, nonblocking, family == libc::AF_INET6);
    }
}

fn track(fd: RawFd, nonblocking: bool, inet6: bool) -> Option<&'static Socket> {
    if !session::owns_tables() {
        return None;
    }
    process::start_tracking();
    let socket = registry::take_free()?;
    socket.start(nonblocking, State::Fresh).inet6 = inet6;
    if registry::set(fd, socket) {
        Some(socket)
    } else {
        registry::free(socket);
        None
    }
}

/// A socket that was not made under our eyes (inherited over `exec`, received in a message): if it
/// is TCP and not connected, it is ours from now on.
pub fn adopt(fd: RawFd) -> Option<&'static Socket> {
    let _section = Section::enter();
    let level = libc::SOL_SOCKET;
    let is = |name, value| sys::socket_int(fd, level, name) == Ok(value);
    let inet6 = is(libc::SO_DOMAIN, libc::AF_INET6);
    let fits = (inet6 || is(libc::SO_DOMAIN, libc::AF_INET))
        && is(libc::SO_TYPE, libc::SOCK_STREAM)
        && is(libc::SO_PROTOCOL, libc::IPPROTO_TCP)
        && sys::peer_name(fd).is_err();
    if !fits {
        return None;
    }
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).ok()?;
    let socket = track(fd, flags as i32 & libc::O_NONBLOCK != 0, inet6)?;
    socket.lock().bound = sys::local_name(fd).is_ok_and(|local| local.port != 0);
    Some(socket)
}

/// `bind` of what has its names already: the kernel's socket behind it may have none.
pub fn refuse_bind(socket: &'static Socket, fd: RawFd) -> Handled {
    match socket.find(fd)?.state {
        State::Connecting(_) | State::Stream(_) | State::Inherited(_) | State::Forked => {
            fail(libc::EINVAL)
        }
        State::Free | State::Fresh | State::Failed | State::Listening(_) | State::Kernel => {
            TO_KERNEL
        }
    }
}

/// The kernel bound the socket.
pub fn bound(socket: &'static Socket, fd: RawFd) {
    if let Some(mut inner) = socket.enter(fd) {
        inner.bound = true;
    }
}

/// `connect`.
pub fn connect(socket: &'static Socket, fd: RawFd, peer: Address) -> Handled {
    let _section = Section::enter();
    let timeout = {
        let mut inner = socket.enter(fd)?;
        if inner.inet6 != peer.inet6 {
            // The kernel's socket has the right error.
            return TO_KERNEL;
        }
        inner.refresh();
        let asked_before = std::mem::take(&mut inner.connect_pending);
        match &inner.state {
            State::Fresh => {}
            // The result of the attempt before, if it was not asked for yet.
            State::Stream(_) if asked_before => return Some(Ok(0)),
            State::Failed if asked_before => {
                return Some(Err(inner.take_error().unwrap_or(Errno(libc::ECONNABORTED))));
            }
            State::Failed => {}
            State::Stream(_) | State::Inherited(_) | State::Forked => return fail(libc::EISCONN),
            State::Connecting(connecting) if connecting.syn_room > 0 => {
                inner.connect_pending = asked_before;
                return fail(libc::EISCONN);
            }
            State::Connecting(_) => {
                inner.connect_pending = asked_before;
                let timeout = inner.options.send_timeout_ns;
                drop(inner);
                if !socket.blocks() {
                    return fail(libc::EALREADY);
                }
                return wait_connected(socket, fd, timeout);
            }
            State::Free | State::Listening(_) | State::Kernel => return TO_KERNEL,
        }
        let timeout = inner.options.send_timeout_ns;
        if let Err(error) = begin(socket, inner, fd, peer, false)? {
            return Some(Err(error));
        }
        timeout
    };
    if is_deferred(socket, fd)? {
        return Some(Ok(0));
    }
    if socket.blocks() {
        return wait_connected(socket, fd, timeout);
    }
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    if matches!(inner.state, State::Failed) {
        return Some(Err(inner.take_error().unwrap_or(Errno(libc::ECONNREFUSED))));
    }
    // Also if the connection is there already: Linux looks at no answer before it returns.
    inner.connect_pending = true;
    fail(libc::EINPROGRESS)
}

/// Begins an active open, which may go `with_text` (MSG_FASTOPEN). Where text may go with SYN, it
/// is known when this returns.
pub(crate) fn begin(
    socket: &'static Socket,
    mut inner: Guard<'static, Inner>,
    fd: RawFd,
    peer: Address,
    with_text: bool,
) -> Handled {
    let wish = inner.fast_open_wish(with_text);
    let started = match start(socket, &mut inner, fd, peer, wish) {
        Ok(started) => started,
        Err(error) => return Some(Err(error)),
    };
    drop(inner);
    if let Started::Kernel(reason) = started {
        return to_kernel(socket, fd, reason);
    }
    let waits = wish != 0 || matches!(started, Started::Asked);
    // The destination is this host's, and no accelerated program listens there, or a limit is
    // reached.
    if waits && let Some(reason) = wait_answer(socket, fd) {
        return to_kernel(socket, fd, reason);
    }
    change_kernel_epolls(socket, fd, false);
    if wish != 0 {
        // It may be writable already.
        wake::notify_watches(socket);
    }
    Some(Ok(0))
}

enum Started {
    Accelerated,
    /// The service says whether it is.
    Asked,
    /// It stays with the kernel, for this reason.
    Kernel(u32),
}

/// Sends the request, if the destination is accelerated.
fn start(
    socket: &'static Socket,
    inner: &mut Inner,
    fd: RawFd,
    peer: Address,
    fast_open: u32,
) -> Result<Started, Errno> {
    let Some((session, program)) = session::establish().and_then(|it| Some((it, it.program()?)))
    else {
        return Ok(Started::Kernel(session::unavailable()));
    };
    let route = program.route(peer.addr);
    let within_host = route == ROUTE_WITHIN_HOST;
    let is_kernels = within_host && !within_host::is_wanted(&program, fd);
    let v4_excluded = inner.options.v6_only() && peer.is_v4();
    if is_kernels || route == ROUTE_KERNEL || peer.is_unspecified() || v4_excluded {
        return Ok(Started::Kernel(not_accelerated::ROUTE));
    }
    if inner.options.kernel_only {
        return Ok(Started::Kernel(not_accelerated::OPTION));
    }
    if let Some(reason) = exceptions::of_connection(&peer) {
        return Ok(Started::Kernel(reason));
    }
    let local = match local_reservation(&program, inner, fd, peer, within_host) {
        Ok(local) => local,
        Err(reason) => return Ok(Started::Kernel(reason)),
    };
    let Some(lane) = lane_for(socket, inner) else {
        return Ok(Started::Kernel(not_accelerated::LIMIT));
    };
    if lane.activate(session).is_err() {
        return Ok(Started::Kernel(not_accelerated::LIMIT));
    }
    let request = Connect {
        cookie: socket.cookie(inner.generation),
        peer_addr: peer.addr,
        peer_port: peer.port,
        local_addr: local.map_or([0; 16], |local| local.addr),
        local_port: local.map_or(0, |local| local.port),
        flags: inner.options.program_flags(),
        fast_open,
        options: inner.options.opening(),
    };
    // The answer must find the state; it comes under the socket's lock.
    inner.lane = Some(lane);
    let sent = lane.with_context(session.generation, |context| {
        let sent = context.connect(&request);
        context.flush();
        sent
    });
    if !matches!(sent, Some(Ok(()))) {
        return Ok(Started::Kernel(not_accelerated::LIMIT));
    }
    inner.error = 0;
    inner.cause_seen = false;
    inner.state = State::Connecting(Connecting::asked(session.generation));
    Ok(if route == ROUTE_ACCELERATED {
        Started::Accelerated
    } else {
        Started::Asked
    })
}

/// The local address of a socket that the program bound, after reserving its port.
fn local_reservation(
    program: &Program,
    inner: &Inner,
    fd: RawFd,
    peer: Address,
    within_host: bool,
) -> Result<Option<Address>, u32> {
    if !inner.bound {
        return Ok(None);
    }
    let name = sys::local_name(fd);
    let local = name.map_err(|_| not_accelerated::LOCAL_ADDRESS)?;
    if local.port == 0 {
        return Ok((!local.is_unspecified()).then_some(local));
    }
    if local.is_v4() != peer.is_v4() {
        // A port of `::` that is to serve an IPv4 connection.
        return Err(not_accelerated::LOCAL_ADDRESS);
    }
    let within = within_host.then(|| within_host::source(&local, &peer));
    match program.reserve(sys::borrow(fd), within) {
        Ok(port) => Ok(Some(Address {
            port,
            addr: within.unwrap_or(local.addr),
            ..local
        })),
        Err(Refusal::ServiceGone) => Err(not_accelerated::SERVICE_GONE),
        Err(Refusal::Limit(reason)) => Err(reason),
        Err(_) => Err(not_accelerated::LOCAL_ADDRESS),
    }
}

/// The lane of the epoll instance that has the socket already, or the default one.
fn lane_for(socket: &'static Socket, inner: &Inner) -> Option<&'static Lane> {
    let watched = inner.watches(socket).next();
    match watched {
        Some(watch) => lanes::numbered(watch.lane),
        None => lanes::expected(),
    }
}

/// The socket is added to the epoll instance of `lane`. The events of a connection that has not
/// started yet come to the lane that asked for it, where nobody may look: waits for its slot, so
/// that it can be assigned. Rare: mostly the connection was asked for in the right lane.
pub(crate) fn settle_lane(socket: &'static Socket, fd: RawFd, lane: &'static Lane) {
    lanes::expect(lane);
    let elsewhere = socket.enter(fd).is_some_and(|inner| {
        matches!(&inner.state, State::Connecting(connecting) if connecting.connection.is_none())
            && inner.lane.is_some_and(|asked| !std::ptr::eq(asked, lane))
    });
    if elsewhere {
        wait_answer(socket, fd);
    }
}

/// The kernel's epoll instances would report the placeholder: they forget it. Or they know it
/// again, because it is the kernel's after all.
fn change_kernel_epolls(socket: &'static Socket, fd: RawFd, in_kernel: bool) {
    let Some(inner) = socket.enter(fd) else {
        return;
    };
    let watches: Vec<WatchRef> = inner.watches(socket).collect();
    drop(inner);
    for watch in watches {
        let Some(instance) = instance::numbered(watch.lane) else {
            continue;
        };
        let mut state = instance.state();
        let Some(found) = state.find(watch.index, socket) else {
            continue;
        };
        if std::mem::replace(&mut found.in_kernel, in_kernel) == in_kernel {
            continue;
        }
        let event = libc::epoll_event {
            events: found.events(),
            u64: found.data(),
        };
        let operation = if in_kernel {
            libc::EPOLL_CTL_ADD
        } else {
            libc::EPOLL_CTL_DEL
        };
        let _ = sys::epoll_ctl(instance.lane().epfd(), operation, found.fd(), Some(event));
    }
}

/// The connect belongs to the kernel. Under TIDELANE_STRICT that is an error.
fn to_kernel(socket: &'static Socket, fd: RawFd, reason: u32) -> Handled {
    if let Err(error) = report::fall_back(fd, "connect", reason) {
        if let Some(mut inner) = socket.enter(fd) {
            inner.state = State::Failed;
        }
        return Some(Err(error));
    }
    descriptors::demote(socket, fd);
    TO_KERNEL
}

/// Returns true if `connect` leaves SYN to the first write.
fn is_deferred(socket: &'static Socket, fd: RawFd) -> Option<bool> {
    let mut inner = socket.enter(fd)?;
    let deferred = inner.syn_room() > 0;
    inner.connect_pending |= deferred;
    Some(deferred)
}

/// Waits for CONNECT_STARTED or CONNECT_KERNEL. Some: it is the kernel's, for this reason.
fn wait_answer(socket: &'static Socket, fd: RawFd) -> Option<u32> {
    let deadline = Deadline::after(Some(NAME_WAIT_NS));
    let mut kernel = None;
    wait::blocking(socket, fd, deadline, None, |inner| {
        let State::Connecting(connecting) = &inner.state else {
            return Ok(0);
        };
        let dead = connecting
            .is_orphaned()
            .then_some(not_accelerated::SERVICE_GONE);
        kernel = connecting.kernel.or(dead);
        match connecting.connection {
            None if kernel.is_none() => Err(WOULD_BLOCK),
            _ => Ok(0),
        }
    });
    let reason = kernel?;
    if let Some(mut inner) = socket.enter(fd) {
        inner.state = State::Fresh;
    }
    Some(reason)
}

/// Blocks until the handshake ends.
fn wait_connected(socket: &'static Socket, fd: RawFd, timeout_ns: Option<u64>) -> Handled {
    let deadline = Deadline::after(timeout_ns);
    let result = wait::blocking(socket, fd, deadline, None, |inner| {
        inner.refresh();
        match inner.state {
            State::Connecting(_) => Err(WOULD_BLOCK),
            State::Failed => Err(inner.take_error().unwrap_or(Errno(libc::ECONNREFUSED))),
            _ => Ok(0),
        }
    });
    match result {
        Some(Err(error))
            if [Errno(libc::EAGAIN), Errno(libc::EINTR), CANCELLED].contains(&error) =>
        {
            socket.enter(fd)?.connect_pending = true;
            let passed = error.0 == libc::EAGAIN;
            fail(if passed { libc::EINPROGRESS } else { error.0 })
        }
        other => other,
    }
}

/// `getsockname`, for sockets whose name the kernel does not know.
pub fn local_name(socket: &'static Socket, fd: RawFd) -> Handled<Address> {
    name(socket, fd, |names| (names.local_addr, names.local_port))
}

/// `getpeername`.
pub fn peer_name(socket: &'static Socket, fd: RawFd) -> Handled<Address> {
    {
        let mut inner = socket.enter(fd)?;
        inner.refresh();
        let connected = matches!(inner.state, State::Stream(_)) && !inner.cause_seen;
        if !inner.state.is_kernels() && !connected {
            return fail(libc::ENOTCONN);
        }
    }
    name(socket, fd, |names| (names.peer_addr, names.peer_port))
}

fn name(
    socket: &'static Socket,
    fd: RawFd,
    pick: impl Fn(tidelane_abi::SlotNames) -> ([u8; 16], u16),
) -> Handled<Address> {
    let needs_wait = {
        let mut inner = socket.enter(fd)?;
        match &inner.state {
            State::Stream(_) | State::Connecting(_) => inner.connection().is_none(),
            // The kernel socket's own name: the wildcard, or what it was bound to.
            _ => return None,
        }
    };
    if needs_wait {
        let deadline = Deadline::after(Some(NAME_WAIT_NS));
        let _ = wait::blocking(socket, fd, deadline, None, |inner| {
            inner.refresh();
            match &inner.state {
                State::Connecting(asked) if asked.connection.is_none() => Err(WOULD_BLOCK),
                _ => Ok(0),
            }
        });
    }
    let mut inner = socket.enter(fd)?;
    let inet6 = inner.inet6;
    let connection = inner.connection()?;
    let (addr, port) = pick(connection.stream.names());
    Some(Ok(Address { addr, port, inet6 }))
}

/// `shutdown`.
pub fn shutdown(socket: &'static Socket, fd: RawFd, how: i32) -> Handled {
    let mut inner = socket.enter(fd)?;
    inner.refresh();
    let lane = inner.lane;
    let over = inner.cause_seen;
    match &mut inner.state {
        State::Stream(_) if over => return fail(libc::ENOTCONN),
        State::Stream(connection) => {
            if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
                return fail(libc::EINVAL);
            }
            if how != libc::SHUT_RD {
                connection.stream.shutdown_write();
            }
            if how != libc::SHUT_WR {
                connection.stream.shutdown_read();
            }
            if let Some(lane) = lane {
                lane.submit(&socket.member, connection);
            }
        }
        // Linux ends an active open that is shut down.
        State::Connecting(_) => {
            inner.fail_connect(tidelane_abi::close_cause::RESET);
            inner.error = 0;
            return Some(Ok(0));
        }
        State::Failed | State::Inherited(_) | State::Forked => return fail(libc::ENOTCONN),
        State::Free | State::Fresh | State::Listening(_) | State::Kernel => return TO_KERNEL,
    }
    inner.shut_write |= how != libc::SHUT_RD;
    inner.shut_read |= how != libc::SHUT_WR;
    drop(inner);
    // Whoever waits for this socket has something to see.
    wake::changed(socket, lane);
    Some(Ok(0))
}
