//! The calls `socket`, `bind`, `connect` and `shutdown`.
//!
//! Either the service (the process `tidelaned`) or the kernel carries out an active open. An
//! accelerated connection is a connection that the service carries. The connect request and its
//! answer go through a channel: rings that this process shares with the service.

use std::os::fd::RawFd;

use tidelane_abi::{ROUTE_ACCELERATED, ROUTE_KERNEL, ROUTE_WITHIN_HOST, not_accelerated};
use tidelane_client::{Connect, Program, Refusal};

use super::{
    descriptors,
    disconnect::{shut_connection_down, shut_listener_down},
    process,
};
use crate::{
    readiness::{
        instance,
        wait::{self, Deadline},
        wake,
    },
    service::{Channel, channels, exceptions, report, session, within_host},
    socket::{
        Inner, Socket,
        registration_ref::RegistrationRef,
        registry, sharing,
        state::{Connecting, State},
    },
    sys::{
        self, Address, Errno, Guard, Handled, Section, TO_KERNEL, cancellation_unsafe::CANCELLED,
        fail,
    },
};

/// Result of an attempt that cannot complete yet.
pub(super) const WOULD_BLOCK: Errno = Errno(libc::EAGAIN);
/// Longest wait for the service's answer to a connect request.
pub(super) const ANSWER_WAIT_NS: u64 = 4_000_000_000;

/// If `fd`, a new socket, is a TCP socket, starts tracking it: records its state in a [`Socket`].
pub fn on_created(fd: RawFd, family: i32, kind: i32, protocol: i32) {
    let _section = Section::enter();
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
    if (family == libc::AF_INET || family == libc::AF_INET6) && stream && tcp {
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        track(fd, nonblocking, family == libc::AF_INET6);
    }
}

/// Starts tracking the socket `fd`. Returns the [`Socket`] that records its state. Returns `None`
/// if a limit is reached, and in a vfork child, which must not change the parent's tables.
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

/// Starts tracking `fd`, a descriptor whose creation this library did not see, if `fd` is an
/// unconnected TCP socket. For example, the program has inherited the socket over `exec` or
/// received it in a message.
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

/// Fails `bind` on a socket that has an accelerated connection. The kernel might allow the call,
/// because the kernel socket of such a connection can be unbound.
pub fn refuse_bind(socket: &'static Socket, fd: RawFd) -> Handled {
    match socket.enter_without_migration(fd)?.state {
        State::Connecting(_) | State::Stream(_) | State::Inherited(_) | State::LostByFork => {
            fail(libc::EINVAL)
        }
        State::Free | State::Fresh | State::Failed | State::Listening(_) | State::Kernel => {
            TO_KERNEL
        }
    }
}

/// Records that the kernel bound the socket.
pub fn on_bound(socket: &'static Socket, fd: RawFd) {
    if let Some(mut inner) = socket.enter(fd) {
        inner.bound = true;
    }
}

/// Carries out `connect` of `socket` to `peer`.
pub fn connect(socket: &'static Socket, fd: RawFd, peer: Address) -> Handled {
    let _section = Section::enter();
    let timeout = {
        let mut inner = socket.enter(fd)?;
        if inner.inet6 != peer.inet6 {
            // The kernel returns the error of a wrong address family.
            return TO_KERNEL;
        }
        inner.refresh();
        let was_pending = std::mem::take(&mut inner.connect_pending);
        match &inner.state {
            State::Fresh => {}
            // No call has returned the result of the previous active open yet.
            State::Stream(_) if was_pending => return Some(Ok(0)),
            State::Failed if was_pending => {
                return Some(Err(inner.take_error().unwrap_or(Errno(libc::ECONNABORTED))));
            }
            State::Failed => {}
            State::Stream(_) | State::Inherited(_) | State::LostByFork => {
                return fail(libc::EISCONN);
            }
            State::Connecting(connecting) if connecting.syn_room > 0 => {
                inner.connect_pending = was_pending;
                return fail(libc::EISCONN);
            }
            State::Connecting(_) => {
                inner.connect_pending = was_pending;
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
    // Return EINPROGRESS even if the connection is already established, because Linux never returns
    // 0 here.
    inner.connect_pending = true;
    fail(libc::EINPROGRESS)
}

/// Begins an active open. Returns `TO_KERNEL` if the kernel has to connect. `with_data` is true for
/// MSG_FASTOPEN.
///
/// Waits for the service's answer in two cases: if the service has to decide whether it carries the
/// connection, and if TCP Fast Open needs the number of bytes that the SYN can carry.
pub(crate) fn begin(
    socket: &'static Socket,
    mut inner: Guard<'static, Inner>,
    fd: RawFd,
    peer: Address,
    with_data: bool,
) -> Handled {
    let fast_open = inner.fast_open_flags(with_data);
    let started = match start(socket, &mut inner, fd, peer, fast_open) {
        Ok(started) => started,
        Err(error) => return Some(Err(error)),
    };
    drop(inner);
    if let Started::Kernel(reason) = started {
        return to_kernel(socket, fd, reason);
    }
    let waits = fast_open != 0 || matches!(started, Started::Asked);
    // The service refuses the request if a limit is reached, or if the peer is an address of this
    // host at which no accelerated program listens. The kernel then connects.
    if waits && let Some(reason) = wait_answer(socket, fd) {
        return to_kernel(socket, fd, reason);
    }
    change_kernel_epolls(socket, fd, false);
    if fast_open != 0 {
        // With TCP Fast Open, the socket can be writable before the handshake.
        wake::notify_registrations(socket);
    }
    Some(Ok(0))
}

/// The result of [`start`]: the stack that opens the connection.
enum Started {
    /// The service carries the connection.
    Accelerated,
    /// The service has the connect request, and decides whether it carries the connection.
    Asked,
    /// The kernel has to connect. The value is a [`not_accelerated`] reason.
    Kernel(u32),
}

/// Sends the connect request to the service, unless the kernel has to connect.
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
    let left_to_kernel = within_host && !within_host::is_wanted(&program, fd);
    let v4_excluded = inner.options.v6_only() && peer.is_v4();
    if left_to_kernel || route == ROUTE_KERNEL || peer.is_unspecified() || v4_excluded {
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
    let Some(channel) = channel_for(socket, inner) else {
        return Ok(Started::Kernel(not_accelerated::LIMIT));
    };
    if channel.activate(session).is_err() {
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
    // The answer may arrive immediately, in another thread. This thread holds the socket's lock, so
    // the other thread waits until the state is set below.
    inner.channel = Some(channel);
    let sent = channel.with_context(session.generation, |context| {
        let sent = context.connect(&request);
        context.flush();
        sent
    });
    if !matches!(sent, Some(Ok(()))) {
        return Ok(Started::Kernel(not_accelerated::LIMIT));
    }
    inner.error = 0;
    inner.cause_reported = false;
    inner.state = State::Connecting(Connecting::requested(session.generation));
    Ok(if route == ROUTE_ACCELERATED {
        Started::Accelerated
    } else {
        Started::Asked
    })
}

/// Reserves the port to which the program bound the socket, so that the service may use the port.
/// Returns the local address, or `None` if the program chose none. The error is the
/// [`not_accelerated`] reason for which the kernel has to connect.
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
        // Leave a rare case to the kernel: the socket is bound to `::`, and connects to an IPv4
        // peer.
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

/// Returns the channel of the first epoll instance with which the socket is registered. If the
/// socket is in no epoll instance, returns the channel to which the program's next connection will
/// probably belong (`channels::preferred`).
fn channel_for(socket: &'static Socket, inner: &Inner) -> Option<&'static Channel> {
    let registered = inner.registrations(socket).next();
    match registered {
        Some(registration) => channels::numbered(registration.channel),
        None => channels::preferred(),
    }
}

/// Waits until the service has announced the slot of a connection that is being opened, before the
/// caller adds the socket to the epoll instance of `channel`. The slot is the record of the
/// connection in shared memory.
///
/// Until the event CONNECT_STARTED announces the slot, the service sends events to the channel of
/// the connect request, where perhaps no thread waits. After this event, the caller can assign the
/// connection to `channel`. The wait is rare, because most requests go through `channel`.
pub(crate) fn await_slot(socket: &'static Socket, fd: RawFd, channel: &'static Channel) {
    channels::prefer(channel);
    let on_other_channel = socket.enter(fd).is_some_and(|inner| {
        matches!(&inner.state, State::Connecting(connecting) if connecting.connection.is_none())
            && inner
                .channel
                .is_some_and(|asked| !std::ptr::eq(asked, channel))
    });
    if on_other_channel {
        wait_answer(socket, fd);
    }
}

/// Adds the kernel socket to the kernel's epoll instances with which the program registered it, or
/// removes it if `in_kernel_epoll` is false. The kernel socket of an accelerated connection has to
/// be removed: it is unconnected, so the kernel would report EPOLLHUP.
fn change_kernel_epolls(socket: &'static Socket, fd: RawFd, in_kernel_epoll: bool) {
    let Some(inner) = socket.enter(fd) else {
        return;
    };
    let registrations: Vec<RegistrationRef> = inner.registrations(socket).collect();
    drop(inner);
    for registration in registrations {
        let Some(instance) = instance::numbered(registration.channel) else {
            continue;
        };
        let mut state = instance.lock_interest();
        let Some(found) = state.find(registration.index, socket) else {
            continue;
        };
        if std::mem::replace(&mut found.in_kernel_epoll, in_kernel_epoll) == in_kernel_epoll {
            continue;
        }
        let event = libc::epoll_event {
            events: found.events(),
            u64: found.data(),
        };
        let operation = if in_kernel_epoll {
            libc::EPOLL_CTL_ADD
        } else {
            libc::EPOLL_CTL_DEL
        };
        let _ = sys::epoll_ctl(
            instance.channel().epfd(),
            operation,
            found.fd(),
            Some(event),
        );
    }
}

/// Leaves the socket to the kernel, or fails the connect if the environment sets TIDELANE_STRICT.
fn to_kernel(socket: &'static Socket, fd: RawFd, reason: u32) -> Handled {
    if let Err(error) = report::fall_back(fd, "connect", reason) {
        if let Some(mut inner) = socket.enter(fd) {
            inner.state = State::Failed;
        }
        return Some(Err(error));
    }
    descriptors::leave_to_kernel(socket, fd);
    TO_KERNEL
}

/// Returns true if the SYN waits for the first write (TCP_FASTOPEN_CONNECT). A later `connect` then
/// returns the result of the active open (`connect_pending`). Returns `None` if `fd` was closed.
fn is_deferred(socket: &'static Socket, fd: RawFd) -> Option<bool> {
    let mut inner = socket.enter(fd)?;
    let deferred = inner.syn_room() > 0;
    inner.connect_pending |= deferred;
    Some(deferred)
}

/// Waits for CONNECT_STARTED or CONNECT_KERNEL, the service's answer to the connect request. If the
/// kernel has to connect, makes the socket `Fresh` and returns the [`not_accelerated`] reason.
fn wait_answer(socket: &'static Socket, fd: RawFd) -> Option<u32> {
    let deadline = Deadline::after(Some(ANSWER_WAIT_NS));
    let mut kernel = None;
    wait::blocking(socket, fd, deadline, None, |inner| {
        let State::Connecting(connecting) = &inner.state else {
            return Ok(0);
        };
        let dead = connecting
            .has_lost_service()
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

/// Blocks until the handshake ends. Returns EINPROGRESS after `timeout_ns` (SO_SNDTIMEO).
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

/// Carries out `shutdown`.
pub fn shutdown(socket: &'static Socket, fd: RawFd, how: i32) -> Handled {
    let mut inner = socket.enter(fd)?;
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return fail(libc::EINVAL);
    }
    inner.refresh();
    let over = inner.cause_reported;
    match &mut inner.state {
        State::Stream(_) if over => return fail(libc::ENOTCONN),
        State::Stream(_) => {}
        // As in Linux, `shutdown` aborts an active open.
        State::Connecting(_) => {
            inner.fail_connect(tidelane_abi::close_cause::RESET);
            inner.error = 0;
            return Some(Ok(0));
        }
        State::Failed | State::Inherited(_) | State::LostByFork => return fail(libc::ENOTCONN),
        State::Listening(_) => return Some(shut_listener_down(socket, inner, fd, how)),
        State::Free | State::Fresh | State::Kernel => return TO_KERNEL,
    }
    let mut shut = |inner: &mut Inner| shut_connection_down(socket, inner, how);
    while sharing::attempt(&mut inner, &mut shut).is_none() {
        // The connection has moved, or moves, to another process. `enter` migrates it back.
        drop(inner);
        inner = socket.enter(fd)?;
    }
    let channel = inner.channel;
    drop(inner);
    wake::on_readiness_change(socket, channel);
    Some(Ok(0))
}
