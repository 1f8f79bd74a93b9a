//! What the driver decides once, and what a program decides per connection.

use core::fmt;

use tidelane_cc::Algorithm;
use tidelane_time::Duration;

use crate::{
    fast_open::FastOpenPolicy,
    socket_options::{FinWait2, IpOptions, WindowOptions},
};

/// Policy of one engine. All limits are per engine or per flow, as each field says.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Largest receive window of a flow in bytes. Decides the window scale (RFC 7323 §2).
    pub rx_window_max: u32,
    /// Receive window of a new flow in bytes; it grows towards `rx_window_max` with use.
    pub rx_window_initial: u32,
    /// Bytes that a program may have written and the peer not yet acknowledged, per flow.
    pub tx_limit: u32,
    /// Flows at once. Their table's address space is reserved at start.
    pub flows_max: u32,
    /// Congestion control of new flows.
    pub congestion: Algorithm,
    /// Initial window in segments (RFC 6928).
    pub initial_window: u32,
    /// Maximum segment lifetime: TIME-WAIT lasts twice this (RFC 9293 §3.4.2). Linux: 30 s.
    pub msl: Duration,
    /// Longest delay of an acknowledgment (RFC 1122 §4.2.3.2 allows 500 ms; Linux: 40 ms).
    pub delayed_ack: Duration,
    /// Whether, as in Linux, quick-ack mode is for small segments too and a FIN is acknowledged at
    /// once. Without it an answer has time to carry the acknowledgment: a segment less for each
    /// short exchange.
    pub eager_acks: bool,
    /// Lower bound of the retransmission timeout (RFC 6298 (2.4) wants 1 s; Linux: 200 ms).
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout.
    pub rto_max: Duration,
    /// First retransmission timeout (RFC 6298 (2.1)).
    pub rto_initial: Duration,
    /// Lower bound of the tail loss probe's timeout (RFC 8985 §7.2).
    pub pto_min: Duration,
    /// Half-open connections at once, all listeners together.
    pub half_open_max: u32,
    /// Whether a SYN that finds no room is answered with a cookie (RFC 4987 §3.6).
    pub syn_cookies: bool,
    /// Retransmissions of SYN before an active open fails. Linux: 6.
    pub syn_retries: u8,
    /// So many retransmissions of SYN wait no longer than the first, and come before those of
    /// `syn_retries`. A deviation from RFC 6298 (5.5), which doubles each time, as in Linux
    /// (`tcp_syn_linear_timeouts`): one or two lost SYNs are far more likely than congestion that a
    /// SYN adds to, and a program waits.
    pub syn_linear_timeouts: u8,
    /// Retransmissions of SYN,ACK before a half-open flow is dropped. Linux: 5.
    pub syn_ack_retries: u8,
    /// Retransmissions of data before the connection is given up. Linux: 15.
    pub retries: u8,
    /// The same for a flow whose program is gone. Linux: 8.
    pub orphan_retries: u8,
    /// How long a flow without program stays in FIN-WAIT-2. Linux: 60 s.
    pub fin_wait_2: Duration,
    /// TIME-WAIT entries at once; the oldest makes room for a new one.
    pub time_wait_max: u32,
    /// Largest segment that may be sent where the route allows it, in payload bytes.
    pub segment_max: u16,
    /// Challenge ACKs per second, all flows together (RFC 5961 §7); the limit of each flow is what
    /// holds normally. Linux: none.
    pub challenge_acks_per_second: u32,
    /// RST segments per second for segments that belong to no flow.
    pub resets_per_second: u32,
    /// Of these to one peer, or to several that a secret puts together.
    pub peer_resets_per_second: u32,
    /// DiffServ field and TTL where no program set others (RFC 1122 §3.2.1.7; Linux:
    /// `ip_default_ttl`, `hop_limit`).
    pub ip: IpOptions,
    /// Whether timestamps are offered and accepted (RFC 7323).
    pub timestamps: bool,
    /// Whether SACK is offered and accepted (RFC 2018).
    pub sack: bool,
    /// Whether ECN is offered and accepted (RFC 3168).
    pub ecn: EcnPolicy,
    /// When larger or smaller segments are tried than routers tell of (RFC 4821).
    pub mtu_probing: MtuProbing,
    /// Whether Fast Open is offered and accepted (RFC 7413).
    pub fast_open: FastOpenPolicy,
    /// Whether flows may take the fast path. Off, the slow path has all segments, and nothing else
    /// is different: tests compare the two.
    pub fast_path: bool,
}

/// When connections search for the size that their path carries (Linux: `tcp_mtu_probing`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MtuProbing {
    /// Never: Linux' default. A path that drops what is too large without a word stalls.
    Off,
    /// Once several timeouts in a row say so; it costs nothing before.
    #[default]
    BlackHole,
    /// From the beginning, with small segments.
    Always,
}

/// When connections use ECN (Linux: `tcp_ecn`). Those whose congestion control needs it always ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EcnPolicy {
    /// Never.
    Off,
    /// If the peer asks for it: Linux' default.
    #[default]
    Accept,
    /// Also asked for.
    Request,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            rx_window_max: 4 << 20,
            rx_window_initial: 64 << 10,
            tx_limit: 4 << 20,
            flows_max: 1 << 16,
            congestion: Algorithm::default(),
            initial_window: 10,
            msl: Duration::from_secs(30),
            delayed_ack: Duration::from_millis(40),
            eager_acks: false,
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            rto_initial: Duration::from_secs(1),
            pto_min: Duration::from_millis(10),
            half_open_max: 4096,
            syn_cookies: true,
            syn_retries: 6,
            syn_linear_timeouts: 4,
            syn_ack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            fin_wait_2: Duration::from_secs(60),
            time_wait_max: 1 << 16,
            segment_max: u16::MAX,
            challenge_acks_per_second: u32::MAX,
            resets_per_second: 10_000,
            peer_resets_per_second: 2_500,
            ip: IpOptions::default(),
            timestamps: true,
            sack: true,
            ecn: EcnPolicy::default(),
            mtu_probing: MtuProbing::default(),
            fast_open: FastOpenPolicy::default(),
            fast_path: true,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A window or limit is zero, above 2^30, or the initial window above the maximum.
    Window,
    /// `flows_max` is zero or above 2^24.
    Flows,
    /// A duration is zero, or the timeout's bounds are in the wrong order.
    Duration,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Window => "window or send limit is zero, above 2^30, or out of order",
            Self::Flows => "flows_max is zero or above 2^24",
            Self::Duration => "a duration is zero, or rto_min is above rto_max",
        })
    }
}

impl core::error::Error for ConfigError {}

impl EngineConfig {
    /// Flows that a table may be made for.
    pub const FLOWS_MAX: u32 = 1 << 24;
    /// Largest window or send limit: RFC 7323 §2.3.
    pub const WINDOW_MAX: u32 = 1 << 30;

    /// Whether the engine can run with this.
    pub fn check(&self) -> Result<(), ConfigError> {
        let windows = [self.rx_window_max, self.rx_window_initial, self.tx_limit];
        if windows.iter().any(|w| *w == 0 || *w > Self::WINDOW_MAX)
            || self.rx_window_initial > self.rx_window_max
            || self.initial_window == 0
            || self.segment_max < 64
        {
            return Err(ConfigError::Window);
        }
        if self.flows_max == 0 || self.flows_max > Self::FLOWS_MAX {
            return Err(ConfigError::Flows);
        }
        let spans = [
            self.msl,
            self.delayed_ack,
            self.rto_min,
            self.rto_initial,
            self.fin_wait_2,
        ];
        if spans.iter().any(|d| d.is_zero()) || self.rto_min > self.rto_max {
            return Err(ConfigError::Duration);
        }
        Ok(())
    }
}

/// No bound of the rate, and no pacing for its sake.
pub const NO_PACING: u64 = u64::MAX;

/// What a program sets on one socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketOptions {
    /// TCP_NODELAY: no Nagle.
    pub nodelay: bool,
    /// TCP_CORK, or MSG_MORE on the last write: only full segments.
    pub cork: bool,
    /// TCP_QUICKACK: acknowledge at once.
    pub quickack: bool,
    /// SO_KEEPALIVE (RFC 9293 §3.8.4, MUST-24, MUST-25: off unless asked for).
    pub keepalive: bool,
    /// TCP_KEEPIDLE: idle time before the first probe (MUST-27, MUST-28). Linux: 2 h.
    pub keepalive_idle: Duration,
    /// TCP_KEEPINTVL: time between probes. Linux: 75 s.
    pub keepalive_interval: Duration,
    /// TCP_KEEPCNT: unanswered probes that end the connection. Linux: 9.
    pub keepalive_probes: u8,
    /// TCP_USER_TIMEOUT: how long data may stay unacknowledged (RFC 9293 MUST-21); zero: by
    /// retransmission count.
    pub user_timeout: Duration,
    /// TCP_MAXSEG: largest segment to announce and send; zero: by route.
    pub mss_max: u16,
    /// TCP_CONGESTION; the engine's own if absent.
    pub congestion: Option<Algorithm>,
    /// SO_MAX_PACING_RATE: bytes per second at most; [`NO_PACING`] if the program set none.
    pub pacing_rate_max: u64,
    /// IPV6_V6ONLY of a listener at `::`: connections over IPv4 are not its own.
    pub v6_only: bool,
    /// DiffServ field and TTL.
    pub ip: IpOptions,
    /// TCP_SYNCNT: retransmissions of SYN or SYN,ACK before the open fails; zero: the engine's own.
    pub syn_retries: u8,
    /// TCP_DEFER_ACCEPT of a listener: for so many timeouts of the SYN,ACK its connections wait for
    /// their first text before they are accepted; zero: not at all.
    pub defer_accept: u8,
    /// TCP_LINGER2.
    pub fin_wait_2: FinWait2,
    /// SO_RCVBUF and what else bounds the window.
    pub window: WindowOptions,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            nodelay: false,
            cork: false,
            quickack: false,
            keepalive: false,
            keepalive_idle: Duration::from_secs(7200),
            keepalive_interval: Duration::from_secs(75),
            keepalive_probes: 9,
            user_timeout: Duration::ZERO,
            mss_max: 0,
            congestion: None,
            pacing_rate_max: NO_PACING,
            v6_only: false,
            ip: IpOptions::default(),
            syn_retries: 0,
            defer_accept: 0,
            fin_wait_2: FinWait2::default(),
            window: WindowOptions::default(),
        }
    }
}
