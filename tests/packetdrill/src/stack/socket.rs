//! The state of a socket, and the socket calls that transfer no data, such as `bind`, `listen` and
//! `close`.

use std::collections::VecDeque;

use tidelane_engine::{Endpoint, FlowId, FlowRoute, IpAddress, ListenError, State};

use crate::{
    errno::{CallResult, Errno, errno_of_open},
    error_queue::ErrorQueue,
    fast_open::FastOpen,
    inbound::LINK,
    options::Options,
    role::Role,
    settings::Reading,
    stack::{Fd, Flow, Object, Stack},
};

/// A TCP socket. The stack owns the socket while the program's descriptor is open.
#[derive(Debug)]
pub struct Socket {
    /// The object of the engine (Tidelane's TCP) that the socket refers to.
    pub role: Role,
    /// `AF_INET` or `AF_INET6`.
    pub domain: i32,
    /// True if O_NONBLOCK is set.
    pub nonblocking: bool,
    /// Local endpoint of a bound, listening or connected socket.
    pub local: Option<Endpoint>,
    /// Peer of a connected socket.
    pub peer: Option<Endpoint>,
    /// Socket options.
    pub options: Options,
    /// The pending error. The next call of the program that can fail with this error, or the next
    /// reading of SO_ERROR, returns and clears the error.
    pub error: Option<Errno>,
    /// A pending soft error (RFC 1122 §4.2.3.9). Only SO_ERROR returns the soft error, and only if
    /// `error` is `None`.
    pub soft_error: Option<Errno>,
    /// Fast Open options and state.
    pub fast_open: FastOpen,
    /// The error queue.
    pub error_queue: ErrorQueue,
    /// True after `shutdown(SHUT_RD)`.
    pub read_shut: bool,
    /// True after `shutdown(SHUT_WR)`.
    pub write_shut: bool,
}

impl Socket {
    fn new(domain: i32, nonblocking: bool, options: Options) -> Self {
        Self {
            role: Role::Unconnected,
            domain,
            nonblocking,
            local: None,
            peer: None,
            options,
            error: None,
            soft_error: None,
            fast_open: FastOpen::default(),
            error_queue: ErrorQueue::default(),
            read_shut: false,
            write_shut: false,
        }
    }
}

/// The argument `how` of `shutdown(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shutdown {
    /// True to end reading.
    pub read: bool,
    /// True to end writing.
    pub write: bool,
}

impl Stack {
    /// Implements `socket(2)` for the new descriptor `fd`.
    pub fn socket_call(&mut self, fd: Fd, domain: i32, kind: i32, protocol: i32) -> CallResult<()> {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if kind & !flags != libc::SOCK_STREAM {
            return Err(Errno(libc::ESOCKTNOSUPPORT));
        }
        if protocol != 0 && protocol != libc::IPPROTO_TCP {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let reading = Reading::now();
        self.end_preamble(&reading);
        self.follow_settings(&reading);
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let socket = Socket::new(domain, nonblocking, Options::new(&self.settings));
        self.objects.insert(fd, Object::Socket(Box::new(socket)));
        Ok(())
    }

    /// Implements `bind(2)`. Port 0 selects an ephemeral port.
    pub fn bind(&mut self, fd: Fd, to: Endpoint) -> CallResult<()> {
        let socket = self.socket(fd)?;
        if socket.local.is_some() || !matches!(socket.role, Role::Unconnected) {
            return Err(Errno::INVAL);
        }
        let port = if to.port == 0 {
            self.next_ephemeral_port()
        } else {
            to.port
        };
        self.socket_mut(fd)?.local = Some(Endpoint::new(to.addr, port));
        Ok(())
    }

    /// Returns the next ephemeral port. Only the last port, 65535, is returned more than once.
    fn next_ephemeral_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(port);
        port
    }

    /// Implements `listen(2)`.
    pub fn listen(&mut self, fd: Fd, backlog: i32) -> CallResult<()> {
        let backlog = backlog.clamp(0, 4096) as u32;
        let socket = self.socket(fd)?;
        let options = socket.options.engine;
        match socket.role {
            Role::Unconnected => {}
            Role::Listener { id, .. } => {
                self.drive(|engine, _, _| engine.set_backlog(id, backlog));
                return Ok(());
            }
            Role::Flow(_) | Role::Released => return Err(Errno::INVAL),
        }
        let local = match socket.local {
            Some(local) => local,
            None => Endpoint::new(IpAddress::UNSPECIFIED_V4, self.next_ephemeral_port()),
        };
        let id = self
            .drive(|engine, _, _| engine.listen(local, backlog, options))
            .map_err(|error| match error {
                ListenError::InUse => Errno(libc::EADDRINUSE),
                ListenError::Full => Errno(libc::ENFILE),
                ListenError::BadEndpoint => Errno::INVAL,
            })?;
        let socket = self.socket_mut(fd)?;
        socket.local = Some(local);
        let queue = VecDeque::new();
        socket.role = Role::Listener { id, queue };
        self.listeners.insert(id, fd);
        self.update_listener(fd)
    }

    /// Returns true if the accept queue is not empty. Fails with EINVAL if `fd` is not listening.
    pub fn accept_ready(&self, fd: Fd) -> CallResult<bool> {
        match &self.socket(fd)?.role {
            Role::Listener { queue, .. } => Ok(!queue.is_empty()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Implements `accept(2)` without blocking. The oldest connection of the accept queue gets the
    /// descriptor `new`. Returns the peer's endpoint. Fails with EAGAIN if the queue is empty.
    pub fn accept(&mut self, fd: Fd, new: Fd, nonblocking: bool) -> CallResult<Endpoint> {
        let socket = self.socket_mut(fd)?;
        let domain = socket.domain;
        let options = socket.options.clone();
        let Role::Listener { id, queue } = &mut socket.role else {
            return Err(Errno::INVAL);
        };
        let (id, flow) = (*id, queue.pop_front().ok_or(Errno::AGAIN)?);
        self.drive(|engine, _, _| engine.accept_queue_removed(id, 1));
        let key = self.flow(flow).ok_or(Errno::AGAIN)?.key();
        let mut child = Socket::new(domain, nonblocking, options);
        child.role = Role::Flow(flow);
        (child.local, child.peer) = (Some(key.local), Some(key.peer));
        self.objects.insert(new, Object::Socket(Box::new(child)));
        self.assign_owner(flow, new);
        Ok(key.peer)
    }

    /// Makes `fd` the owner of `flow` (a connection). If the connection has already ended, the
    /// socket gets the connection's error.
    fn assign_owner(&mut self, flow: FlowId, fd: Fd) {
        let known = self.flows.entry(flow).or_default();
        known.owner = Some(fd);
        if let Some(cause) = known.cause {
            self.on_closed(flow, cause);
        }
    }

    /// Starts `connect(2)`: sends a SYN, unless TCP_FASTOPEN_CONNECT defers the SYN to the first
    /// write. [`Stack::connect_result`] returns the result of the handshake.
    pub fn connect(&mut self, fd: Fd, to: Endpoint) -> CallResult<()> {
        let socket = self.socket(fd)?;
        let options = socket.options.engine;
        match socket.role {
            Role::Unconnected | Role::Released => {}
            Role::Listener { .. } => return Err(Errno(libc::EISCONN)),
            Role::Flow(id) => return self.connect_again(fd, id),
        }
        if self.socket(fd)?.fast_open.deferred.is_some() {
            return Err(Errno(libc::EISCONN));
        }
        if self.connect_fast(fd, to)? {
            return Ok(());
        }
        let local = self.local_for_connect(fd, to)?;
        let mtu = self.wire.mtu;
        let route = FlowRoute { link: LINK, mtu };
        let id = self
            .drive(|engine, now, wire| engine.open(now, local, to, route, options, wire))
            .map_err(errno_of_open)?;
        self.become_flow(fd, id, local, to)
    }

    /// Makes `fd` the socket of the connection `id`, whose handshake has started.
    pub(crate) fn become_flow(
        &mut self,
        fd: Fd,
        id: FlowId,
        local: Endpoint,
        to: Endpoint,
    ) -> CallResult<()> {
        let socket = self.socket_mut(fd)?;
        socket.role = Role::Flow(id);
        (socket.local, socket.peer) = (Some(local), Some(to));
        socket.error = None;
        socket.fast_open.deferred = None;
        socket.fast_open.connecting = true;
        let owner = Some(fd);
        self.flows.insert(
            id,
            Flow {
                owner,
                ..Flow::default()
            },
        );
        Ok(())
    }

    /// Handles `connect(2)` on a socket with the connection `id`. After the handshake, fails with
    /// EISCONN. During the handshake, fails with EALREADY if the socket is nonblocking. If the
    /// socket is blocking, succeeds during the handshake, so that the caller waits.
    fn connect_again(&self, fd: Fd, id: FlowId) -> CallResult<()> {
        match self.flow(id).map(|flow| flow.state()) {
            Some(State::SynSent | State::SynReceived) if self.socket(fd)?.nonblocking => {
                Err(Errno(libc::EALREADY))
            }
            Some(State::SynSent | State::SynReceived) => Ok(()),
            _ => Err(Errno(libc::EISCONN)),
        }
    }

    /// Returns the local endpoint for a connection to `to`. The address and the port are those of
    /// the socket's field `local`. If `local` is `None`, the port is an ephemeral port. If `local`
    /// is `None` or has the unspecified address, the address is the stack's address.
    pub(crate) fn local_for_connect(&mut self, fd: Fd, to: Endpoint) -> CallResult<Endpoint> {
        let bound = self.socket(fd)?.local;
        let port = match bound {
            Some(local) => local.port,
            None => self.next_ephemeral_port(),
        };
        let addr = match bound {
            Some(local) if !local.addr.is_unspecified() => local.addr,
            _ if to.addr.is_v4() => IpAddress::from_v4(self.settings.local_ip.octets()),
            _ => IpAddress(self.settings.local_ip6.octets()),
        };
        Ok(Endpoint::new(addr, port))
    }

    /// Returns the result of the handshake that `connect` started. Fails with EAGAIN while the
    /// handshake is not complete.
    pub fn connect_result(&mut self, fd: Fd) -> CallResult<()> {
        if let Some(error) = self.socket_mut(fd)?.error.take() {
            return Err(error);
        }
        match self.state_of(fd)? {
            State::SynSent | State::SynReceived => Err(Errno::AGAIN),
            State::Closed | State::Listen => Err(Errno(libc::ECONNABORTED)),
            _ => {
                self.socket_mut(fd)?.fast_open.connecting = false;
                Ok(())
            }
        }
    }

    /// Implements `shutdown(2)`.
    pub fn shutdown(&mut self, fd: Fd, how: Shutdown) -> CallResult<()> {
        match self.state_of(fd)? {
            State::Closed => return Err(Errno(libc::ENOTCONN)),
            State::Listen => {
                if how.read {
                    self.unlisten(fd)?;
                }
                return Ok(());
            }
            _ => {}
        }
        let socket = self.socket_mut(fd)?;
        socket.read_shut |= how.read;
        socket.write_shut |= how.write;
        if how.write
            && let Some(id) = self.flow_of(fd)?
        {
            self.release_all(id)?;
            self.drive(|engine, _, _| engine.shutdown_write(id));
        }
        self.mark_pending(fd);
        Ok(())
    }

    /// Closes the listener of `fd`, if there is one. Resets the connections in the listener's
    /// accept queue, as Linux does.
    fn unlisten(&mut self, fd: Fd) -> CallResult<()> {
        let socket = self.socket_mut(fd)?;
        let Role::Listener { id, queue } = &mut socket.role else {
            return Ok(());
        };
        let (id, queue) = (*id, std::mem::take(queue));
        socket.role = Role::Unconnected;
        self.listeners.remove(&id);
        self.drive(|engine, now, wire| engine.unlisten(now, id, wire));
        for flow in queue {
            self.drive(|engine, now, wire| engine.abort(now, flow, wire));
        }
        Ok(())
    }

    /// Implements `close(2)` of a socket or an epoll instance. The caller closes the kernel's
    /// descriptor.
    pub fn close(&mut self, fd: Fd) -> CallResult<()> {
        if !self.has(fd) {
            return Err(Errno::BADF);
        }
        self.leave_epolls(fd);
        if self.has_socket(fd) {
            self.unlisten(fd)?;
            let at_once = self.socket(fd)?.options.linger == Some(0);
            if let Some(id) = self.flow_of(fd)? {
                self.release_all(id)?;
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.owner = None;
                }
                self.drive(|engine, now, wire| match at_once {
                    true => engine.abort(now, id, wire),
                    false => engine.close(now, id, wire),
                });
            }
        }
        self.objects.remove(&fd);
        Ok(())
    }

    /// Implements `connect(2)` with `AF_UNSPEC`. Closes the listener, or resets the connection. The
    /// socket is then neither bound nor connected, but keeps its options.
    pub fn disconnect(&mut self, fd: Fd) -> CallResult<()> {
        self.unlisten(fd)?;
        if let Some(id) = self.flow_of(fd)? {
            self.drive(|engine, now, wire| engine.abort(now, id, wire));
        }
        let socket = self.socket_mut(fd)?;
        socket.role = Role::Unconnected;
        socket.fast_open.deferred = None;
        (socket.local, socket.peer, socket.error) = (None, None, None);
        (socket.read_shut, socket.write_shut) = (false, false);
        Ok(())
    }
}

impl Stack {
    /// Implements `fcntl(2)` with F_GETFL or F_SETFL. Returns `None` for other commands, which the
    /// kernel handles.
    pub fn control(&mut self, fd: Fd, command: i32, argument: i32) -> Option<CallResult<usize>> {
        let socket = match self.socket_mut(fd) {
            Ok(socket) => socket,
            Err(error) => return Some(Err(error)),
        };
        match command {
            libc::F_GETFL => {
                let flag = i32::from(socket.nonblocking) * libc::O_NONBLOCK;
                Some(Ok((libc::O_RDWR | flag) as usize))
            }
            libc::F_SETFL => {
                socket.nonblocking = argument & libc::O_NONBLOCK != 0;
                Some(Ok(0))
            }
            _ => None,
        }
    }
}
