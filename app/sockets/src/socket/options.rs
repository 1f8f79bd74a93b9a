//! Options of sockets whose connections the service (the process `tidelaned`) carries. The value of
//! a supported option goes to the service, or is only recorded for `getsockopt`. For any other
//! option, `setsockopt` fails with the kernel's error or ENOPROTOOPT.

use tidelane_abi::{FIN_WAIT_2_NEVER, OpenOptions, congestion, program_flags};
use tidelane_client::{SendLimits, Stream, StreamOptions};

use super::{
    Inner, Socket, kernel_options,
    option_values::{
        FORWARDED, LINGER2_DEFAULT, PACING_NONE, RECORDED, SocketKind, TTL_DEFAULT, defer_timeouts,
        int_at, kernel_default, normalized, rate_of,
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

/// The options of one socket, as the program set them.
#[derive(Debug)]
pub(crate) struct Options {
    /// The options that are bits of [`program_flags`].
    flags: u32,
    /// SO_LINGER in seconds, or `None` if it is off.
    pub(crate) linger: Option<u32>,
    /// SO_RCVTIMEO in nanoseconds, or `None` for no timeout.
    pub(crate) receive_timeout_ns: Option<u64>,
    /// SO_SNDTIMEO in nanoseconds, or `None` for no timeout.
    pub(crate) send_timeout_ns: Option<u64>,
    /// Level, name and value of each other option that the program set.
    recorded: Vec<(i32, i32, i32)>,
    /// SO_RCVLOWAT in bytes.
    pub(crate) rcvlowat: u32,
    /// SO_MAX_PACING_RATE in bytes per second.
    pacing_rate_max: u64,
    /// True if the program set an option that only the kernel implements, so that the kernel has to
    /// carry the connection.
    pub(crate) kernel_only: bool,
}

impl Options {
    /// The options of a socket on which the program has set none.
    pub(crate) const DEFAULT: Self = Self {
        flags: 0,
        linger: None,
        receive_timeout_ns: None,
        send_timeout_ns: None,
        recorded: Vec::new(),
        rcvlowat: 1,
        pacing_rate_max: PACING_NONE,
        kernel_only: false,
    };

    /// Returns the options that an accepted connection inherits from its listener.
    pub(crate) fn inherited(&self) -> Self {
        let of_listener = |(level, name, _): &(i32, i32, i32)| {
            let name = *name == libc::TCP_DEFER_ACCEPT || *name == libc::TCP_FASTOPEN;
            *level == libc::IPPROTO_TCP && name
        };
        let recorded = self.recorded.iter().copied();
        Self {
            recorded: recorded.filter(|option| !of_listener(option)).collect(),
            ..*self
        }
    }

    /// Returns the options that are bits of [`program_flags`].
    pub(crate) fn program_flags(&self) -> u32 {
        self.flags
    }

    /// Returns true if IP_RECVERR is set for an IPv4 peer (`is_v4`), or IPV6_RECVERR for an IPv6
    /// peer. An ICMP error then fails the next call.
    pub(crate) fn reports_path_errors(&self, is_v4: bool) -> bool {
        let set = if is_v4 {
            self.recorded(libc::IPPROTO_IP, libc::IP_RECVERR)
        } else {
            self.recorded(libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        };
        set.is_some_and(|value| value != 0)
    }

    /// Returns true if SO_OOBINLINE is set.
    pub(crate) fn urgent_inline(&self) -> bool {
        let set = self.recorded(libc::SOL_SOCKET, libc::SO_OOBINLINE);
        set.is_some_and(|value| value != 0)
    }

    /// Returns true if TCP_FASTOPEN_CONNECT is set.
    pub(crate) fn fast_open_connect(&self) -> bool {
        self.recorded(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) == Some(1)
    }

    /// Returns true if TCP_FASTOPEN_NO_COOKIE is set.
    pub(crate) fn without_cookie(&self) -> bool {
        self.recorded(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE) == Some(1)
    }

    /// Returns true if IPV6_V6ONLY is set.
    pub(crate) fn v6_only(&self) -> bool {
        let set = self.recorded(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        set.is_some_and(|value| value != 0)
    }

    /// Returns the options of a connection, in the form for the service.
    pub(crate) fn for_stream(&self) -> StreamOptions {
        let number = |name| self.recorded(libc::IPPROTO_TCP, name).unwrap_or(0).max(0) as u32;
        StreamOptions {
            keepalive_idle_s: number(libc::TCP_KEEPIDLE),
            keepalive_interval_s: number(libc::TCP_KEEPINTVL),
            keepalive_probes: number(libc::TCP_KEEPCNT),
            opening: self.opening(),
            sending: self.sending(),
        }
    }

    /// Returns the options that new connections start with, in the form for the service.
    pub(crate) fn opening(&self) -> OpenOptions {
        let number = |level, name| self.recorded(level, name).unwrap_or(0);
        let of_tcp = |name| number(libc::IPPROTO_TCP, name).max(0) as u32;
        let byte = |level, name| number(level, name).clamp(0, 255) as u8;
        let hops = self.recorded(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
        OpenOptions {
            user_timeout_ms: of_tcp(libc::TCP_USER_TIMEOUT),
            mss_max: of_tcp(libc::TCP_MAXSEG).min(u16::MAX.into()) as u16,
            congestion: of_tcp(libc::TCP_CONGESTION) as u16,
            // As in Linux, SO_RCVBUF is twice the number of payload bytes that it allows.
            rx_buffer: number(libc::SOL_SOCKET, libc::SO_RCVBUF).max(0) as u32 / 2,
            window_clamp: of_tcp(libc::TCP_WINDOW_CLAMP),
            rx_low: match self.rcvlowat {
                1 => 0,
                low => low,
            },
            fin_wait_2_s: match number(libc::IPPROTO_TCP, libc::TCP_LINGER2) {
                ..0 => FIN_WAIT_2_NEVER,
                seconds => seconds as u32,
            },
            tos: byte(libc::IPPROTO_IP, libc::IP_TOS),
            ttl: byte(libc::IPPROTO_IP, libc::IP_TTL),
            traffic_class: byte(libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            // In a request to the service, 0 stands for the default. A hop limit of 0, with which
            // no packet would leave the host, is therefore sent as 1.
            hop_limit: hops.map_or(0, |hops| if hops < 0 { 0 } else { hops.max(1) as u8 }),
            syn_retries: byte(libc::IPPROTO_TCP, libc::TCP_SYNCNT),
            defer_accept: defer_timeouts(number(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)),
            reserved: [0; 2],
            // 0 means no limit, also for a rate that does not fit into 32 bits.
            pacing_rate_max: u32::try_from(self.pacing_rate_max).unwrap_or(0).into(),
        }
    }

    /// Returns the limits of unacknowledged and unsent bytes for the program's writes. 0 means no
    /// limit of the program.
    pub(crate) fn sending(&self) -> SendLimits {
        let unsent = self.recorded(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
        let buffer = self.recorded(libc::SOL_SOCKET, libc::SO_SNDBUF);
        SendLimits {
            unacked_max: buffer.unwrap_or(0).max(0) as u32,
            // For TCP_NOTSENT_LOWAT, -1 and 0 both mean no limit.
            unsent_max: match unsent.unwrap_or(0) {
                -1 => 0,
                limit => limit as u32,
            },
        }
    }

    /// Returns SO_MAX_PACING_RATE in bytes per second.
    pub(crate) fn pacing_rate_max(&self) -> u64 {
        self.pacing_rate_max
    }

    /// Returns true if TCP_CORK is set.
    pub(crate) fn corked(&self) -> bool {
        self.flags & program_flags::CORK != 0
    }

    fn recorded(&self, level: i32, name: i32) -> Option<i32> {
        let found = self
            .recorded
            .iter()
            .find(|(l, n, _)| (*l, *n) == (level, name));
        found.map(|(_, _, value)| *value)
    }

    fn record(&mut self, level: i32, name: i32, value: i32) {
        self.recorded.retain(|(l, n, _)| (*l, *n) != (level, name));
        self.recorded.push((level, name, value));
    }
}

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
    /// Applies `setsockopt`. Returns the kernel's error for an option that is not supported.
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
                self.options.pacing_rate_max = rate_of(value)?;
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
        if on {
            self.options.flags |= flag;
        } else {
            self.options.flags &= !flag;
        }
        self.update_stream(socket, |stream| {
            if on {
                stream.set_flag(flag);
            } else {
                stream.clear_flag(flag);
            }
        });
    }

    /// Changes the stream of the connection, if there is one, and submits the change to the
    /// service.
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

    /// Returns the number of the connection's congestion control. Without a connection, returns the
    /// number that the program set, or `None`.
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
            return Some(i32::from(self.options.flags & flag != 0));
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

/// Returns the number of the congestion control with this name, or ENOENT.
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
/// `Some(0)` for a negative timeout.
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
