//! The value of TCP_INFO, Linux' `struct tcp_info`, for an accelerated connection.
//!
//! Most values come from the service (the process `tidelaned`), which carries the connection. The
//! remaining values come from the connection's stream in shared memory, and from the socket's state
//! in this process. The numbers in the code are the byte offsets of the fields in `struct
//! tcp_info`.

use std::net::Ipv6Addr;

use tidelane_abi::{TcpInfo, service_flags, tcp_info_features};

use super::{Inner, state::State};
use crate::service::session;

/// Length in bytes of the supported part of `tcp_info`, which ends with `tcpi_rcv_wnd`.
const TCP_INFO_LEN: usize = 236;
/// Length in bytes of an IPv4 header and a TCP header without options.
const IPV4_HEADERS_LEN: u32 = 40;
/// Length in bytes of an IPv6 header and a TCP header without options.
const IPV6_HEADERS_LEN: u32 = 60;
/// Length in bytes of the timestamps option with its padding.
const TIMESTAMPS_LEN: u32 = 12;
/// `ssthresh` before the first loss, in segments (TCP_INFINITE_SSTHRESH).
const SSTHRESH_NONE: u32 = 0x7fff_ffff;
/// Bits of `tcpi_options`.
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WSCALE: u8 = 4;
const OPTION_ECN: u8 = 8;
const OPTION_SYN_DATA: u8 = 32;
/// Bit `tcpi_delivery_rate_app_limited` of the byte after the window scales.
const DELIVERY_RATE_APP_LIMITED: u8 = 1;

impl Inner {
    /// Returns `tcp_info`. The fields that `docs/socket-calls.md` lists as unsupported are 0.
    pub(crate) fn tcp_info(&mut self) -> [u8; TCP_INFO_LEN] {
        let mut info = [0; TCP_INFO_LEN];
        let tcp_info = self.service_tcp_info();
        if let Some(tcp_info) = &tcp_info {
            fill(&mut info, tcp_info, self.headers_len());
        }
        info[0] = self.tcp_state();
        let bytes_read = self.bytes_read;
        if let Some(connection) = self.connection() {
            // The values of the stream are newer than the service's answer, and remain valid after
            // the end of the connection.
            let stream = &mut connection.stream;
            let mss = stream.ids().mss;
            put(&mut info, 16, mss);
            put(&mut info, 24, stream.unacked().div_ceil(mss.max(1)));
            put(&mut info, 84, mss);
            put(&mut info, 96, stream.rx_window());
            // `bytes_read` counts only the reads of this process. If several processes have read
            // from the connection, only the service knows the number of all received bytes.
            let counted = tcp_info.map_or(0, |tcp_info| tcp_info.bytes_received);
            let received = counted.max(bytes_read + stream.undelivered());
            info[128..136].copy_from_slice(&received.to_ne_bytes());
        }
        info
    }

    /// Asks the service for the connection's figures, such as RTT and congestion window. Returns
    /// `None` if the socket has no connection, if the service that carries the connection is gone,
    /// or if the query fails.
    pub(crate) fn service_tcp_info(&mut self) -> Option<TcpInfo> {
        let connection = self.connection()?;
        let session = session::last().filter(|last| last.generation == connection.session)?;
        session.program()?.tcp_info(&connection.stream).ok()
    }

    /// Returns the length in bytes of a segment's IP and TCP headers without TCP options.
    fn headers_len(&mut self) -> u32 {
        let peer = self.connection().map(|c| c.stream.ids().peer_addr);
        let is_ipv6 = peer.is_some_and(|peer| Ipv6Addr::from(peer).to_ipv4_mapped().is_none());
        if is_ipv6 {
            IPV6_HEADERS_LEN
        } else {
            IPV4_HEADERS_LEN
        }
    }

    /// Returns the TCP state as a number of the `enum` in `<netinet/tcp.h>`. This process cannot
    /// see CLOSING and TIME-WAIT. The function returns LAST-ACK in CLOSING, and CLOSED in
    /// TIME-WAIT.
    fn tcp_state(&mut self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const SYN_SENT: u8 = 2;
        const FIN_WAIT1: u8 = 4;
        const FIN_WAIT2: u8 = 5;
        const CLOSE: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        const LAST_ACK: u8 = 9;
        let (shut_write, over) = (self.shut_write, self.cause_reported);
        match &self.state {
            State::Connecting(_) => SYN_SENT,
            State::Stream(connection) if !over => {
                let flags = connection.stream.service_flags();
                let fin_received = flags & service_flags::FIN_RECEIVED != 0;
                let fin_acked = flags & service_flags::FIN_ACKED != 0;
                match (fin_received, shut_write) {
                    (false, false) => ESTABLISHED,
                    (true, false) => CLOSE_WAIT,
                    (true, true) => LAST_ACK,
                    (false, true) if fin_acked => FIN_WAIT2,
                    (false, true) => FIN_WAIT1,
                }
            }
            _ => CLOSE,
        }
    }
}

fn put(info: &mut [u8; TCP_INFO_LEN], at: usize, value: u32) {
    info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

/// Writes 32-bit and 64-bit fields, each at its offset.
fn put_all(info: &mut [u8; TCP_INFO_LEN], words: &[(usize, u32)], longs: &[(usize, u64)]) {
    for (at, word) in words {
        put(info, *at, *word);
    }
    for (at, long) in longs {
        info[*at..*at + 8].copy_from_slice(&long.to_ne_bytes());
    }
}

/// Fills in the service's values. `headers_len` is the length in bytes of a segment's IP and TCP
/// headers without TCP options.
fn fill(info: &mut [u8; TCP_INFO_LEN], tcp_info: &TcpInfo, headers_len: u32) {
    let mss = tcp_info.mss.max(1);
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let has = |feature: u32, option: u8| {
        if tcp_info.features & feature != 0 {
            option
        } else {
            0
        }
    };
    let timestamps = has(tcp_info_features::TIMESTAMPS, OPTION_TIMESTAMPS);
    let wscale = if tcp_info.wscales == 0 {
        0
    } else {
        OPTION_WSCALE
    };
    info[1] = tcp_info.ca_state as u8;
    // Offset 2 is `tcpi_retransmits`, the number of consecutive retransmission timeouts.
    info[2] = tcp_info.backoff as u8;
    info[3] = tcp_info.probes.min(255) as u8;
    info[4] = tcp_info.backoff as u8;
    info[5] = timestamps
        | has(tcp_info_features::SACK, OPTION_SACK)
        | has(tcp_info_features::ECN, OPTION_ECN)
        | has(tcp_info_features::SYN_DATA, OPTION_SYN_DATA)
        | wscale;
    info[6] = (tcp_info.wscales & 15) as u8 | (tcp_info.wscales >> 4 & 0xf0) as u8;
    info[7] = has(tcp_info_features::APP_LIMITED, DELIVERY_RATE_APP_LIMITED);
    let ssthresh = match tcp_info.ssthresh {
        u32::MAX => SSTHRESH_NONE,
        bytes => segments(bytes),
    };
    let options_len = if timestamps == 0 { 0 } else { TIMESTAMPS_LEN };
    let words = [
        (8, tcp_info.rto_us),
        (12, tcp_info.ato_us),
        (20, tcp_info.rcv_mss),
        (28, segments(tcp_info.sacked)),
        (32, segments(tcp_info.lost)),
        (36, segments(tcp_info.retrans_out)),
        (60, tcp_info.mss + headers_len + options_len),
        (64, tcp_info.rcv_wnd),
        (68, tcp_info.srtt_us),
        (72, tcp_info.rttvar_us),
        (76, ssthresh),
        (80, (tcp_info.cwnd / mss).max(1)),
        (88, tcp_info.reordering),
        (100, tcp_info.retrans),
        (144, tcp_info.unsent),
        (148, tcp_info.rtt_min_us),
        (216, tcp_info.dsacks),
        (220, tcp_info.reorder_seen),
        (228, tcp_info.snd_wnd),
        (232, tcp_info.rcv_wnd),
    ];
    let longs = [
        (104, tcp_info.pacing_rate),
        (112, tcp_info.pacing_rate_max),
        (120, tcp_info.bytes_acked),
        (200, tcp_info.bytes_sent),
        (208, tcp_info.retrans_bytes),
    ];
    put_all(info, &words, &longs);
    fill_counts(info, tcp_info);
}

/// Fills in the service's segment counts, times and delivery rate.
fn fill_counts(info: &mut [u8; TCP_INFO_LEN], tcp_info: &TcpInfo) {
    let words = [
        (44, tcp_info.last_data_sent_ms),
        (52, tcp_info.last_data_recv_ms),
        (56, tcp_info.last_ack_recv_ms),
        (136, tcp_info.segs_out),
        (140, tcp_info.segs_in),
        (152, tcp_info.data_segs_in),
        (156, tcp_info.data_segs_out),
        (192, tcp_info.delivered),
        (196, tcp_info.delivered_ce),
        (224, tcp_info.ooo_segments),
    ];
    let longs = [
        (160, tcp_info.delivery_rate),
        (168, tcp_info.busy_us),
        (176, tcp_info.rwnd_limited_us),
    ];
    put_all(info, &words, &longs);
}
