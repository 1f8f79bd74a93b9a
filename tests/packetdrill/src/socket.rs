//! A socket, and the calls that open, bind and end it.

use std::collections::VecDeque;

use tidelane_engine::{
    Endpoint, FlowId, IpAddress, ListenError, ListenerId, OpenError, Route, State,
};

use crate::{
    errno::{Answer, Errno},
    fast_open::FastOpen,
    notices::Notices,
    options::Options,
    packet::LINK,
    settings::Reading,
    stack::{Fd, Flow, Object, Stack},
};

/// What a socket is to the engine.
#[derive(Debug)]
pub enum Role {
    /// Nothing yet.
    Fresh,
    /// A listener, with the connections that nobody accepted yet.
    Listener {
        /// Its number.
        id: ListenerId,
        /// Established, in order.
        queue: VecDeque<FlowId>,
    },
    /// A connection.
    Flow(FlowId),
    /// A connection that the engine has let go.
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Socket {
    /// What it is to the engine.
    pub role: Role,
    /// `AF_INET` or `AF_INET6`.
    pub domain: i32,
    /// O_NONBLOCK.
    pub nonblocking: bool,
    /// Where it is bound, or connected from.
    pub local: Option<Endpoint>,
    /// Where it is connected to.
    pub peer: Option<Endpoint>,
    /// Options.
    pub options: Options,
    /// SO_ERROR.
    pub error: Option<Errno>,
    /// What SO_ERROR says if there is no other: an error that ended nothing.
    pub soft_error: Option<Errno>,
    /// TCP Fast Open.
    pub fast_open: FastOpen,
    /// The error queue.
    pub notices: Notices,
    /// `shutdown(SHUT_RD)`.
    pub read_shut: bool,
    /// `shutdown(SHUT_WR)`.
    pub write_shut: bool,
}

impl Socket {
    fn new(domain: i32, nonblocking: bool, options: Options) -> Self {
        Self {
            role: Role::Fresh,
            domain,
            nonblocking,
            local: None,
            peer: None,
            options,
            error: None,
            soft_error: None,
            fast_open: FastOpen::default(),
            notices: Notices::default(),
            read_shut: false,
            write_shut: false,
        }
    }
}

/// What Linux says of an open that did not start.
pub(crate) const fn errno_of_open(error: OpenError) -> Errno {
    Errno(match error {
        OpenError::InUse => libc::EADDRNOTAVAIL,
        OpenError::Full => libc::ENOBUFS,
        OpenError::BadEndpoint => libc::EINVAL,
    })
}

/// `how` of `shutdown`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shutdown {
    /// Nothing more is read.
    pub read: bool,
    /// Nothing more is written.
    pub write: bool,
}

impl Stack {
    /// `socket(2)`: what `fd` stands for from now on.
    pub fn socket_call(&mut self, fd: Fd, domain: i32, kind: i32, protocol: i32) -> Answer<()> {
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
        self.settle_settings(&reading);
        self.follow_settings(&reading);
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let socket = Socket::new(domain, nonblocking, Options::new(&self.settings));
        self.objects.insert(fd, Object::Socket(Box::new(socket)));
        Ok(())
    }

    /// `bind(2)`. Port zero: any.
    pub fn bind(&mut self, fd: Fd, to: Endpoint) -> Answer<()> {
        let socket = self.socket(fd)?;
        if socket.local.is_some() || !matches!(socket.role, Role::Fresh) {
            return Err(Errno::INVAL);
        }
        let port = if to.port == 0 {
            self.take_port()
        } else {
            to.port
        };
        self.socket_mut(fd)?.local = Some(Endpoint::new(to.addr, port));
        Ok(())
    }

    fn take_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(port);
        port
    }

    /// `listen(2)`.
    pub fn listen(&mut self, fd: Fd, backlog: i32) -> Answer<()> {
        let backlog = backlog.clamp(0, 4096) as u32;
        let socket = self.socket(fd)?;
        let options = socket.options.engine;
        match socket.role {
            Role::Fresh => {}
            Role::Listener { id, .. } => {
                self.drive(|engine, _, _| engine.set_backlog(id, backlog));
                return Ok(());
            }
            Role::Flow(_) | Role::Over => return Err(Errno::INVAL),
        }
        let local = match socket.local {
            Some(local) => local,
            None => Endpoint::new(IpAddress::UNSPECIFIED_V4, self.take_port()),
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
        self.tell_listener(fd)
    }

    /// Whether `accept` would have something to take; the error if it never will.
    pub fn accept_ready(&self, fd: Fd) -> Answer<bool> {
        match &self.socket(fd)?.role {
            Role::Listener { queue, .. } => Ok(!queue.is_empty()),
            _ => Err(Errno::INVAL),
        }
    }

    /// `accept(2)`: the first connection in the queue gets `new` as its descriptor.
    pub fn accept(&mut self, fd: Fd, new: Fd, nonblocking: bool) -> Answer<Endpoint> {
        let socket = self.socket_mut(fd)?;
        let domain = socket.domain;
        let options = socket.options.clone();
        let Role::Listener { id, queue } = &mut socket.role else {
            return Err(Errno::INVAL);
        };
        let (id, flow) = (*id, queue.pop_front().ok_or(Errno::AGAIN)?);
        self.drive(|engine, _, _| engine.accept_taken(id, 1));
        let key = self.flow(flow).ok_or(Errno::AGAIN)?.key();
        let mut child = Socket::new(domain, nonblocking, options);
        child.role = Role::Flow(flow);
        (child.local, child.peer) = (Some(key.local), Some(key.peer));
        self.objects.insert(new, Object::Socket(Box::new(child)));
        self.own(flow, new);
        Ok(key.peer)
    }

    /// `flow` belongs to `fd`; what happened to it before counts.
    fn own(&mut self, flow: FlowId, fd: Fd) {
        let known = self.flows.entry(flow).or_default();
        known.owner = Some(fd);
        if let Some(cause) = known.cause {
            self.note_end(flow, cause);
        }
    }

    /// Starts `connect(2)`: sends SYN. Whether it is complete is [`Stack::connect_result`]'s.
    pub fn connect(&mut self, fd: Fd, to: Endpoint) -> Answer<()> {
        let socket = self.socket(fd)?;
        let options = socket.options.engine;
        match socket.role {
            Role::Fresh | Role::Over => {}
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
        let route = Route { link: LINK, mtu };
        let id = self
            .drive(|engine, now, wire| engine.open(now, local, to, route, options, wire))
            .map_err(errno_of_open)?;
        self.become_flow(fd, id, local, to)
    }

    /// The socket is the connection `id` from now on, which is being opened.
    pub(crate) fn become_flow(
        &mut self,
        fd: Fd,
        id: FlowId,
        local: Endpoint,
        to: Endpoint,
    ) -> Answer<()> {
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

    fn connect_again(&self, fd: Fd, id: FlowId) -> Answer<()> {
        match self.flow(id).map(|flow| flow.state()) {
            Some(State::SynSent | State::SynReceived) if self.socket(fd)?.nonblocking => {
                Err(Errno(libc::EALREADY))
            }
            Some(State::SynSent | State::SynReceived) => Ok(()),
            _ => Err(Errno(libc::EISCONN)),
        }
    }

    pub(crate) fn local_for_connect(&mut self, fd: Fd, to: Endpoint) -> Answer<Endpoint> {
        let bound = self.socket(fd)?.local;
        let port = match bound {
            Some(local) => local.port,
            None => self.take_port(),
        };
        let addr = match bound {
            Some(local) if !local.addr.is_unspecified() => local.addr,
            _ if to.addr.is_v4() => IpAddress::from_v4(self.settings.local_ip.octets()),
            _ => IpAddress(self.settings.local_ip6.octets()),
        };
        Ok(Endpoint::new(addr, port))
    }

    /// How a connection that was started stands: EAGAIN while there is no answer.
    pub fn connect_result(&mut self, fd: Fd) -> Answer<()> {
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

    /// `shutdown(2)`.
    pub fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Answer<()> {
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
            self.drive(|engine, now, wire| engine.shutdown_write(now, id, wire));
        }
        self.ring(fd);
        Ok(())
    }

    /// Ends a listener. Who is in its queue is reset, as Linux does.
    fn unlisten(&mut self, fd: Fd) -> Answer<()> {
        let socket = self.socket_mut(fd)?;
        let Role::Listener { id, queue } = &mut socket.role else {
            return Ok(());
        };
        let (id, queue) = (*id, std::mem::take(queue));
        socket.role = Role::Fresh;
        self.listeners.remove(&id);
        self.drive(|engine, now, wire| engine.unlisten(now, id, wire));
        for flow in queue {
            self.drive(|engine, now, wire| engine.abort(now, flow, wire));
        }
        Ok(())
    }

    /// `close(2)`, of a socket or an epoll instance. The descriptor itself is the caller's matter.
    pub fn close(&mut self, fd: Fd) -> Answer<()> {
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

    /// `connect` with `AF_UNSPEC`: the socket is as new.
    pub fn disconnect(&mut self, fd: Fd) -> Answer<()> {
        self.unlisten(fd)?;
        if let Some(id) = self.flow_of(fd)? {
            self.drive(|engine, now, wire| engine.abort(now, id, wire));
        }
        let socket = self.socket_mut(fd)?;
        socket.role = Role::Fresh;
        socket.fast_open.deferred = None;
        (socket.local, socket.peer, socket.error) = (None, None, None);
        (socket.read_shut, socket.write_shut) = (false, false);
        Ok(())
    }
}

impl Stack {
    /// `fcntl(2)`, as far as it is about the socket and not its descriptor.
    pub fn control(&mut self, fd: Fd, command: i32, argument: i32) -> Option<Answer<usize>> {
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
