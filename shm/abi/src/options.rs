//! Socket options of a connection. The program sets the options. The service (process `tidelaned`)
//! reads the options from a request, or from the connection's slot (its record in shared memory).

use core::sync::atomic::AtomicU32;

/// Options of a [`Slot`](crate::Slot) that are not bits of [`program_flags`](crate::program_flags).
/// The program writes all fields. Zero in a socket option stands for the service's default.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SlotOptions {
    /// TCP_KEEPIDLE in seconds.
    pub keepalive_idle_s: AtomicU32,
    /// TCP_KEEPINTVL in seconds.
    pub keepalive_interval_s: AtomicU32,
    /// TCP_KEEPCNT: number of probes.
    pub keepalive_probes: AtomicU32,
    /// TCP_USER_TIMEOUT in milliseconds.
    pub user_timeout_ms: AtomicU32,
    /// TCP_MAXSEG in bytes.
    pub mss_max: AtomicU32,
    /// TCP_CONGESTION: one of [`congestion`].
    pub congestion: AtomicU32,
    /// SO_RCVBUF in bytes of payload. The receive window has this size and does not grow.
    pub rx_buffer: AtomicU32,
    /// TCP_WINDOW_CLAMP in bytes.
    pub window_clamp: AtomicU32,
    /// SO_RCVLOWAT in bytes.
    pub rx_low: AtomicU32,
    /// TCP_LINGER2 in seconds, or [`FIN_WAIT_2_NEVER`].
    pub fin_wait_2_s: AtomicU32,
    /// The fields [`OpenOptions::tos`] to [`OpenOptions::hop_limit`], in memory order.
    pub ip_fields: AtomicU32,
    /// TCP_SYNCNT: number of SYN retransmissions.
    pub syn_retries: AtomicU32,
    /// Not 0 if the service must report sent bytes (TCP_NOTSENT_LOWAT): when bytes have left the
    /// host, the service stores the position after them in
    /// [`tx_sent`](crate::ServiceHalf::tx_sent), and sends the event READY.
    pub tx_reports: AtomicU32,
    /// Counter of the changes of `tx_urgent`.
    pub tx_urgent_count: AtomicU32,
    /// Stream position after the urgent byte that the program wrote most recently (MSG_OOB). The
    /// program stores this position before [`tx_head`] reaches the position.
    ///
    /// [`tx_head`]: crate::ProgramHalf::tx_head
    pub tx_urgent: AtomicU32,
    /// SO_MAX_PACING_RATE in bytes per second.
    pub pacing_rate_max: AtomicU32,
}

/// Options that take effect before a connection has a slot. Zero stands for the service's default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// TCP_USER_TIMEOUT in milliseconds.
    pub user_timeout_ms: u32,
    /// TCP_MAXSEG in bytes.
    pub mss_max: u16,
    /// TCP_CONGESTION: one of [`congestion`].
    pub congestion: u16,
    /// SO_RCVBUF: see [`SlotOptions::rx_buffer`].
    pub rx_buffer: u32,
    /// TCP_WINDOW_CLAMP in bytes.
    pub window_clamp: u32,
    /// SO_RCVLOWAT in bytes.
    pub rx_low: u32,
    /// TCP_LINGER2 in seconds, or [`FIN_WAIT_2_NEVER`].
    pub fin_wait_2_s: u32,
    /// IP_TOS.
    pub tos: u8,
    /// IP_TTL.
    pub ttl: u8,
    /// IPV6_TCLASS.
    pub traffic_class: u8,
    /// IPV6_UNICAST_HOPS.
    pub hop_limit: u8,
    /// TCP_SYNCNT: number of SYN retransmissions.
    pub syn_retries: u8,
    /// TCP_DEFER_ACCEPT: number of SYN-ACK timeouts for which a connection waits for its first
    /// data.
    pub defer_accept: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// SO_MAX_PACING_RATE in bytes per second, up to 4 GiB/s.
    pub pacing_rate_max: u64,
}

/// Value of [`OpenOptions::fin_wait_2_s`] and [`SlotOptions::fin_wait_2_s`] for a connection that
/// is reset instead of entering FIN-WAIT-2.
pub const FIN_WAIT_2_NEVER: u32 = u32::MAX;

/// Numbers of congestion control algorithms.
pub mod congestion {
    /// NewReno.
    pub const RENO: u16 = 1;
    /// CUBIC.
    pub const CUBIC: u16 = 2;
    /// DCTCP.
    pub const DCTCP: u16 = 3;
    /// BBR.
    pub const BBR: u16 = 4;
}
