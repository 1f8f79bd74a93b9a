//! The data that a socket's lock protects. Calls of the program change this data, and so do events
//! of the service (the process `tidelaned`). A channel is a set of rings that this process shares
//! with the service. A slot is the record of one connection in shared memory.

use tidelane_abi::close_cause;

use super::{
    options::Options,
    registration_ref::RegistrationRef,
    state::{Connecting, State},
};
use crate::{
    service::{Channel, Connection},
    sys::{Errno, SmallVec, from_cause},
};

/// First bytes of an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`).
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The data that a socket's lock protects, such as the state, the options, and the pending error.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// Counts the uses of the socket, so that late events of an earlier use are recognised.
    pub(crate) generation: u32,
    /// Number of descriptors of this process that refer to the socket.
    pub(crate) descriptors: u32,
    /// The channel that carries the requests and events of the socket's connection. A listener has
    /// `Listening::joined` instead.
    pub(crate) channel: Option<&'static Channel>,
    /// Identity of the thread that last waited for the socket in a blocking call, or 0.
    pub(crate) last_waiter: usize,
    pub(crate) options: Options,
    /// Errno that the next call or SO_ERROR returns, or 0.
    pub(crate) error: i32,
    /// Errno of an ICMP error that did not end the connection, or 0. SO_ERROR returns this value if
    /// `error` is 0.
    pub(crate) soft_error: i32,
    /// True after the connection has ended and the cause was copied to `error`. Each cause is
    /// reported only once.
    pub(crate) cause_reported: bool,
    /// True for family AF_INET6: addresses are written as `sockaddr_in6`.
    pub(crate) inet6: bool,
    /// True if the program bound the socket to a local address or port (`bind`).
    pub(crate) bound: bool,
    /// True if the next `connect` has to return the result of an active open that an earlier
    /// `connect` began.
    pub(crate) connect_pending: bool,
    /// True after SHUT_RD.
    pub(crate) shut_read: bool,
    /// True after SHUT_WR.
    pub(crate) shut_write: bool,
    /// True if several processes had descriptors of the connection, after a fork, when this process
    /// last checked.
    pub(crate) shared: bool,
    /// True if the last write had MSG_MORE.
    pub(crate) corked_once: bool,
    /// True if a write found no room. An edge-triggered registration then reports EPOLLOUT as soon
    /// as the send buffer has room.
    pub(crate) no_space: bool,
    /// Number of bytes that the program has read.
    pub(crate) bytes_read: u64,
    /// All registrations with epoll instances except the first, which is in `Socket::registration`.
    pub(crate) more_registrations: Vec<RegistrationRef>,
}

impl Inner {
    /// Returns the data of a free socket.
    pub(crate) const fn free(generation: u32) -> Self {
        Self {
            state: State::Free,
            generation,
            descriptors: 0,
            channel: None,
            last_waiter: 0,
            options: Options::DEFAULT,
            error: 0,
            soft_error: 0,
            cause_reported: false,
            inet6: false,
            bound: false,
            connect_pending: false,
            shut_read: false,
            shut_write: false,
            shared: false,
            corked_once: false,
            no_space: false,
            bytes_read: 0,
            more_registrations: Vec::new(),
        }
    }

    /// Returns the connection, established or not, or `None` without a connection.
    #[inline]
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Stream(connection) => Some(connection),
            State::Connecting(connecting) => connecting.connection.as_mut(),
            _ => None,
        }
    }

    /// Updates the state and the error from the connection's slot, because the handshake or the
    /// connection may have ended.
    pub(crate) fn refresh(&mut self) {
        if matches!(self.state, State::Connecting(_)) {
            self.refresh_connecting();
        }
        self.note_soft_error();
        if let State::Stream(connection) = &self.state
            && !self.cause_reported
            && let Some(cause) = connection.stream.closed()
        {
            self.cause_reported = true;
            let fin = connection.stream.has_received_fin();
            // In CLOSE-WAIT, Linux reports a RST as EPIPE (`tcp_reset`).
            let in_close_wait = fin && !self.shut_write;
            self.error = match from_cause(cause) {
                libc::ECONNRESET if in_close_wait => libc::EPIPE,
                number => number,
            };
        }
    }

    /// Records an ICMP error, if the service reports one. If the program set IP_RECVERR (for an
    /// IPv4 peer) or IPV6_RECVERR (for an IPv6 peer), the error fails the next call. Otherwise only
    /// SO_ERROR returns the error.
    fn note_soft_error(&mut self) {
        let State::Stream(connection) = &mut self.state else {
            return;
        };
        let Some(cause) = connection.stream.soft_error() else {
            return;
        };
        let is_v4 = connection.stream.ids().peer_addr[..12] == V4_MAPPED;
        let number = from_cause(cause);
        if self.options.reports_path_errors(is_v4) {
            self.error = number;
        } else {
            self.soft_error = number;
        }
    }

    /// Handles the end of the handshake. Also handles the death of the service, if the service died
    /// before it answered the connect request.
    fn refresh_connecting(&mut self) {
        let State::Connecting(connecting) = &mut self.state else {
            return;
        };
        let Some(connection) = &mut connecting.connection else {
            if connecting.has_lost_service() {
                self.fail_connect(close_cause::ABORTED);
            }
            return;
        };
        if connection.stream.established() {
            let connection = connecting.connection.take();
            self.state = connection.map_or(State::Failed, State::Stream);
        } else if let Some(cause) = connection.stream.closed() {
            self.fail_connect(cause);
        }
    }

    /// Fails the active open with the errno of `cause`, a [`close_cause`].
    pub(crate) fn fail_connect(&mut self, cause: u32) {
        let number = from_cause(cause);
        self.error = if number == 0 {
            libc::ECONNRESET
        } else {
            number
        };
        if let State::Connecting(Connecting {
            connection: Some(mut connection),
            ..
        }) = std::mem::replace(&mut self.state, State::Failed)
        {
            connection.stream.close(true, None);
            if let Some(channel) = self.channel {
                channel.submit_now(&mut connection);
            }
        }
    }

    /// Returns and clears the error that the next call or SO_ERROR has to report.
    pub(crate) fn take_error(&mut self) -> Option<Errno> {
        match std::mem::take(&mut self.error) {
            0 => None,
            number => Some(Errno(number)),
        }
    }

    /// Returns the number of bytes received so far. For a listener, returns the number of
    /// connections that have ever entered the accept queue.
    pub(crate) fn bytes_received(&mut self) -> u64 {
        let bytes_read = self.bytes_read;
        match &mut self.state {
            State::Stream(connection) => bytes_read + connection.stream.undelivered(),
            State::Listening(listening) => listening.queued_count,
            _ => 0,
        }
    }

    /// Returns the channels on which the socket's events arrive.
    pub(crate) fn channels(&self) -> SmallVec<&'static Channel> {
        match &self.state {
            State::Listening(listening) => listening.joined.clone(),
            _ => SmallVec::from(self.channel),
        }
    }
}
