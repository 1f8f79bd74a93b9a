//! TCP Fast Open (RFC 7413) with the socket calls of Linux: the socket options,
//! `sendto(MSG_FASTOPEN)`, and TCP_FASTOPEN_CONNECT, which defers the SYN of a `connect` to the
//! first write.

use tidelane_engine::{
    Endpoint, FastOpenKeys, FastOpenPolicy, FastOpenRequest, FlowRoute, IpAddress, State,
};

use crate::{
    address::Address,
    errno::{CallResult, Errno, errno_of_open},
    inbound::LINK,
    role::Role,
    settings::{Reading, Settings},
    stack::{Fd, Stack},
};

/// Fast Open options and state of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastOpen {
    /// TCP_FASTOPEN: largest number of pending connections of a listener. The SYN of a pending
    /// connection carried data, and the handshake is not complete. `None` until the program sets
    /// the option.
    pending_requests_max: Option<u32>,
    /// TCP_FASTOPEN_KEY: the keys for a listener's cookies. `None` until the program sets the
    /// option.
    keys: Option<FastOpenKeys>,
    /// TCP_FASTOPEN_CONNECT: `connect` is deferred if the SYN may carry data.
    on_connect: bool,
    /// TCP_FASTOPEN_NO_COOKIE: a SYN may carry data without a cookie.
    without_cookie: bool,
    /// Peer of a deferred `connect`, whose SYN leaves with the first write. `None` if no `connect`
    /// is deferred.
    pub deferred: Option<Endpoint>,
    /// True if `connect` with TCP_FASTOPEN_CONNECT sent a SYN without data, usually with a cookie
    /// request. A later MSG_FASTOPEN fails with EALREADY.
    cookie_requested: bool,
    /// True from the `connect` or MSG_FASTOPEN that opens the connection, until a call has reported
    /// that the connection is established.
    pub connecting: bool,
}

impl FastOpen {
    /// Returns the parameters of the engine (Tidelane's TCP) for the SYN. `more_follows` is true if
    /// the program blocks in a write of more bytes than the SYN carries.
    const fn request(&self, more_follows: bool) -> FastOpenRequest {
        FastOpenRequest {
            without_cookie: self.without_cookie,
            more_follows,
            held: false,
        }
    }
}

/// Parses a value of TCP_FASTOPEN_KEY. Fails with EINVAL if the length is wrong.
fn keys(bytes: &[u8]) -> CallResult<FastOpenKeys> {
    FastOpenKeys::from_bytes(bytes).ok_or(Errno::INVAL)
}

impl Settings {
    /// Returns the policy of the sysctl `tcp_fastopen`.
    pub fn fast_open(&self) -> FastOpenPolicy {
        FastOpenPolicy::from_bits(self.number("tcp_fastopen") as u32)
    }

    /// Returns the keys of the sysctl `tcp_fastopen_key`, or `None` if its text is invalid.
    pub fn fast_open_keys(&self) -> Option<FastOpenKeys> {
        FastOpenKeys::from_text(self.text("tcp_fastopen_key"))
    }
}

impl Stack {
    /// Implements `setsockopt` of the TCP option `name`. Returns `None` if `name` is not a Fast
    /// Open option.
    pub fn set_fast_open(&mut self, fd: Fd, name: i32, value: &[u8]) -> Option<CallResult<()>> {
        let set = match name {
            libc::TCP_FASTOPEN => Self::set_pending_requests_max,
            libc::TCP_FASTOPEN_CONNECT => Self::set_on_connect,
            libc::TCP_FASTOPEN_NO_COOKIE => Self::set_without_cookie,
            libc::TCP_FASTOPEN_KEY => {
                return Some(keys(value).and_then(|keys| self.set_keys(fd, keys)));
            }
            _ => return None,
        };
        let number = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        Some(number.ok_or(Errno::INVAL).and_then(|number| {
            self.follow_settings(&Reading::now());
            set(self, fd, number)
        }))
    }

    fn set_keys(&mut self, fd: Fd, keys: FastOpenKeys) -> CallResult<()> {
        self.socket_mut(fd)?.fast_open.keys = Some(keys);
        self.update_listener(fd)
    }

    /// Fails with EINVAL if the socket's state is neither CLOSED nor LISTEN.
    fn check_idle(&self, fd: Fd) -> CallResult<()> {
        match self.state_of(fd)? {
            State::Closed | State::Listen => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_pending_requests_max(&mut self, fd: Fd, number: i32) -> CallResult<()> {
        self.check_idle(fd)?;
        let pending_requests_max = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        self.socket_mut(fd)?.fast_open.pending_requests_max = Some(pending_requests_max);
        self.update_listener(fd)
    }

    fn set_on_connect(&mut self, fd: Fd, number: i32) -> CallResult<()> {
        let on = flag(number)?;
        if !self.settings.fast_open().client {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if self.state_of(fd)? != State::Closed {
            return Err(Errno::INVAL);
        }
        self.socket_mut(fd)?.fast_open.on_connect = on;
        Ok(())
    }

    fn set_without_cookie(&mut self, fd: Fd, number: i32) -> CallResult<()> {
        let on = flag(number)?;
        self.check_idle(fd)?;
        self.socket_mut(fd)?.fast_open.without_cookie = on;
        self.update_listener(fd)
    }

    /// Passes the Fast Open options of a listener to the engine. Does nothing for other sockets.
    pub(crate) fn update_listener(&mut self, fd: Fd) -> CallResult<()> {
        let socket = self.socket(fd)?;
        let Role::Listener { id, .. } = socket.role else {
            return Ok(());
        };
        let set = socket.fast_open;
        self.drive(|engine, _, _| {
            engine.set_fast_open_without_cookie(id, set.without_cookie);
            if let Some(pending_requests_max) = set.pending_requests_max {
                engine.set_fast_open_qlen_max(id, pending_requests_max);
            }
            if let Some(keys) = set.keys {
                engine.set_fast_open_keys(Some(id), keys);
            }
        });
        Ok(())
    }

    /// Implements `getsockopt` of the TCP option `name`. Returns `None` if `name` is not a Fast
    /// Open option, `fd` is not a socket, or there is no key to return.
    pub fn fast_open_option(&self, fd: Fd, name: i32) -> Option<Vec<u8>> {
        let set = &self.socket(fd).ok()?.fast_open;
        let number = match name {
            libc::TCP_FASTOPEN => set.pending_requests_max.unwrap_or(0),
            libc::TCP_FASTOPEN_CONNECT => set.on_connect.into(),
            libc::TCP_FASTOPEN_NO_COOKIE => set.without_cookie.into(),
            libc::TCP_FASTOPEN_KEY => {
                let keys = set.keys.or(self.settings.fast_open_keys())?;
                return Some(
                    [
                        keys.primary.as_slice(),
                        keys.backup.as_slice().as_flattened(),
                    ]
                    .concat(),
                );
            }
            _ => return None,
        };
        Some(number.to_ne_bytes().to_vec())
    }

    /// Drops the cached cookies of all servers, as `ip tcp_metrics flush` does in the kernel.
    pub fn forget_servers(&mut self) {
        self.drive(|engine, _, _| engine.forget_fast_open_servers());
    }

    /// Returns the number of payload bytes that a SYN to `to` may carry. Returns `None` if the SYN
    /// may carry no data. This SYN requests a cookie, unless Fast Open is off or pauses after lost
    /// SYNs.
    fn syn_room(&mut self, fd: Fd, to: IpAddress) -> CallResult<Option<u32>> {
        let socket = self.socket(fd)?;
        let (options, request) = (socket.options.engine, socket.fast_open.request(false));
        let mtu = self.wire.mtu;
        Ok(self.drive(|engine, now, _| engine.fast_open_room(now, to, mtu, &options, request)))
    }

    /// Handles `connect` with TCP_FASTOPEN_CONNECT. Returns false if the option is not set.
    ///
    /// A SYN that may carry data is deferred to the first write. Any other SYN leaves immediately,
    /// without data.
    pub(crate) fn connect_fast(&mut self, fd: Fd, to: Endpoint) -> CallResult<bool> {
        if !self.socket(fd)?.fast_open.on_connect {
            return Ok(false);
        }
        if self.syn_room(fd, to.addr)?.is_some() {
            let fast_open = &mut self.socket_mut(fd)?.fast_open;
            (fast_open.deferred, fast_open.connecting) = (Some(to), true);
            self.mark_pending(fd);
            return Ok(true);
        }
        self.open_fast(fd, to, &[], false)?;
        self.socket_mut(fd)?.fast_open.cookie_requested = true;
        Ok(true)
    }

    /// Sends the SYN with `data`, which must fit into the SYN. `more` is true if the program blocks
    /// in a write of more bytes than `data`.
    fn open_fast(&mut self, fd: Fd, to: Endpoint, data: &[u8], more: bool) -> CallResult<()> {
        let local = self.local_for_connect(fd, to)?;
        let mtu = self.wire.mtu;
        let route = FlowRoute { link: LINK, mtu };
        let socket = self.socket(fd)?;
        let how = (socket.options.engine, socket.fast_open.request(more));
        let id = self
            .call_in_batch(|engine, now, wire| engine.open_fast(now, (local, to), route, how, wire))
            .map_err(errno_of_open)?;
        self.become_flow(fd, id, local, to)?;
        match data {
            [] => self.drive(|_, _, _| ()),
            data => self.append(id, data, true, false)?,
        }
        Ok(())
    }

    /// Returns true if a `connect` is deferred or `flags` has MSG_FASTOPEN. In both cases, `send`
    /// with `flags` may open the connection ([`Stack::send_with_syn`]).
    pub fn sends_with_syn(&self, fd: Fd, flags: i32) -> CallResult<bool> {
        let deferred = self.socket(fd)?.fast_open.deferred.is_some();
        Ok(deferred || flags & libc::MSG_FASTOPEN != 0)
    }

    /// Opens the connection with as many of `bytes` as the SYN may carry. Returns the number of
    /// bytes that the SYN carries. `waits` is true if the program blocks until all of `bytes` are
    /// written.
    ///
    /// If the handshake of an earlier SYN is complete and no call has reported this yet, returns
    /// `None`. The caller then sends `bytes` normally.
    pub fn send_with_syn(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        to: Option<Address>,
        waits: bool,
    ) -> CallResult<Option<usize>> {
        self.follow_settings(&Reading::now());
        if !self.settings.fast_open().client || to == Some(Address::None) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let socket = self.socket(fd)?;
        if socket.fast_open.cookie_requested {
            return Err(Errno(libc::EALREADY));
        }
        match (&socket.role, socket.fast_open.connecting) {
            (Role::Flow(_), true) => return self.send_again(fd),
            (Role::Flow(_) | Role::Listener { .. }, _) => return Err(Errno(libc::EISCONN)),
            (Role::Unconnected | Role::Released, _) => {}
        }
        let to = match (socket.fast_open.deferred, to) {
            (Some(to), _) | (None, Some(Address::Of(to))) => to,
            _ => return Err(Errno::INVAL),
        };
        let room = self.syn_room(fd, to.addr)?.unwrap_or(0) as usize;
        let data = &bytes[..bytes.len().min(room)];
        let more = waits && data.len() < bytes.len();
        self.open_fast(fd, to, data, more)?;
        Ok(Some(data.len()))
    }

    /// Handles MSG_FASTOPEN on a socket that has already sent its SYN. During the handshake, fails
    /// with EALREADY. After the handshake, returns `None`, so that the caller sends the bytes
    /// normally.
    fn send_again(&mut self, fd: Fd) -> CallResult<Option<usize>> {
        match self.state_of(fd)? {
            State::SynSent | State::SynReceived => Err(Errno(libc::EALREADY)),
            _ => {
                self.socket_mut(fd)?.fast_open.connecting = false;
                Ok(None)
            }
        }
    }
}

/// Parses a boolean option. Fails with EINVAL if the value is neither 0 nor 1.
fn flag(number: i32) -> CallResult<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::INVAL),
    }
}
