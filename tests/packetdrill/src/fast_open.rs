//! TCP Fast Open as Linux' sockets have it: the options, `sendto(MSG_FASTOPEN)`, and `connect` that
//! waits for the first write (TCP_FASTOPEN_CONNECT).

use tidelane_engine::{
    Endpoint, FastOpenKeys, FastOpenPolicy, FastOpenRequest, IpAddress, Route, State,
};

use crate::{
    address::Address,
    errno::{Answer, Errno},
    packet::LINK,
    settings::{Reading, Settings},
    socket::Role,
    stack::{Fd, Stack},
};

/// What a socket has to do with it.
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
    /// `connect` was called, and SYN goes with the first write.
    pub deferred: Option<Endpoint>,
    /// `connect` asked for a cookie, so MSG_FASTOPEN comes too late.
    asked: bool,
    /// No call has heard yet that the connection is complete.
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

/// The keys in `bytes`, or EINVAL.
fn keys(bytes: &[u8]) -> Answer<FastOpenKeys> {
    FastOpenKeys::from_bytes(bytes).ok_or(Errno::INVAL)
}

impl Settings {
    /// `tcp_fastopen`.
    pub fn fast_open(&self) -> FastOpenPolicy {
        FastOpenPolicy::from_bits(self.number("tcp_fastopen") as u32)
    }

    /// `tcp_fastopen_key`.
    pub fn fast_open_keys(&self) -> Option<FastOpenKeys> {
        FastOpenKeys::from_text(self.text("tcp_fastopen_key"))
    }
}

impl Stack {
    /// `setsockopt` of one of these options; `None` if it is another.
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
        self.tell_listener(fd)
    }

    /// Only a socket that is no connection.
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
        self.tell_listener(fd)
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
        self.tell_listener(fd)
    }

    /// The engine hears what was set at a listener, or before it listened.
    pub(crate) fn tell_listener(&mut self, fd: Fd) -> Answer<()> {
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

    /// `getsockopt` of one of these options; `None` if it is another.
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

    /// The shell flushed what the kernel knows of servers.
    pub fn forget_servers(&mut self) {
        self.drive(|engine, _, _| engine.forget_fast_open_servers());
    }

    fn syn_room(&mut self, fd: Fd, to: IpAddress) -> Answer<Option<u32>> {
        let socket = self.socket(fd)?;
        let (options, request) = (socket.options.engine, socket.fast_open.request(false));
        let mtu = self.wire.mtu;
        Ok(self.drive(|engine, now, _| engine.fast_open_room(now, to, mtu, &options, request)))
    }

    /// `connect` with TCP_FASTOPEN_CONNECT: false if it is not set. SYN waits for the first write
    /// if it may carry text, and else asks for a cookie.
    pub(crate) fn connect_fast(&mut self, fd: Fd, to: Endpoint) -> Answer<bool> {
        if !self.socket(fd)?.fast_open.on_connect {
            return Ok(false);
        }
        if self.syn_room(fd, to.addr)?.is_some() {
            let fast_open = &mut self.socket_mut(fd)?.fast_open;
            (fast_open.deferred, fast_open.connecting) = (Some(to), true);
            self.ring(fd);
            return Ok(true);
        }
        self.open_fast(fd, to, &[], false)?;
        self.socket_mut(fd)?.fast_open.asked = true;
        Ok(true)
    }

    /// SYN leaves, with `text`, which fits.
    fn open_fast(&mut self, fd: Fd, to: Endpoint, text: &[u8], more: bool) -> Answer<()> {
        let local = self.local_for_connect(fd, to)?;
        let mtu = self.wire.mtu;
        let route = Route { link: LINK, mtu };
        let socket = self.socket(fd)?;
        let how = (socket.options.engine, socket.fast_open.request(more));
        let id = self
            .quietly(|engine, now, wire| engine.open_fast(now, (local, to), route, how, wire))
            .map_err(crate::socket::errno_of_open)?;
        self.become_flow(fd, id, local, to)?;
        match text {
            [] => self.drive(|_, _, _| ()),
            text => self.append(id, text, true, false)?,
        }
        Ok(())
    }

    /// Whether `send` with these flags opens the connection, too.
    pub fn sends_with_syn(&self, fd: Fd, flags: i32) -> Answer<bool> {
        let deferred = self.socket(fd)?.fast_open.deferred.is_some();
        Ok(deferred || flags & libc::MSG_FASTOPEN != 0)
    }

    /// Opens the connection with as much of `bytes` as SYN may carry: how much that is. `None`: it
    /// is open already, and `bytes` go as always. The program `waits` to write the rest, or not.
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
        let text = &bytes[..bytes.len().min(room)];
        let more = waits && text.len() < bytes.len();
        self.open_fast(fd, to, text, more)?;
        Ok(Some(text.len()))
    }

    /// MSG_FASTOPEN once more.
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
