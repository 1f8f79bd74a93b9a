//! A TCP socket of the embedded stack, with the calls and errors of Linux.

use tidelane_embedded::{
    CloseCause, Connection, Endpoint, Event, ListenError, Listener, State, Status,
};
use tidelane_packetdrill::{
    errno::{CallResult, Errno, errno_of_open, of_cause},
    info::tcp_info_unconnected,
    options::Options,
    socket::Shutdown,
};

use super::{
    fast_open::FastOpen,
    host::Host,
    reader::Reader,
    waits::{Wait, Waits},
    writer::Writer,
};

/// The object of the embedded stack that a socket uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// No object: the socket is neither listening nor connected.
    Unconnected,
    /// A listener.
    Listener(Listener),
    /// A connection.
    Connection(Connection),
}

/// A TCP socket.
#[derive(Debug)]
pub struct Socket {
    role: Role,
    nonblocking: bool,
    /// Local endpoint that `bind` has set.
    local: Option<Endpoint>,
    options: Options,
    /// The pending error, which a later call or SO_ERROR returns once.
    error: Option<Errno>,
    /// Number of connections that wait to be accepted.
    incoming: u32,
    reader: Reader,
    writer: Writer,
    fast_open: FastOpen,
    waits: Waits,
}

impl Socket {
    /// Implements `socket(2)`.
    pub fn new(host: &Host, domain: i32, kind: i32, protocol: i32) -> CallResult<Self> {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if kind & !flags != libc::SOCK_STREAM || ![0, libc::IPPROTO_TCP].contains(&protocol) {
            return Err(Errno(libc::EPROTONOSUPPORT));
        }
        let options = Options::new(&host.settings);
        Ok(Self {
            nonblocking: kind & libc::SOCK_NONBLOCK != 0,
            ..Self::with(Role::Unconnected, options)
        })
    }

    fn with(role: Role, options: Options) -> Self {
        Self {
            role,
            nonblocking: false,
            local: None,
            options,
            error: None,
            incoming: 0,
            reader: Reader::default(),
            writer: Writer::default(),
            fast_open: FastOpen::default(),
            waits: Waits::default(),
        }
    }

    fn connection(&self) -> Option<Connection> {
        match self.role {
            Role::Connection(connection) => Some(connection),
            Role::Unconnected | Role::Listener(_) => None,
        }
    }

    /// Returns the status of the connection, if there is one.
    pub fn status(&self, host: &Host) -> Option<Status> {
        host.stack.status(self.connection()?)
    }

    /// Returns the TCP state. A deferred `connect` counts as SYN-SENT.
    fn state(&self, host: &Host) -> State {
        match self.role {
            Role::Unconnected if self.fast_open.deferred.is_some() => State::SynSent,
            Role::Unconnected => State::Closed,
            Role::Listener(_) => State::Listen,
            Role::Connection(connection) => {
                let info = host.stack.info(connection);
                info.map_or(State::Closed, |info| info.state)
            }
        }
    }

    /// Implements `bind(2)`.
    pub fn bind(&mut self, local: Endpoint) -> CallResult<()> {
        if self.local.is_some() || self.role != Role::Unconnected {
            return Err(Errno::INVAL);
        }
        self.local = Some(local);
        Ok(())
    }

    /// Returns the local endpoint that `bind` has set, or else the host's address with port 0.
    fn local(&self, host: &Host) -> Endpoint {
        self.local.unwrap_or(Endpoint::new(host.address, 0))
    }

    /// Implements `listen(2)`.
    pub fn listen(&mut self, host: &mut Host, backlog: i32) -> CallResult<()> {
        let backlog = backlog.max(0) as u32;
        match self.role {
            Role::Unconnected => {}
            Role::Listener(listener) => {
                host.stack.set_backlog(listener, backlog);
                return Ok(());
            }
            Role::Connection(_) => return Err(Errno::INVAL),
        }
        let (local, options) = (self.local(host), self.options.engine);
        let listener = host.stack.listen_with(local, backlog, options);
        let listener = listener.map_err(|error| match error {
            ListenError::InUse => Errno(libc::EADDRINUSE),
            ListenError::Full => Errno(libc::ENFILE),
            ListenError::BadEndpoint => Errno::INVAL,
        })?;
        self.role = Role::Listener(listener);
        self.fast_open.apply(host, listener);
        Ok(())
    }

    /// Implements `accept(2)`. Returns the socket of the connection.
    pub fn accept(&mut self, host: &mut Host) -> CallResult<Self> {
        let Role::Listener(listener) = self.role else {
            return Err(Errno::INVAL);
        };
        let Some(connection) = host.stack.accept(listener) else {
            self.waits.begin(Wait::Accept);
            return Err(Errno::AGAIN);
        };
        self.waits.end(Wait::Accept);
        self.incoming = self.incoming.saturating_sub(1);
        let role = Role::Connection(connection);
        Ok(Self::with(role, self.options.clone()))
    }

    /// Starts `connect(2)`.
    pub fn connect(&mut self, host: &mut Host, peer: Endpoint) -> CallResult<()> {
        match self.state(host) {
            State::Closed if self.role == Role::Unconnected => {}
            State::SynSent | State::SynReceived if self.connection().is_none() => {
                return Err(Errno(libc::EISCONN));
            }
            State::SynSent | State::SynReceived if self.nonblocking => {
                return Err(Errno(libc::EALREADY));
            }
            State::SynSent | State::SynReceived => return Ok(()),
            _ => return Err(Errno(libc::EISCONN)),
        }
        let options = self.options.engine;
        if self.fast_open.on_connect {
            if host.stack.fast_open_room(peer.addr, &options).is_some() {
                self.fast_open.deferred = Some(peer);
                return Ok(());
            }
            self.open_fast(host, peer, &[])?;
            self.fast_open.cookie_requested = true;
            return Ok(());
        }
        let opened = host.stack.connect_with(self.local(host), peer, options);
        self.opened(opened.map_err(errno_of_open)?);
        Ok(())
    }

    fn opened(&mut self, connection: Connection) {
        self.role = Role::Connection(connection);
        self.error = None;
        self.fast_open.deferred = None;
        self.fast_open.connecting = true;
    }

    /// Opens the connection with data in the SYN. Returns the number of bytes in the SYN.
    fn open_fast(&mut self, host: &mut Host, peer: Endpoint, data: &[u8]) -> CallResult<usize> {
        let (local, options) = (self.local(host), self.options.engine);
        let opened = host.stack.connect_fast(local, peer, options, data);
        let (connection, in_syn) = opened.map_err(errno_of_open)?;
        self.opened(connection);
        Ok(in_syn)
    }

    /// Returns the result of the handshake. Fails with EAGAIN while the handshake is not complete.
    pub fn connect_result(&mut self, host: &Host) -> CallResult<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.state(host) {
            State::SynSent | State::SynReceived => {
                self.waits.begin(Wait::Connect);
                Err(Errno::AGAIN)
            }
            State::Closed | State::Listen => Err(Errno(libc::ECONNABORTED)),
            _ => {
                self.waits.end(Wait::Connect);
                self.fast_open.connecting = false;
                Ok(())
            }
        }
    }

    /// Returns true if a write with `flags` opens the connection.
    pub fn sends_with_syn(&self, flags: i32) -> bool {
        self.fast_open.deferred.is_some() || flags & libc::MSG_FASTOPEN != 0
    }

    /// Opens the connection with as many of `bytes` as the SYN may carry, and returns their number.
    /// Returns `None` if the connection is already open, and no call has reported this before.
    pub fn send_with_syn(
        &mut self,
        host: &mut Host,
        bytes: &[u8],
        to: Option<Endpoint>,
    ) -> CallResult<Option<usize>> {
        if !host.settings.fast_open().client {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if self.fast_open.cookie_requested {
            return Err(Errno(libc::EALREADY));
        }
        match (self.role, self.state(host)) {
            (Role::Unconnected, _) => {}
            (Role::Connection(_), State::SynSent | State::SynReceived)
                if self.fast_open.connecting =>
            {
                return Err(Errno(libc::EALREADY));
            }
            (Role::Connection(_), _) if std::mem::take(&mut self.fast_open.connecting) => {
                return Ok(None);
            }
            _ => return Err(Errno(libc::EISCONN)),
        }
        let peer = self.fast_open.deferred.or(to).ok_or(Errno::INVAL)?;
        self.open_fast(host, peer, bytes).map(Some)
    }

    /// Implements `shutdown(2)`.
    pub fn shutdown(&mut self, host: &mut Host, how: Shutdown) -> CallResult<()> {
        match (self.role, self.state(host)) {
            (Role::Listener(listener), _) => {
                if how.read {
                    host.stack.unlisten(listener);
                    self.role = Role::Unconnected;
                }
                return Ok(());
            }
            (_, State::Closed) => return Err(Errno(libc::ENOTCONN)),
            _ => {}
        }
        self.reader.shut |= how.read;
        if how.read {
            self.waits.cancel(Wait::Read);
        }
        self.writer.shut |= how.write;
        if let Some(connection) = self.connection().filter(|_| how.write) {
            host.stack.shutdown(connection);
        }
        Ok(())
    }

    /// Implements `close(2)`.
    pub fn close(self, host: &mut Host) {
        match self.role {
            Role::Unconnected => {}
            Role::Listener(listener) => host.stack.unlisten(listener),
            Role::Connection(connection) if self.options.linger == Some(0) => {
                host.stack.abort(connection);
            }
            Role::Connection(connection) => host.stack.close(connection),
        }
    }

    /// Implements `recv(2)`.
    pub fn receive(&mut self, host: &mut Host, len: usize, flags: i32) -> CallResult<Vec<u8>> {
        let state = self.state(host);
        let (Some(connection), Some(status)) = (self.connection(), self.status(host)) else {
            return match self.error.take() {
                _ if flags & libc::MSG_OOB != 0 => Err(Errno::INVAL),
                _ if state == State::SynSent => Err(Errno::AGAIN),
                Some(error) => Err(error),
                None => Err(Errno(libc::ENOTCONN)),
            };
        };
        let (of, error) = ((connection, status), &mut self.error);
        let received = self.reader.receive(host, of, error, len, flags);
        match received {
            _ if flags & libc::MSG_OOB != 0 => {}
            Err(Errno::AGAIN) => self.waits.begin(Wait::Read),
            _ => self.waits.end(Wait::Read),
        }
        received
    }

    /// Implements `send(2)`.
    pub fn send(&mut self, host: &mut Host, bytes: &[u8], flags: i32) -> CallResult<usize> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let of = match (self.connection(), self.state(host)) {
            (Some(connection), state) => (connection, state),
            (None, State::SynSent) => return Err(Errno::AGAIN),
            (None, _) => return Err(Errno(libc::EPIPE)),
        };
        let sent = self.writer.send(host, of, bytes, flags);
        match sent {
            Err(Errno::AGAIN) if of.1 == State::SynSent => self.waits.begin(Wait::Connect),
            Err(Errno::AGAIN) => self.waits.begin(Wait::Write),
            Ok(_) => self.waits.end(Wait::Write),
            Err(_) => {}
        }
        sent
    }

    /// Records whether the next write has MSG_MORE.
    pub fn more_to_come(&mut self, host: &mut Host, more: bool) {
        if let Some(connection) = self.connection() {
            let of = (connection, self.options.engine);
            self.writer.more_to_come(host, of, more);
        }
    }

    /// Prepares for the arrival of a packet: the reader records whether the urgent byte is the next
    /// byte to read, and the writer removes the cork of MSG_MORE.
    pub fn before_packet(&mut self, host: &mut Host) {
        let Some(connection) = self.connection() else {
            return;
        };
        if let Some(status) = host.stack.status(connection) {
            self.reader.urgent.before_packet(&status);
        }
        self.writer
            .before_packet(host, connection, self.options.engine);
    }

    /// Restores the cork of MSG_MORE after the arrival of a packet.
    pub fn after_packet(&mut self, host: &mut Host) {
        if let Some(connection) = self.connection() {
            self.writer
                .after_packet(host, connection, self.options.engine);
        }
    }

    /// Returns true if `event` is an event of this socket.
    pub fn has(&self, event: &Event) -> bool {
        match event {
            Event::Incoming(listener) => self.role == Role::Listener(*listener),
            Event::Connected(of) | Event::Readable(of) | Event::Writable(of) => {
                self.role == Role::Connection(*of)
            }
            Event::Urgent(of) | Event::Closed(of, _) => self.role == Role::Connection(*of),
        }
    }

    /// Handles an event of this socket. As in Linux, a reset in CLOSE-WAIT gives EPIPE instead of
    /// ECONNRESET.
    pub fn on_event(&mut self, host: &mut Host, event: Event) {
        self.waits.on_event(&event);
        let status = self.status(host);
        match (event, status) {
            (Event::Incoming(_), _) => self.incoming += 1,
            (Event::Closed(_, cause), Some(status)) => {
                let fin = status.peer_closed && !self.writer.shut;
                self.error = match cause {
                    CloseCause::Reset if fin => Some(Errno(libc::EPIPE)),
                    _ => of_cause(cause),
                };
            }
            (Event::Urgent(connection), Some(status)) => {
                let skips_one = self.reader.urgent.on_announced(&status);
                if skips_one {
                    host.stack.consume(connection, 1);
                }
            }
            _ => {}
        }
    }

    /// Implements `setsockopt(2)`.
    pub fn set_option(
        &mut self,
        host: &mut Host,
        (level, name): (i32, i32),
        value: &[u8],
    ) -> CallResult<()> {
        let idle = matches!(self.state(host), State::Closed | State::Listen);
        let of_fast_open = match level {
            libc::IPPROTO_TCP => self.fast_open.set(host, name, value, idle),
            _ => None,
        };
        if let Some(result) = of_fast_open {
            if let Role::Listener(listener) = self.role {
                self.fast_open.apply(host, listener);
            }
            return result;
        }
        self.options.set(level, name, value)?;
        let options = self.options.engine;
        self.reader.urgent.inline = self.options.is_on(libc::SOL_SOCKET, libc::SO_OOBINLINE);
        match self.role {
            Role::Unconnected => {}
            Role::Listener(listener) => host.stack.set_listener_options(listener, options),
            Role::Connection(connection) => host.stack.set_options(connection, options),
        }
        Ok(())
    }

    /// Implements `getsockopt(2)`.
    pub fn option(&mut self, host: &Host, level: i32, name: i32) -> CallResult<Vec<u8>> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = self.error.take().map_or(0, |error| error.0);
                Ok(error.to_ne_bytes().to_vec())
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let mss_max = self.options.engine.mss_max;
                let info = self.connection().and_then(|of| host.tcp_info(of, mss_max));
                Ok(info.unwrap_or_else(|| tcp_info_unconnected(self.state(host))))
            }
            _ => {
                let value = self.options.get(level, name);
                value.ok_or(Errno(libc::ENOPROTOOPT))
            }
        }
    }

    /// Implements `fcntl(2)` with F_GETFL or F_SETFL.
    pub fn control(&mut self, command: i32, argument: i32) -> CallResult<i64> {
        match command {
            libc::F_GETFL => {
                let flag = i32::from(self.nonblocking) * libc::O_NONBLOCK;
                Ok((libc::O_RDWR | flag).into())
            }
            libc::F_SETFL => {
                self.nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns the events of `poll(2)`.
    pub fn readiness(&self, host: &Host) -> i16 {
        let input = libc::POLLIN | libc::POLLRDNORM;
        let output = libc::POLLOUT | libc::POLLWRNORM;
        let Some(status) = self.status(host) else {
            return match self.role {
                Role::Listener(_) => input * i16::from(self.incoming > 0),
                _ if self.fast_open.deferred.is_some() => output,
                _ => output | libc::POLLHUP,
            };
        };
        let state = self.state(host);
        let when = |is: bool, events: i16| events * i16::from(is);
        let error = when(self.error.is_some(), libc::POLLERR);
        if state == State::SynSent {
            return error;
        }
        let over = status.cause.is_some() || matches!(state, State::Closed | State::TimeWait);
        let end_of_input = self.reader.is_input_over(&status) || over;
        let writable = status.writable.is_none_or(|room| room > 0);
        error
            | when(over || (end_of_input && self.writer.shut), libc::POLLHUP)
            | when(end_of_input, input | libc::POLLRDHUP)
            | when(self.reader.urgent.is_readable(&status), input)
            | when(self.reader.urgent.has_urgent(&status), libc::POLLPRI)
            | when(writable, output)
    }

    /// Returns the number of bytes that SIOCINQ counts as readable.
    pub fn unread(&self, host: &Host) -> u32 {
        let status = self.status(host);
        status.map_or(0, |status| self.reader.urgent.unread(&status))
    }

    /// Returns the number of written bytes that are not sent (SIOCOUTQNSD).
    pub fn unsent(&self, host: &Host) -> u32 {
        let info = self.connection().and_then(|of| host.stack.info(of));
        info.map_or(0, |info| info.unsent)
    }
}
