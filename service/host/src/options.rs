//! Options that programs set on their connections, and the statistics (TCP_INFO) that programs
//! read.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tidelane_abi::{
    FIN_WAIT_2_NEVER, OpenOptions, SlotOptions, TcpInfo, congestion, program_flags,
    tcp_info_features,
};
use tidelane_engine::{
    Algorithm, CaState, CcInfo, Clock, FinWait2, FlowInfo, IpFields, IpOptions, SocketOptions,
    WindowOptions,
};
use tidelane_time::{Duration, Instant};

use crate::congestion::number_of;

/// The bits of [`program_flags`] that [`options_of`] reads.
pub(crate) const FLAG_BITS: u32 = program_flags::NODELAY
    | program_flags::CORK
    | program_flags::KEEPALIVE
    | program_flags::QUICKACK;
/// Largest TCP_KEEPIDLE and TCP_KEEPINTVL in seconds, as in Linux.
const KEEPALIVE_S_MAX: u32 = 32_767;
/// Largest TCP_KEEPCNT, as in Linux.
const KEEPALIVE_PROBES_MAX: u32 = 127;
/// Smallest TCP_MAXSEG in bytes, as in Linux.
const MSS_MIN: u16 = 88;
/// Smallest window in bytes that a program may set: half of the smallest SO_RCVBUF of Linux.
const WINDOW_MIN: u32 = 1152;
/// Largest TCP_SYNCNT, as in Linux.
const SYN_RETRIES_MAX: u8 = 127;
/// Largest TCP_LINGER2 in seconds, as in Linux.
const FIN_WAIT_2_S_MAX: u32 = 120;

/// Returns `base` with the options of [`FLAG_BITS`] taken from `flags`, the flags of a program.
pub(crate) fn options_of(flags: u32, base: SocketOptions) -> SocketOptions {
    SocketOptions {
        nodelay: flags & program_flags::NODELAY != 0,
        cork: flags & program_flags::CORK != 0,
        keepalive: flags & program_flags::KEEPALIVE != 0,
        quickack: flags & program_flags::QUICKACK != 0,
        ..base
    }
}

/// Returns `base` with a program's `options` applied. Clamps each value for which this module has a
/// limit.
pub(crate) fn opened_with(options: &OpenOptions, base: SocketOptions) -> SocketOptions {
    SocketOptions {
        user_timeout: match options.user_timeout_ms {
            0 => base.user_timeout,
            ms => Duration::from_millis(ms.into()),
        },
        mss_max: match options.mss_max {
            0 => base.mss_max,
            mss => mss.max(MSS_MIN),
        },
        congestion: algorithm_of(options.congestion).or(base.congestion),
        ip: ip_options(options, &base.ip),
        syn_retries: options.syn_retries.min(SYN_RETRIES_MAX),
        defer_accept: options.defer_accept,
        pacing_rate_max: match options.pacing_rate_max {
            0 => base.pacing_rate_max,
            rate => rate,
        },
        fin_wait_2: match options.fin_wait_2_s {
            0 => base.fin_wait_2,
            FIN_WAIT_2_NEVER => FinWait2::Never,
            seconds => FinWait2::For(Duration::from_secs(seconds.min(FIN_WAIT_2_S_MAX).into())),
        },
        window: window_options(options),
        ..base
    }
}

fn ip_options(options: &OpenOptions, base: &IpOptions) -> IpOptions {
    let fields = |traffic_class, hop_limit, base: IpFields| IpFields {
        traffic_class,
        hop_limit: match hop_limit {
            0 => base.hop_limit,
            set => set,
        },
    };
    IpOptions {
        v4: fields(options.tos, options.ttl, base.v4),
        v6: fields(options.traffic_class, options.hop_limit, base.v6),
    }
}

fn window_options(options: &OpenOptions) -> WindowOptions {
    let bounded = |bytes: u32| match bytes {
        0 => 0,
        bytes => bytes.max(WINDOW_MIN),
    };
    WindowOptions {
        buffer: bounded(options.rx_buffer),
        clamp: bounded(options.window_clamp),
        low: options.rx_low,
    }
}

/// Returns `base` with the options in a slot applied. A slot is the record of a connection in the
/// memory that the service shares with a program. The program may change each word of the slot at
/// any time, so the function reads each word once.
pub(crate) fn slot_options(shared: &SlotOptions, base: SocketOptions) -> SocketOptions {
    let byte = |word: &AtomicU32| word.load(Relaxed).min(u8::MAX.into()) as u8;
    let short = |word: &AtomicU32| word.load(Relaxed).min(u16::MAX.into()) as u16;
    let [tos, ttl, traffic_class, hop_limit] = shared.ip_fields.load(Relaxed).to_ne_bytes();
    let opening = OpenOptions {
        user_timeout_ms: shared.user_timeout_ms.load(Relaxed),
        mss_max: short(&shared.mss_max),
        congestion: short(&shared.congestion),
        rx_buffer: shared.rx_buffer.load(Relaxed),
        window_clamp: shared.window_clamp.load(Relaxed),
        rx_low: shared.rx_low.load(Relaxed),
        fin_wait_2_s: shared.fin_wait_2_s.load(Relaxed),
        tos,
        ttl,
        traffic_class,
        hop_limit,
        syn_retries: byte(&shared.syn_retries),
        // TCP_DEFER_ACCEPT does not apply to a connection that has a slot.
        defer_accept: 0,
        reserved: [0; 2],
        pacing_rate_max: shared.pacing_rate_max.load(Relaxed).into(),
    };
    let seconds = |asked: u32, otherwise| match asked {
        0 => otherwise,
        asked => Duration::from_secs(asked.min(KEEPALIVE_S_MAX).into()),
    };
    let idle = shared.keepalive_idle_s.load(Relaxed);
    let interval = shared.keepalive_interval_s.load(Relaxed);
    let probes = shared.keepalive_probes.load(Relaxed);
    SocketOptions {
        keepalive_idle: seconds(idle, base.keepalive_idle),
        keepalive_interval: seconds(interval, base.keepalive_interval),
        keepalive_probes: match probes {
            0 => base.keepalive_probes,
            probes => probes.min(KEEPALIVE_PROBES_MAX) as u8,
        },
        ..opened_with(&opening, base)
    }
}

fn algorithm_of(number: u16) -> Option<Algorithm> {
    match number {
        congestion::RENO => Some(Algorithm::NewReno),
        congestion::CUBIC => Some(Algorithm::Cubic),
        congestion::DCTCP => Some(Algorithm::Dctcp),
        congestion::BBR => Some(Algorithm::Bbr),
        _ => None,
    }
}

/// Returns the value of [`TcpInfo::details`] for `cc_info`, the state of congestion control.
fn cc_info_words(cc_info: CcInfo) -> [u32; 6] {
    match cc_info {
        CcInfo::None => [0; 6],
        CcInfo::Dctcp {
            alpha,
            marked,
            acked,
        } => [alpha, marked, acked, 0, 0, 0],
        CcInfo::Bbr {
            bandwidth,
            min_rtt,
            pacing_gain,
            cwnd_gain,
        } => {
            let min_rtt = min_rtt.map_or(u32::MAX, micros);
            [bandwidth, 0, min_rtt, pacing_gain, cwnd_gain, 0]
        }
    }
}

/// Returns `duration` in microseconds, at most `u32::MAX`.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// Returns the TCP_INFO for the engine's statistics of a connection. `ato` is the longest time for
/// which the engine delays an ACK.
pub(crate) fn tcp_info_of(now: Instant, info: &FlowInfo, ato: Duration) -> TcpInfo {
    let (clock, traffic) = (Clock::at(now), &info.traffic);
    let feature = |on: bool, bit| if on { bit } else { 0 };
    TcpInfo {
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        bytes_sent: info.bytes_acked + u64::from(info.flight_size) + info.retrans_bytes,
        pacing_rate: info.pacing_rate,
        pacing_rate_max: info.pacing_rate_max,
        srtt_us: micros(info.srtt),
        rttvar_us: micros(info.rttvar),
        rtt_min_us: micros(info.rtt_min),
        rto_us: micros(info.rto),
        cwnd: info.cwnd,
        ssthresh: info.ssthresh,
        mss: info.mss,
        rcv_mss: info.rcv_mss,
        flight_size: info.flight_size,
        sacked: info.sacked,
        lost: info.lost,
        retrans: info.retrans,
        retrans_bytes: info.retrans_bytes,
        retrans_out: info.retrans_out,
        segs_in: traffic.segs_in(),
        data_segs_in: traffic.data_segs_in,
        segs_out: traffic.segs_out(),
        data_segs_out: traffic.data_segs_out,
        delivered: info.delivered,
        delivered_ce: info.delivered_ce,
        ooo_segments: info.ooo_segs_in,
        last_data_sent_ms: clock.since_ms(traffic.data_sent_at),
        last_data_recv_ms: clock.since_ms(traffic.data_received_at),
        last_ack_recv_ms: clock.since_ms(traffic.ack_received_at),
        delivery_rate: info.delivery_rate,
        busy_us: traffic.busy_us(clock.us()),
        rwnd_limited_us: traffic.window_limited_us(clock.us()),
        reordering: info.reordering,
        reorder_seen: info.reorder_seen,
        dsacks: info.dsacks,
        probes: info.probes.into(),
        snd_wnd: info.snd_wnd,
        rcv_wnd: info.rcv_wnd,
        unsent: info.unsent,
        congestion: Algorithm::from_name(info.congestion)
            .map_or(0, number_of)
            .into(),
        features: feature(info.timestamps, tcp_info_features::TIMESTAMPS)
            | feature(info.sack, tcp_info_features::SACK)
            | feature(info.ecn, tcp_info_features::ECN)
            | feature(info.syn_data, tcp_info_features::SYN_DATA)
            | feature(info.app_limited, tcp_info_features::APP_LIMITED),
        wscales: u32::from(info.snd_wscale) | u32::from(info.rcv_wscale) << 8,
        backoff: info.timeouts.into(),
        ca_state: match info.ca_state {
            CaState::Open => 0,
            CaState::Disorder => 1,
            CaState::Cwr => 2,
            CaState::Recovery => 3,
            CaState::Loss => 4,
        },
        details: cc_info_words(info.cc_info),
        ato_us: if traffic.data_segs_in > 0 {
            micros(ato)
        } else {
            0
        },
    }
}
