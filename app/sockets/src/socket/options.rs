//! The options of one socket, as the program set them.

use tidelane_abi::{FIN_WAIT_2_NEVER, OpenOptions, program_flags};
use tidelane_client::{SendLimits, StreamOptions};

use super::option_values::{PACING_NONE, defer_timeouts};

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
    /// Level, name and value of the other options that the program set.
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

    /// Returns true if an ICMP error fails the next call. For an IPv4 peer (`is_v4` is true),
    /// IP_RECVERR has to be set. For an IPv6 peer, IPV6_RECVERR has to be set.
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
            // 0 means no limit. A rate that does not fit into 32 bits is sent as 0.
            pacing_rate_max: u32::try_from(self.pacing_rate_max).unwrap_or(0).into(),
        }
    }

    /// Returns the limits of unacknowledged and unsent bytes for the program's writes. 0 means that
    /// the program has set no limit.
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

    /// Sets SO_MAX_PACING_RATE in bytes per second.
    pub(crate) fn set_pacing_rate_max(&mut self, rate: u64) {
        self.pacing_rate_max = rate;
    }

    /// Returns true if the option with this bit of [`program_flags`] is set.
    pub(crate) fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears the option with this bit of [`program_flags`].
    pub(crate) fn set_flag(&mut self, flag: u32, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// Returns true if TCP_CORK is set.
    pub(crate) fn corked(&self) -> bool {
        self.flags & program_flags::CORK != 0
    }

    /// Returns the recorded value of an option, or `None` if the program has not set the option.
    pub(crate) fn recorded(&self, level: i32, name: i32) -> Option<i32> {
        let found = self
            .recorded
            .iter()
            .find(|(l, n, _)| (*l, *n) == (level, name));
        found.map(|(_, _, value)| *value)
    }

    /// Records the value of an option.
    pub(crate) fn record(&mut self, level: i32, name: i32, value: i32) {
        self.recorded.retain(|(l, n, _)| (*l, *n) != (level, name));
        self.recorded.push((level, name, value));
    }
}
