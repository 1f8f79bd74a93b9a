//! TCP Fast Open with the socket calls of Linux: the options, `sendto(MSG_FASTOPEN)`, and a
//! `connect` that is deferred to the first write (TCP_FASTOPEN_CONNECT).

use tidelane_engine::{
    Endpoint, FastOpenKeys, FastOpenPolicy, FastOpenRequest, FlowRoute, IpAddress, State,
};

use crate::{
    address::Address,
    errno::{Answer, Errno},
    packet::LINK,
    settings::{Reading, Settings},
    socket::Role,
    stack::{Fd, Stack},
};

/// Fast Open state of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastOpen {
    /// TCP_FASTOPEN, once set.
    places: Option<u32>,
    /// TCP_FASTOPEN_KEY, once set.
    keys: Option<FastOpenKeys>,
    /// TCP_FASTOPEN_CONNECT.
    on_connect: bool,
    /// TCP_FASTOPEN_NO_COOKIE.
    without_cookie: bool,
    /// Peer of a deferred `connect`, whose SYN leaves with the first write.
    pub deferred: Option<Endpoint>,
    /// True if `connect` sent a cookie request, so that MSG_FASTOPEN comes too late.
    asked: bool,
    /// True until a call has reported that the connection is established.
    pub connecting: bool,
}

impl FastOpen {
    const fn request(&self, more_follows: bool) -> FastOpenRequest {
        FastOpenRequest {
            without_cookie: self.without_cookie,
            more_follows,
            held: false,
        }
    }
}

/// Parses the keys in `bytes`. Fails with EINVAL.
fn keys(bytes: &[u8]) -> Answer<FastOpenKeys> {
    FastOpenKeys::from_bytes(bytes).ok_or(Errno::INVAL)
}

impl Settings {
    /// Returns the policy of the sysctl `tcp_fastopen`.
    pub fn fast_open(&self) -> FastOpenPolicy {
        FastOpenPolicy::from_bits(self.number("tcp_fastopen") as u32)
    }

    /// Returns the keys of the sysctl `tcp_fastopen_key`.
    pub fn fast_open_keys(&self) -> Option<FastOpenKeys> {
        FastOpenKeys::from_text(self.text("tcp_fastopen_key"))
    }
}

impl Stack {
    /// `setsockopt` of a Fast Open option. `None` for any other option.
    pub fn set_fast_open(&mut self, fd: Fd, name: i32, value: &[u8]) -> Option<Answer<()>> {
        let set = match name {
            libc::TCP_FASTOPEN => Self::set_places,
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

    fn set_keys(&mut self, fd: Fd, keys: FastOpenKeys) -> Answer<()> {
        self.socket_mut(fd)?.fast_open.keys = Some(keys);
        self.update_listener(fd)
    }

    /// Fails unless the socket is in CLOSED or LISTEN.
    fn check_idle(&self, fd: Fd) -> Answer<()> {
        match self.state_of(fd)? {
            State::Closed | State::Listen => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_places(&mut self, fd: Fd, number: i32) -> Answer<()> {
        self.check_idle(fd)?;
        let places = u32::try_from(number).map_err(|_| Errno::INVAL)?;
        self.socket_mut(fd)?.fast_open.places = Some(places);
        self.update_listener(fd)
    }

    fn set_on_connect(&mut self, fd: Fd, number: i32) -> Answer<()> {
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

    fn set_without_cookie(&mut self, fd: Fd, number: i32) -> Answer<()> {
        let on = flag(number)?;
        self.check_idle(fd)?;
        self.socket_mut(fd)?.fast_open.without_cookie = on;
        self.update_listener(fd)
    }

    /// Passes the options of a listener to the engine.
    pub(crate) fn update_listener(&mut self, fd: Fd) -> Answer<()> {
        let socket = self.socket(fd)?;
        let Role::Listener { id, .. } = socket.role else {
            return Ok(());
        };
        let set = socket.fast_open;
        self.drive(|engine, _, _| {
            engine.set_fast_open_without_cookie(id, set.without_cookie);
            if let Some(places) = set.places {
                engine.set_fast_open_places(id, places);
            }
            if let Some(keys) = set.keys {
                engine.set_fast_open_keys(Some(id), keys);
            }
        });
        Ok(())
    }

    /// `getsockopt` of a Fast Open option. `None` for any other option.
    pub fn fast_open_option(&self, fd: Fd, name: i32) -> Option<Vec<u8>> {
        let set = &self.socket(fd).ok()?.fast_open;
        let number = match name {
            libc::TCP_FASTOPEN => set.places.unwrap_or(0),
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

    /// Drops the cookies of servers, as `ip tcp_metrics flush` does in the kernel.
    pub fn forget_servers(&mut self) {
        self.drive(|engine, _, _| engine.forget_fast_open_servers());
    }

    fn syn_room(&mut self, fd: Fd, to: IpAddress) -> Answer<Option<u32>> {
        let socket = self.socket(fd)?;
        let (options, request) = (socket.options.engine, socket.fast_open.request(false));
        let mtu = self.wire.mtu;
        Ok(self.drive(|engine, now, _| engine.fast_open_room(now, to, mtu, &options, request)))
    }

    /// Handles `connect` with TCP_FASTOPEN_CONNECT. Returns false if the option is not set. The SYN
    /// waits for the first write if it may carry data, and otherwise requests a cookie.
    pub(crate) fn connect_fast(&mut self, fd: Fd, to: Endpoint) -> Answer<bool> {
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
        self.socket_mut(fd)?.fast_open.asked = true;
        Ok(true)
    }

    /// Sends the SYN with `data`, which must fit.
    fn open_fast(&mut self, fd: Fd, to: Endpoint, data: &[u8], more: bool) -> Answer<()> {
        let local = self.local_for_connect(fd, to)?;
        let mtu = self.wire.mtu;
        let route = FlowRoute { link: LINK, mtu };
        let socket = self.socket(fd)?;
        let how = (socket.options.engine, socket.fast_open.request(more));
        let id = self
            .call_in_batch(|engine, now, wire| engine.open_fast(now, (local, to), route, how, wire))
            .map_err(crate::socket::errno_of_open)?;
        self.become_flow(fd, id, local, to)?;
        match data {
            [] => self.drive(|_, _, _| ()),
            data => self.append(id, data, true, false)?,
        }
        Ok(())
    }

    /// Returns true if `send` with these flags also opens the connection.
    pub fn sends_with_syn(&self, fd: Fd, flags: i32) -> Answer<bool> {
        let deferred = self.socket(fd)?.fast_open.deferred.is_some();
        Ok(deferred || flags & libc::MSG_FASTOPEN != 0)
    }

    /// Opens the connection with as many of `bytes` as the SYN may carry, and returns their number.
    /// `None` if the connection is open already, so that `bytes` are sent normally. `waits` is true
    /// if the program blocks to write the rest.
    pub fn send_with_syn(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        to: Option<Address>,
        waits: bool,
    ) -> Answer<Option<usize>> {
        self.follow_settings(&Reading::now());
        if !self.settings.fast_open().client || to == Some(Address::None) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let socket = self.socket(fd)?;
        if socket.fast_open.asked {
            return Err(Errno(libc::EALREADY));
        }
        match (&socket.role, socket.fast_open.connecting) {
            (Role::Flow(_), true) => return self.send_again(fd),
            (Role::Flow(_) | Role::Listener { .. }, _) => return Err(Errno(libc::EISCONN)),
            (Role::Fresh | Role::Over, _) => {}
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

    /// Handles MSG_FASTOPEN on a socket that has sent its SYN.
    fn send_again(&mut self, fd: Fd) -> Answer<Option<usize>> {
        match self.state_of(fd)? {
            State::SynSent | State::SynReceived => Err(Errno(libc::EALREADY)),
            _ => {
                self.socket_mut(fd)?.fast_open.connecting = false;
                Ok(None)
            }
        }
    }
}

fn flag(number: i32) -> Answer<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::INVAL),
    }
}
