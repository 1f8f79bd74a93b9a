//! Configuration of a TCP engine (crate `tidelane-engine`), and socket options of a connection. The
//! engine calls a connection a *flow*.

use core::fmt;

use tidelane_cc::Algorithm;
use tidelane_time::Duration;

use crate::{
    fast_open::FastOpenPolicy,
    socket_options::{FinWait2, IpOptions, WindowOptions},
};

/// Configuration of one engine: limits of the engine as a whole, and parameters of each flow.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Largest receive window of a flow in bytes. The window scale follows from this value (RFC
    /// 7323 §2).
    pub rx_window_max: u32,
    /// Receive window of a new flow in bytes. Autotuning grows the window up to `rx_window_max`.
    pub rx_window_initial: u32,
    /// Largest number of bytes per flow that the application has written and that the peer has not
    /// acknowledged.
    pub tx_limit: u32,
    /// Largest number of flows of the engine. The flow table reserves its address space at the
    /// start.
    pub flows_max: u32,
    /// Congestion control of new flows whose socket chooses none.
    pub congestion: Algorithm,
    /// Initial window in segments (RFC 6928).
    pub initial_window: u32,
    /// Maximum segment lifetime. TIME-WAIT lasts 2 MSL (RFC 9293 §3.4.2). Linux: 30 s.
    pub msl: Duration,
    /// Longest delay of an ACK (RFC 9293 §3.8.6.3 MUST-40: below 500 ms; Linux: 40 ms).
    pub delayed_ack: Duration,
    /// At its start and after a loss, a flow is in quick-ack mode, in which ACKs of full segments
    /// are not delayed. If `eager_acks` is true, as in Linux, the ACKs of small segments in
    /// quick-ack mode and the ACK of a FIN are not delayed either. If `eager_acks` is false, the
    /// application's response can carry these ACKs, which saves a segment in each short exchange.
    pub eager_acks: bool,
    /// Lower bound of the retransmission timeout (RFC 6298 (2.4) wants 1 s; Linux: 200 ms), at
    /// least [`CLOCK_GRANULARITY`](Self::CLOCK_GRANULARITY).
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout.
    pub rto_max: Duration,
    /// First retransmission timeout (RFC 6298 (2.1)).
    pub rto_initial: Duration,
    /// Lower bound of the tail loss probe's timeout (RFC 8985 §7.2).
    pub pto_min: Duration,
    /// Largest number of half-open connections of all listeners together. A half-open connection is
    /// in SYN-RECEIVED, and the application does not have the connection yet.
    pub half_open_max: u32,
    /// If true, the engine answers a SYN by a SYN cookie (RFC 4987 §3.6) when the listener's SYN
    /// queue is full or `half_open_max` is reached. If false, the engine drops this SYN.
    pub syn_cookies: bool,
    /// Number of SYN retransmissions with backoff before an active open fails. Linux: 6.
    pub syn_retries: u8,
    /// Number of SYN retransmissions without backoff, before the `syn_retries` retransmissions. RFC
    /// 6298 (5.5) doubles the timeout at each retransmission: after the loss of two SYNs, an
    /// application would wait for several seconds. Linux deviates in the same way
    /// (`tcp_syn_linear_timeouts`). SYNs hardly contribute to congestion.
    pub syn_linear_timeouts: u8,
    /// Number of SYN,ACK retransmissions before a half-open flow is dropped. Linux: 5.
    pub syn_ack_retries: u8,
    /// Number of consecutive retransmission timeouts before the connection is given up. Linux: 15.
    pub retries: u8,
    /// The limit that replaces `retries` for an orphan: a connection whose socket the application
    /// has closed. Linux: 8.
    pub orphan_retries: u8,
    /// Longest time of an orphan in FIN-WAIT-2. Linux: 60 s.
    pub fin_wait_2: Duration,
    /// Largest number of connections in TIME-WAIT. At this limit, a new entry replaces the oldest
    /// entry.
    pub time_wait_max: u32,
    /// Upper bound of the MSS in bytes, for links whose MTU allows a larger MSS.
    pub segment_max: u16,
    /// Limit of the challenge ACKs of all flows per second (RFC 5961 §7). The limit of each second
    /// lies randomly between half of this value and one and a half times this value, so that a peer
    /// cannot predict the limit. `u32::MAX` (as in Linux): no limit. Each flow also has a limit of
    /// its own.
    pub challenge_acks_per_second: u32,
    /// Limit of the RSTs per second in answer to segments without a connection. The engine varies
    /// this limit like the limit of challenge ACKs. `u32::MAX`: no limit.
    pub resets_per_second: u32,
    /// Largest number of RSTs per second to one peer in answer to segments without a connection.
    /// Peers whose addresses have the same keyed hash share this limit.
    pub peer_resets_per_second: u32,
    /// DiffServ field and TTL for sockets that set none (RFC 1122 §3.2.1.7; Linux:
    /// `ip_default_ttl`, `hop_limit`).
    pub ip: IpOptions,
    /// If true, timestamps are offered and accepted (RFC 7323).
    pub timestamps: bool,
    /// If true, TSval has an offset that depends on the two addresses (RFC 7323 §7.1), as with
    /// `tcp_timestamps` 1 in Linux. If false, TSval is the clock in ms, as with `tcp_timestamps` 2.
    pub timestamp_offsets: bool,
    /// If true, SACK is offered and accepted (RFC 2018).
    pub sack: bool,
    /// Policy for ECN (RFC 3168).
    pub ecn: EcnPolicy,
    /// Policy for packetization layer path MTU discovery (RFC 4821).
    pub mtu_probing: MtuProbing,
    /// Policy for Fast Open (RFC 7413).
    pub fast_open: FastOpenPolicy,
    /// If true, the fast path handles in-order data and ACKs of established flows. If false, the
    /// slow path handles all segments, with the same results. Tests compare the two paths.
    pub fast_path: bool,
}

/// Condition under which a connection searches for its path MTU (Linux: `tcp_mtu_probing`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MtuProbing {
    /// Connections never search (the default of Linux). A connection stalls on a path with an MTU
    /// black hole: a link that drops large packets without an ICMP error.
    Off,
    /// A connection begins a search after several consecutive timeouts.
    #[default]
    BlackHole,
    /// A connection begins a search as soon as it is established. Its first segments are small.
    Always,
}

/// Connections that use ECN (Linux: `tcp_ecn`). A connection whose congestion control needs ECN,
/// such as DCTCP, requests ECN, or agrees to the peer's request, under every policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EcnPolicy {
    /// Connections do not use ECN.
    Off,
    /// Passive opens use ECN if the peer requests ECN. This is the default of Linux.
    #[default]
    Accept,
    /// Passive opens use ECN as with `Accept`. In addition, active opens request ECN.
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
            timestamp_offsets: true,
            sack: true,
            ecn: EcnPolicy::default(),
            mtu_probing: MtuProbing::default(),
            fast_open: FastOpenPolicy::default(),
            fast_path: true,
        }
    }
}

/// Reason to reject a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// `rx_window_max`, `rx_window_initial` or `tx_limit` is zero or above 2^30,
    /// `rx_window_initial` is above `rx_window_max`, `initial_window` is zero, or `segment_max` is
    /// below 64.
    Window,
    /// `flows_max` is zero or above 2^24.
    Flows,
    /// `msl`, `delayed_ack`, `rto_min`, `rto_initial` or `fin_wait_2` is zero, or `rto_min` is
    /// above `rto_max`.
    Duration,
    /// `rto_min` is below [`EngineConfig::CLOCK_GRANULARITY`].
    RtoMin,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Window => {
                "a window or tx_limit is zero or above 2^30, or rx_window_initial is above \
                 rx_window_max, or initial_window is zero, or segment_max is below 64"
            }
            Self::Flows => "flows_max is zero or above 2^24",
            Self::Duration => "a duration is zero, or rto_min is above rto_max",
            Self::RtoMin => "rto_min is below 1 ms, the granularity of the engine's clock",
        })
    }
}

impl core::error::Error for ConfigError {}

impl EngineConfig {
    /// Largest value of `flows_max`.
    pub const FLOWS_MAX: u32 = 1 << 24;
    /// Largest window or send limit (RFC 7323 §2.3).
    pub const WINDOW_MAX: u32 = 1 << 30;
    /// Granularity of the engine's clock: G of RFC 6298 (2.3). The variance term of the
    /// retransmission timeout must be at least G.
    pub const CLOCK_GRANULARITY: Duration = Duration::from_millis(1);

    /// Checks the fields that have limits. Returns the first error.
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
        if self.rto_min < Self::CLOCK_GRANULARITY {
            return Err(ConfigError::RtoMin);
        }
        Ok(())
    }
}

/// Value of [`SocketOptions::pacing_rate_max`] for a socket without a limit.
pub const PACING_RATE_UNLIMITED: u64 = u64::MAX;

/// Options of one socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketOptions {
    /// TCP_NODELAY: turns off Nagle.
    pub nodelay: bool,
    /// TCP_CORK, or MSG_MORE on the most recent write: sends full segments only.
    pub cork: bool,
    /// TCP_QUICKACK: sends ACKs without delay.
    pub quickack: bool,
    /// SO_KEEPALIVE (RFC 9293 §3.8.4, MUST-24, MUST-25: off by default).
    pub keepalive: bool,
    /// TCP_KEEPIDLE: idle time before the first probe (MUST-27, MUST-28). Linux: 2 h.
    pub keepalive_idle: Duration,
    /// TCP_KEEPINTVL: interval between probes. Linux: 75 s.
    pub keepalive_interval: Duration,
    /// TCP_KEEPCNT: number of unanswered probes after which the connection ends. Linux: 9.
    pub keepalive_probes: u8,
    /// TCP_USER_TIMEOUT: longest time that data may stay unacknowledged before the connection is
    /// given up (RFC 9293 MUST-21). Zero: the number of retransmission timeouts decides instead.
    pub user_timeout: Duration,
    /// TCP_MAXSEG: largest MSS in bytes to announce and to use. Zero: the application set no limit.
    pub mss_max: u16,
    /// TCP_CONGESTION. `None`: the engine's default.
    pub congestion: Option<Algorithm>,
    /// SO_MAX_PACING_RATE in bytes per second; [`PACING_RATE_UNLIMITED`] if the application set no
    /// limit.
    pub pacing_rate_max: u64,
    /// IPV6_V6ONLY: a listener at `::` does not accept connections over IPv4.
    pub v6_only: bool,
    /// DiffServ field and TTL of the socket's packets.
    pub ip: IpOptions,
    /// TCP_SYNCNT: number that replaces `syn_retries` (active open) or `syn_ack_retries` (passive
    /// open) of the configuration. Zero: the configuration applies.
    pub syn_retries: u8,
    /// TCP_DEFER_ACCEPT of a listener: number of SYN,ACK timeouts for which a connection waits for
    /// data before it is accepted. Zero: connections do not wait.
    pub defer_accept: u8,
    /// TCP_LINGER2: time of an orphan in FIN-WAIT-2.
    pub fin_wait_2: FinWait2,
    /// SO_RCVBUF and the other limits of the receive window.
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
            pacing_rate_max: PACING_RATE_UNLIMITED,
            v6_only: false,
            ip: IpOptions::default(),
            syn_retries: 0,
            defer_accept: 0,
            fin_wait_2: FinWait2::default(),
            window: WindowOptions::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6298_section_2_the_least_rto_is_at_least_the_clock_granularity() {
        let checked = |rto_min| {
            let default = EngineConfig::default();
            EngineConfig { rto_min, ..default }.check()
        };
        assert_eq!(checked(Duration::from_millis(1)), Ok(()));
        assert_eq!(
            checked(Duration::from_micros(999)),
            Err(ConfigError::RtoMin)
        );
        assert_eq!(checked(Duration::ZERO), Err(ConfigError::Duration));
    }
}
