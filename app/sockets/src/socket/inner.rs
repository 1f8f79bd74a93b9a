//! The state under a socket's lock, and its changes by the service's reports.

use tidelane_abi::{close_cause, service_flags};

use super::{
    options::Options,
    registrations::WatchRef,
    state::{Connecting, State},
    urgent,
};
use crate::{
    service::{Connection, Lane},
    sys::{Errno, Few, from_cause},
};

/// How the address of an IPv4 peer begins.
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The state under the socket's lock.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    /// Counts the socket's uses, so that late events of an earlier one are recognised.
    pub(crate) generation: u32,
    /// Descriptors of this process that refer to it.
    pub(crate) descriptors: u32,
    /// Where its events go to, and its requests come from.
    pub(crate) lane: Option<&'static Lane>,
    pub(crate) options: Options,
    /// SO_ERROR.
    pub(crate) error: i32,
    /// SO_ERROR if `error` is 0: an error that did not end the connection.
    pub(crate) soft_error: i32,
    /// The end of the connection was turned into `error`.
    pub(crate) cause_seen: bool,
    /// It is of AF_INET6: its names are written as such.
    pub(crate) inet6: bool,
    /// `bind` was called.
    pub(crate) bound: bool,
    /// `connect` began, and its result was not reported by another `connect`.
    pub(crate) connect_pending: bool,
    pub(crate) shut_read: bool,
    pub(crate) shut_write: bool,
    /// Other processes hold the connection too, or did when this was last looked at.
    pub(crate) shared: bool,
    /// The last write had MSG_MORE.
    pub(crate) corked_once: bool,
    /// A write did not find room: the next room is an event.
    pub(crate) no_space: bool,
    /// Bytes that the program has read.
    pub(crate) bytes_read: u64,
    pub(crate) more_watches: Vec<WatchRef>,
}

impl Inner {
    pub(crate) const fn free(generation: u32) -> Self {
        Self {
            state: State::Free,
            generation,
            descriptors: 0,
            lane: None,
            options: Options::DEFAULT,
            error: 0,
            soft_error: 0,
            cause_seen: false,
            inet6: false,
            bound: false,
            connect_pending: false,
            shut_read: false,
            shut_write: false,
            shared: false,
            corked_once: false,
            no_space: false,
            bytes_read: 0,
            more_watches: Vec::new(),
        }
    }

    /// The connection, established or not.
    #[inline]
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Stream(connection) => Some(connection),
            State::Connecting(connecting) => connecting.connection.as_mut(),
            _ => None,
        }
    }

    /// Turns the handshake's end and the connection's end into state and error, as the slot has it.
    pub(crate) fn refresh(&mut self) {
        if matches!(self.state, State::Connecting(_)) {
            self.refresh_connecting();
        }
        self.note_soft_error();
        if let State::Stream(connection) = &self.state
            && !self.cause_seen
            && let Some(cause) = connection.stream.closed()
        {
            self.cause_seen = true;
            let fin = connection.stream.service_flags() & service_flags::FIN_RECEIVED != 0;
            let in_close_wait = fin && !self.shut_write;
            self.error = match from_cause(cause) {
                libc::ECONNRESET if in_close_wait => libc::EPIPE,
                number => number,
            };
        }
    }

    /// An error of the path is one of the connection if the program asked for that (IP_RECVERR);
    /// else only SO_ERROR tells it.
    fn note_soft_error(&mut self) {
        let State::Stream(connection) = &mut self.state else {
            return;
        };
        let Some(cause) = connection.stream.soft_error() else {
            return;
        };
        let is_v4 = connection.stream.names().peer_addr[..12] == V4_MAPPED;
        let number = from_cause(cause);
        if self.options.tells_errors(is_v4) {
            self.error = number;
        } else {
            self.soft_error = number;
        }
    }

    fn refresh_connecting(&mut self) {
        let State::Connecting(connecting) = &mut self.state else {
            return;
        };
        let Some(connection) = &mut connecting.connection else {
            if connecting.is_orphaned() {
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

    /// The active open failed.
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
            if let Some(lane) = self.lane {
                lane.submit_now(&mut connection);
            }
        }
    }

    /// SO_ERROR, which clears it.
    pub(crate) fn take_error(&mut self) -> Option<Errno> {
        match std::mem::take(&mut self.error) {
            0 => None,
            number => Some(Errno(number)),
        }
    }

    /// Bytes that the peer sent so far; connections that came, for a listener.
    pub(crate) fn bytes_received(&mut self) -> u64 {
        let bytes_read = self.bytes_read;
        match &mut self.state {
            State::Stream(connection) => bytes_read + urgent::ungiven(&mut connection.stream),
            State::Listening(listening) => listening.arrivals,
            _ => 0,
        }
    }

    /// Where the socket's events arrive.
    pub(crate) fn lanes(&self) -> Few<&'static Lane> {
        match &self.state {
            State::Listening(listening) => listening.joined.clone(),
            _ => Few::from(self.lane),
        }
    }
}
