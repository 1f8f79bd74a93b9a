//! Listening sockets: the driver's functions for the listeners of programs.
//!
//! A program listens with a kernel socket. The driver (the daemon) steers the packets for this
//! socket to the service, and then adds a listener to each core's [`Host`], the TCP/IP stack of the
//! core.

use std::collections::VecDeque;

use tidelane_abi::OpenOptions;
use tidelane_engine::{FastOpenKeys, FastOpenPolicy, ListenerId, SocketOptions};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;
use tidelane_wire::Endpoint;

use crate::{Host, ProgramId, listeners::Listener, options::opened_with};

/// The reason for which a listener was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// A listener of another kernel socket has the address and port.
    InUse,
    /// The engine has reached its limit of listeners, or does not support the address and port.
    Limit,
    /// The program does not exist, or has ended.
    NoProgram,
}

/// A listening kernel socket for which [`Host::listen`] makes a listener.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Number that programs use for the listener; unique, and the same on all cores.
    pub number: u32,
    /// The kernel socket's cookie (SO_COOKIE).
    pub key: u64,
    /// Listening address and port; `::` means both IP versions, unless `v6_only` is true.
    pub local: Endpoint,
    /// True if `::` means IPv6 only (IPV6_V6ONLY).
    pub v6_only: bool,
    /// User id of the owner of the socket's SO_REUSEPORT group; `None` if the socket has no group.
    /// The listeners of a group share an address and port.
    pub group: Option<u32>,
    /// Limit of connections in the accept queue.
    pub backlog: u32,
    /// True if the listener also gets connections within the host (over loopback, and to addresses
    /// of other interfaces).
    pub within_host: bool,
}

/// Fast Open options of a listener's kernel socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerFastOpen {
    /// TCP_FASTOPEN: limit of pending Fast Open requests; zero disables Fast Open.
    pub places: u32,
    /// TCP_FASTOPEN_NO_COOKIE: true if the listener accepts data in SYNs without a cookie.
    pub without_cookie: bool,
    /// TCP_FASTOPEN_KEY: the cookie keys of the listener; `None` for the host's keys.
    pub keys: Option<FastOpenKeys>,
}

impl<P: PacketIo> Host<P> {
    /// Adds a listener for a kernel socket of a program. A second program with the same socket gets
    /// the same listener. If the socket's port has changed since the last `listen`, the caller must
    /// call [`suspend_listener`](Self::suspend_listener) before this call.
    pub fn listen(&mut self, id: ProgramId, listen: &Listen) -> Result<ListenerId, ListenError> {
        let &Listen {
            number,
            key,
            local,
            v6_only,
            group,
            backlog,
            within_host,
        } = listen;
        let program = self
            .stack
            .io
            .programs
            .get(id)
            .filter(|program| !program.gone);
        let owner = program.map(|program| program.credentials.clone());
        let Some(owner) = owner else {
            return Err(ListenError::NoProgram);
        };
        if let Some(known) = self.stack.io.listeners.find(key) {
            self.stack.engine.set_backlog(known, backlog);
            if let Some(entry) = self.stack.io.listeners.get_mut(known) {
                entry.hold(id, within_host);
            }
            return Ok(known);
        }
        let options = SocketOptions {
            v6_only,
            ..*self.sockets.base_options()
        };
        let listener = match self
            .stack
            .engine
            .listen_in_group(local, backlog, options, group)
        {
            Ok(listener) => listener,
            Err(tidelane_engine::ListenError::InUse) => return Err(ListenError::InUse),
            Err(_) => return Err(ListenError::Limit),
        };
        let suspended = self.stack.io.listeners.take_suspended(key);
        let mut entry = suspended.unwrap_or_else(|| Listener {
            number,
            key,
            local,
            within_host,
            owner,
            holders: Vec::new(),
            members: Vec::new(),
            waiting: VecDeque::new(),
        });
        (entry.local, entry.within_host) = (local, within_host);
        entry.hold(id, within_host);
        self.stack.io.listeners.insert(listener, entry);
        Ok(listener)
    }

    /// Releases a program's hold of the listener of the kernel socket with cookie `key`. If no
    /// other program holds the listener, the listener ends.
    pub fn unlisten(&mut self, now: Instant, id: ProgramId, key: u64) {
        self.stack.io.now = now;
        match self.stack.io.listeners.find(key) {
            Some(listener) => self.stack.drop_listener_holder(now, id, listener),
            None => {
                let listeners = &mut self.stack.io.listeners;
                listeners.drop_suspended_holder(id, |listener| listener.key == key);
            }
        }
    }

    /// Suspends the listener of the kernel socket with cookie `key`: resets the connections in its
    /// accept queue, and refuses further connections. The programs that hold the listener keep
    /// their holds. After the next [`listen`](Self::listen) with the socket, these programs get the
    /// new connections of the listener. Any program may make this call of `listen`, even a program
    /// that does not hold the listener.
    pub fn suspend_listener(&mut self, now: Instant, key: u64) {
        self.stack.io.now = now;
        if let Some(listener) = self.stack.io.listeners.find(key) {
            let waiting = self.stack.io.listeners.suspend(listener);
            self.stack.end_listener(now, listener, waiting);
        }
    }

    /// Returns the cookie (SO_COOKIE) of the kernel socket of each listener that is not suspended.
    pub fn listener_keys(&self) -> Vec<u64> {
        let listeners = self.stack.io.listeners.iter();
        listeners.map(|(_, entry)| entry.key).collect()
    }

    /// Drains the listener of the kernel socket with cookie `key`. Before this call, the driver
    /// steers the listener's SYNs from the network to the kernel. After the call, new connections
    /// from programs on this machine to the listener also go to the kernel. The engine still
    /// answers a SYN that reaches the engine, for example a SYN that was received earlier.
    pub fn drain_listener(&mut self, key: u64) {
        if let Some(listener) = self.stack.io.listeners.find(key) {
            self.stack.engine.drain_listener(listener);
        }
    }

    /// Returns true if the listener of the kernel socket with cookie `key` has no half-open
    /// connection, no connection that waits for accept, and no SYN cookie that is still valid. Also
    /// returns true if no listener has this key, or if the listener is suspended.
    pub fn is_listener_idle(&self, now: Instant, key: u64) -> bool {
        let listener = self.stack.io.listeners.find(key);
        listener.is_none_or(|id| self.stack.engine.is_listener_idle(now, id))
    }

    /// Sets the options of a listener's new connections.
    pub fn set_listener_options(&mut self, listener: ListenerId, options: &OpenOptions) {
        let options = opened_with(options, *self.sockets.base_options());
        self.stack.engine.set_listener_options(listener, options);
    }

    /// Sets the host's Fast Open policy and cookie keys; `None` keeps the present keys.
    pub fn set_fast_open(&mut self, policy: FastOpenPolicy, keys: Option<FastOpenKeys>) {
        self.stack.engine.set_fast_open_policy(policy);
        if let Some(keys) = keys {
            self.stack.engine.set_fast_open_keys(None, keys);
        }
    }

    /// Sets the Fast Open options of a listener.
    pub fn set_listener_fast_open(&mut self, listener: ListenerId, set: &ListenerFastOpen) {
        let engine = &mut self.stack.engine;
        engine.set_fast_open_qlen_max(listener, set.places);
        engine.set_fast_open_without_cookie(listener, set.without_cookie);
        if let Some(keys) = set.keys {
            engine.set_fast_open_keys(Some(listener), keys);
        }
    }
}
