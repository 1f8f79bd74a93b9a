//! The fields of `struct tcp_info` that assertions in scripts may name.

/// Length of `struct tcp_info` that the runner requests, in bytes.
pub const TCP_INFO_LEN: usize = 256;

/// The fields: name, offset in bytes, and size in bytes. [`TcpInfo::field`] handles the two window
/// scales, which share a byte.
const FIELDS: [(&str, usize, usize); 52] = [
    ("tcpi_state", 0, 1),
    ("tcpi_ca_state", 1, 1),
    ("tcpi_retransmits", 2, 1),
    ("tcpi_probes", 3, 1),
    ("tcpi_backoff", 4, 1),
    ("tcpi_options", 5, 1),
    ("tcpi_rto", 8, 4),
    ("tcpi_ato", 12, 4),
    ("tcpi_snd_mss", 16, 4),
    ("tcpi_rcv_mss", 20, 4),
    ("tcpi_unacked", 24, 4),
    ("tcpi_sacked", 28, 4),
    ("tcpi_lost", 32, 4),
    ("tcpi_retrans", 36, 4),
    ("tcpi_fackets", 40, 4),
    ("tcpi_last_data_sent", 44, 4),
    ("tcpi_last_ack_sent", 48, 4),
    ("tcpi_last_data_recv", 52, 4),
    ("tcpi_last_ack_recv", 56, 4),
    ("tcpi_pmtu", 60, 4),
    ("tcpi_rcv_ssthresh", 64, 4),
    ("tcpi_rtt", 68, 4),
    ("tcpi_rttvar", 72, 4),
    ("tcpi_snd_ssthresh", 76, 4),
    ("tcpi_snd_cwnd", 80, 4),
    ("tcpi_advmss", 84, 4),
    ("tcpi_reordering", 88, 4),
    ("tcpi_rcv_rtt", 92, 4),
    ("tcpi_rcv_space", 96, 4),
    ("tcpi_total_retrans", 100, 4),
    ("tcpi_pacing_rate", 104, 8),
    ("tcpi_max_pacing_rate", 112, 8),
    ("tcpi_bytes_acked", 120, 8),
    ("tcpi_bytes_received", 128, 8),
    ("tcpi_segs_out", 136, 4),
    ("tcpi_segs_in", 140, 4),
    ("tcpi_notsent_bytes", 144, 4),
    ("tcpi_min_rtt", 148, 4),
    ("tcpi_data_segs_in", 152, 4),
    ("tcpi_data_segs_out", 156, 4),
    ("tcpi_delivery_rate", 160, 8),
    ("tcpi_busy_time", 168, 8),
    ("tcpi_rwnd_limited", 176, 8),
    ("tcpi_sndbuf_limited", 184, 8),
    ("tcpi_delivered", 192, 4),
    ("tcpi_delivered_ce", 196, 4),
    ("tcpi_bytes_sent", 200, 8),
    ("tcpi_bytes_retrans", 208, 8),
    ("tcpi_dsack_dups", 216, 4),
    ("tcpi_reord_seen", 220, 4),
    ("tcpi_rcv_ooopack", 224, 4),
    ("tcpi_snd_wnd", 228, 4),
];

/// The output of `getsockopt(TCP_INFO)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpInfo(Vec<u8>);

impl TcpInfo {
    /// Wraps the bytes that the call returned.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the value of a field. Returns `None` if no field has this name, or if the output
    /// ends before the end of the field. If the output ends before the window scales, their value
    /// is 0.
    pub fn field(&self, name: &str) -> Option<i64> {
        let shared = self.0.get(6).copied().unwrap_or(0);
        match name {
            "tcpi_snd_wscale" => return Some((shared & 15).into()),
            "tcpi_rcv_wscale" => return Some((shared >> 4).into()),
            _ => {}
        }
        let (_, at, len) = *FIELDS.iter().find(|(known, _, _)| *known == name)?;
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(self.0.get(at..at + len)?);
        Some(u64::from_le_bytes(bytes) as i64)
    }
}
