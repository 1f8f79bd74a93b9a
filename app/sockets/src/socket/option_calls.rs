//! `setsockopt` and `getsockopt` on sockets whose connections the service (the process `tidelaned`)
//! carries. The value of a supported option goes to the service, affects calls in this crate (for
//! example SO_RCVTIMEO), or is only recorded for `getsockopt`. For any other option, `setsockopt`
//! fails with the kernel's error or ENOPROTOOPT.

use tidelane_abi::{congestion, program_flags};
use tidelane_client::Stream;

use super::{
    Inner, Socket, kernel_options,
    option_values::{
        FORWARDED, LINGER2_DEFAULT, RECORDED, SocketKind, TTL_DEFAULT, int_at, kernel_default,
        normalized, rate_of,
    },
    state::State,
};
use crate::sys::Errno;

/// Size in bytes of the longest name of a congestion control algorithm, with its NUL
/// (TCP_CA_NAME_MAX).
pub(crate) const CONGESTION_LEN: usize = 16;
/// Length of TCP_FASTOPEN_KEY in bytes with one key.
const KEY_LEN: usize = 16;
/// Length of TCP_FASTOPEN_KEY in bytes with two keys.
const KEYS_LEN: usize = 32;

/// Returns the [`program_flags`] bit of an option, or `None` if the option has no bit.
fn flag_of(level: i32, name: i32) -> Option<u32> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(program_flags::NODELAY),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Some(program_flags::CORK),
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => Some(program_flags::QUICKACK),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => Some(program_flags::KEEPALIVE),
        _ => None,
    }
}

impl Inner {
    /// Applies `setsockopt`. For an option that is not supported, returns the kernel's error, or
    /// ENOPROTOOPT if the kernel would accept the value.
    pub(crate) fn apply(
        &mut self,
        socket: &Socket,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = (int_at(value, 0)?, int_at(value, 4)?);
                self.options.linger = (on != 0).then_some(seconds as u32);
                return Ok(());
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                self.options.receive_timeout_ns = timeval_ns(value)?;
                return Ok(());
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
                self.options.send_timeout_ns = timeval_ns(value)?;
                return Ok(());
            }
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                self.options.set_pacing_rate_max(rate_of(value)?);
                let options = self.options.for_stream();
                self.update_stream(socket, |stream| stream.set_options(&options));
                return Ok(());
            }
            (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_KEY) => {
                // The service reads the key from the kernel socket of a listener. The key has no
                // effect on a connection.
                let whole = matches!(value.len(), KEY_LEN | KEYS_LEN);
                return whole.then_some(()).ok_or(Errno(libc::EINVAL));
            }
            _ => {}
        }
        if let Some(flag) = flag_of(level, name) {
            self.apply_flag(socket, flag, int_at(value, 0)? != 0);
            return Ok(());
        }
        let number = if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
            congestion_number(value)?
        } else if RECORDED.contains(&(level, name)) {
            self.normalize_number(level, name, value)?
        } else if kernel_options::is_without_effect(level, name) {
            match kernel_options::normalized(self.inet6, level, name, value)? {
                Some(number) => number,
                None => return Ok(()),
            }
        } else {
            return Err(kernel_options::refusal(self.inet6, level, name, value));
        };
        self.options.record(level, name, number);
        if (level, name) == (libc::SOL_SOCKET, libc::SO_OOBINLINE)
            && let Some(connection) = self.connection()
        {
            connection.stream.set_urgent_inline(number != 0);
        }
        if FORWARDED.contains(&(level, name)) {
            let options = self.options.for_stream();
            self.update_stream(socket, |stream| stream.set_options(&options));
        }
        Ok(())
    }

    /// Returns the value that Linux would store for an option in [`RECORDED`]. For SO_RCVLOWAT,
    /// also stores the value in `options.rcvlowat`.
    fn normalize_number(&mut self, level: i32, name: i32, value: &[u8]) -> Result<i32, Errno> {
        let kind = SocketKind {
            inet6: self.inet6,
            connected: !matches!(self.state, State::Fresh | State::Listening(_)),
        };
        let mut number = normalized(level, name, value, kind)?;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
            let buffer = self.options.recorded(libc::SOL_SOCKET, libc::SO_RCVBUF);
            number = buffer.map_or(number, |bytes| number.min(bytes / 2));
            self.options.rcvlowat = number.max(1) as u32;
        }
        Ok(number)
    }

    fn apply_flag(&mut self, socket: &Socket, flag: u32, on: bool) {
        self.options.set_flag(flag, on);
        self.update_stream(socket, |stream| {
            if on {
                stream.set_flag(flag);
            } else {
                stream.clear_flag(flag);
            }
        });
    }

    /// Changes the stream of the connection, if there is a connection, and submits the change to
    /// the service.
    fn update_stream(&mut self, socket: &Socket, change: impl FnOnce(&mut Stream)) {
        let channel = self.channel;
        let Some(connection) = self.connection() else {
            return;
        };
        change(&mut connection.stream);
        if let Some(channel) = channel
            && connection.stream.submit_due()
        {
            channel.submit(&socket.member, connection);
        }
    }

    /// Returns the number of the connection's congestion control algorithm ([`congestion`]).
    /// Without a connection, or if the service is gone, returns the number that the program set, or
    /// `None` if the program set none.
    pub(crate) fn congestion(&mut self) -> Option<u16> {
        let known = self.service_tcp_info().map(|info| info.congestion as u16);
        let asked = || {
            self.options
                .recorded(libc::IPPROTO_TCP, libc::TCP_CONGESTION)
        };
        known.or_else(|| asked().map(|number| number as u16))
    }

    /// Returns the value of an integer option, or `None` if only the kernel knows the value.
    pub(crate) fn int_option(&mut self, level: i32, name: i32) -> Option<i32> {
        if let Some(flag) = flag_of(level, name) {
            return Some(i32::from(self.options.has_flag(flag)));
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_MAXSEG)
            && let Some(connection) = self.connection()
        {
            return Some(connection.stream.ids().mss as i32);
        }
        // The recorded value that means "not set by the program".
        let no_number = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => 0,
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => -1,
            _ => i32::MIN,
        };
        let set = self.options.recorded(level, name);
        if let Some(value) = set.filter(|value| *value != no_number) {
            return Some(value);
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let error = self.take_error().map_or(0, |error| error.0);
                Some(match error {
                    0 => std::mem::take(&mut self.soft_error),
                    error => error,
                })
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => Some(libc::SOCK_STREAM),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(if self.inet6 {
                libc::AF_INET6
            } else {
                libc::AF_INET
            }),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Some(libc::IPPROTO_TCP),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(0),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => Some(1),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => Some(
                self.connection()
                    .map_or(131_072, |c| c.stream.rx_window() as i32),
            ),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => Some(
                self.connection()
                    .map_or(87_040, |c| c.stream.tx_limit() as i32),
            ),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => Some(7200),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => Some(75),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => Some(9),
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => Some(6),
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => Some(LINGER2_DEFAULT),
            (libc::IPPROTO_IP, libc::IP_TTL) => Some(kernel_default(level, name)),
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => Some(TTL_DEFAULT),
            _ => RECORDED.contains(&(level, name)).then_some(0),
        }
    }
}

/// Returns the number of the congestion control algorithm with this name. Returns EINVAL for an
/// empty name, and ENOENT for an unknown name.
fn congestion_number(name: &[u8]) -> Result<i32, Errno> {
    if name.is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    let name = &name[..name.len().min(CONGESTION_LEN - 1)];
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let number = match name {
        b"reno" => congestion::RENO,
        b"cubic" => congestion::CUBIC,
        b"dctcp" => congestion::DCTCP,
        b"bbr" => congestion::BBR,
        _ => return Err(Errno(libc::ENOENT)),
    };
    Ok(number.into())
}

/// Converts a `struct timeval` to nanoseconds. Returns `None` for zero, which means no timeout, and
/// `Some(0)` for a negative timeout. Returns EINVAL for a value that is too short, and EDOM for a
/// number of microseconds out of range.
fn timeval_ns(value: &[u8]) -> Result<Option<u64>, Errno> {
    let word = |at: usize| {
        let bytes = value
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map(i64::from_ne_bytes).ok_or(Errno(libc::EINVAL))
    };
    let (seconds, micros) = (word(0)?, word(8)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM));
    }
    // Linux does not wait at all under a negative timeout.
    let Ok(seconds) = u64::try_from(seconds) else {
        return Ok(Some(0));
    };
    let ns = seconds.saturating_mul(1_000_000_000);
    let ns = ns.saturating_add(micros as u64 * 1_000);
    Ok((ns != 0).then_some(ns))
}
