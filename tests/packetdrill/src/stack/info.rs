//! The values of TCP_INFO (`struct tcp_info`) and SO_MEMINFO in the kernel's layout.

use tidelane_engine::{CaState, Clock, FlowId, FlowInfo, State};

use crate::{
    errno::CallResult,
    stack::{Fd, Stack},
};

/// TCP_MAXSEG in bytes, before there is a connection, if the program has set no value (RFC 9293
/// §3.7.1, MUST-15).
pub const MSS_DEFAULT: u32 = 536;
/// Size of `struct tcp_info` that the newest scripts expect, in bytes.
const TCP_INFO_LEN: usize = 280;
/// `tcpi_snd_ssthresh` until the slow start threshold is set (Linux's TCP_INFINITE_SSTHRESH).
const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;
/// Length of the IPv4 and TCP headers together, without options, in bytes.
const HEADERS_LEN: u32 = 20 + 20;
/// Length of the IPv6 and TCP headers together, without options, in bytes.
const HEADERS_LEN_V6: u32 = 40 + 20;

// Bits of `tcpi_options` (`TCPI_OPT_*` in `linux/tcp.h`).
const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WSCALE: u8 = 4;
const OPTION_ECN: u8 = 8;
const OPTION_SYN_DATA: u8 = 32;

/// Returns the number of a TCP state in `tcpi_state`.
const fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        // Linux moves TIME-WAIT to a separate socket, so the program's socket shows CLOSE.
        State::TimeWait | State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Listen => 10,
        State::Closing => 11,
    }
}

/// A builder that appends the fields of a C structure in native byte order.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn bytes(&mut self, values: &[u8]) -> &mut Self {
        self.0.extend_from_slice(values);
        self
    }

    fn words(&mut self, values: &[u32]) -> &mut Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    fn longs(&mut self, values: &[u64]) -> &mut Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }
}

/// Values of `tcp_info` that the engine (Tidelane's TCP) does not have. The driver (the code that
/// runs the engine, such as [`Stack`]) provides these values.
#[derive(Clone, Copy, Debug)]
pub struct DriverInfo {
    /// The engine's clock at the present time.
    pub clock: Clock,
    /// Time in which the send buffer limited the program, in microseconds.
    pub buffer_limited_us: u64,
    /// Number of bytes that are written but not sent yet.
    pub unsent: u32,
    /// MTU of the device in bytes.
    pub mtu: u32,
    /// TCP_MAXSEG in bytes. 0 if the program has set no value.
    pub mss_max: u16,
}

impl DriverInfo {
    /// Returns the MSS that the MTU of the device allows for the connection of `info`.
    fn device_mss(&self, info: &FlowInfo) -> u32 {
        self.mtu - headers_len(info)
    }

    /// Returns the path MTU.
    fn pmtu(&self, info: &FlowInfo) -> u32 {
        match info.path_mss < self.device_mss(info) {
            true => info.path_mss + headers_len(info),
            false => self.mtu,
        }
    }

    /// Returns the MSS that this end announces.
    fn advmss(&self, info: &FlowInfo) -> u32 {
        match self.mss_max {
            0 => self.device_mss(info),
            own => self.device_mss(info).min(own.into()),
        }
    }
}

/// Returns the length of the IP and TCP headers without options.
fn headers_len(info: &FlowInfo) -> u32 {
    match info.key.peer.addr.is_v4() {
        true => HEADERS_LEN,
        false => HEADERS_LEN_V6,
    }
}

/// Returns `struct tcp_info` of a socket without a connection.
pub fn tcp_info_unconnected(state: State) -> Vec<u8> {
    let mut bytes = vec![0; TCP_INFO_LEN];
    bytes[0] = state_number(state);
    bytes
}

/// Returns `struct tcp_info` with the values of `info` and `driver`.
pub fn tcp_info(info: &FlowInfo, driver: &DriverInfo) -> Vec<u8> {
    let mss = info.mss.max(1);
    let options = [
        (info.timestamps, OPTION_TIMESTAMPS),
        (info.sack, OPTION_SACK),
        (info.ecn, OPTION_ECN),
        (info.syn_data, OPTION_SYN_DATA),
        (info.snd_wscale | info.rcv_wscale != 0, OPTION_WSCALE),
    ];
    let options = options.iter().filter(|(on, _)| *on);
    let options = options.fold(0, |all, (_, bit)| all | bit);
    let ssthresh = match info.ssthresh {
        u32::MAX => SSTHRESH_INFINITE,
        bytes => bytes / mss,
    };
    let us = |span: tidelane_engine::Duration| (span.0 / 1000) as u32;
    // Linux counts a segment as lost until it is acknowledged, even after its retransmission.
    let lost = match info.ca_state {
        CaState::Recovery | CaState::Loss => info.lost + info.retrans_out,
        _ => info.lost,
    };
    let of = |bytes: u32| bytes.div_ceil(mss);
    let bytes_sent = info.bytes_acked + u64::from(info.flight_size) + info.retrans_bytes;
    let (clock, traffic) = (&driver.clock, &info.traffic);
    let busy_us = traffic.busy_us(clock.us());
    let window_limited_us = traffic.window_limited_us(clock.us());
    let mut fields = Fields::default();
    fields
        .bytes(&[state_number(info.state), info.ca_state as u8])
        .bytes(&[info.timeouts, info.probes, info.backoff, options])
        .bytes(&[info.snd_wscale | info.rcv_wscale << 4])
        .bytes(&[info.app_limited.into()])
        // rto, ato, snd_mss, rcv_mss
        .words(&[us(info.rto), 40_000, mss, info.rcv_mss])
        // unacked, sacked, lost, retrans, fackets
        .words(&[of(info.flight_size), of(info.sacked), of(lost)])
        .words(&[of(info.retrans_out), 0])
        // last data sent, last ack sent, last data received, last ack received
        .words(&[clock.since_ms(traffic.data_sent_at), 0])
        .words(&[clock.since_ms(traffic.data_received_at)])
        .words(&[clock.since_ms(traffic.ack_received_at)])
        // pmtu, rcv_ssthresh, rtt, rttvar
        .words(&[driver.pmtu(info), info.rcv_wnd])
        .words(&[us(info.srtt), us(info.rttvar)])
        // snd_ssthresh, snd_cwnd, advmss, reordering
        .words(&[ssthresh, info.cwnd / mss])
        .words(&[driver.advmss(info), info.reordering])
        // rcv_rtt, rcv_space, total_retrans
        .words(&[0, info.rcv_wnd, info.retrans])
        // pacing_rate, max_pacing_rate, bytes_acked, bytes_received
        .longs(&[info.pacing_rate, info.pacing_rate_max])
        .longs(&[info.bytes_acked, info.bytes_received])
        // segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out
        .words(&[traffic.segs_out(), traffic.segs_in()])
        .words(&[driver.unsent, us(info.rtt_min)])
        .words(&[traffic.data_segs_in, traffic.data_segs_out])
        // delivery_rate, busy_time, rwnd_limited, sndbuf_limited
        .longs(&[info.delivery_rate])
        .longs(&[busy_us, window_limited_us, driver.buffer_limited_us])
        // delivered, delivered_ce
        .words(&[info.delivered, info.delivered_ce])
        // bytes_sent, bytes_retrans
        .longs(&[bytes_sent, info.retrans_bytes])
        // dsack_dups, reord_seen, rcv_ooopack, snd_wnd, rcv_wnd, rehash
        .words(&[info.dsacks, info.reorder_seen, info.ooo_segs_in])
        .words(&[info.snd_wnd, info.rcv_wnd, 0]);
    fields.0.resize(TCP_INFO_LEN, 0);
    fields.0
}

impl Stack {
    /// Implements `getsockopt` of TCP_INFO. Without a connection, all fields except `tcpi_state`
    /// are 0.
    pub(crate) fn tcp_info(&self, fd: Fd) -> CallResult<Vec<u8>> {
        let id = self.flow_of(fd)?;
        Ok(match id.and_then(|id| Some((id, self.flow_info(id)?))) {
            Some((id, info)) => tcp_info(&info, &self.driver_info(fd, id)?),
            None => tcp_info_unconnected(self.state_of(fd)?),
        })
    }

    /// Computes the values that the engine does not have, for the flow (connection) `id` of the
    /// socket `fd`.
    fn driver_info(&self, fd: Fd, id: FlowId) -> CallResult<DriverInfo> {
        let now = self.now();
        let stats = self.flows.get(&id).copied().unwrap_or_default().stats;
        Ok(DriverInfo {
            clock: Clock::at(now),
            buffer_limited_us: stats.buffer_limited_us(now),
            unsent: self.unsent_of(id),
            mtu: self.settings.mtu,
            mss_max: self.socket(fd)?.options.engine.mss_max,
        })
    }

    /// Implements `getsockopt` of SO_MEMINFO. The fields are rmem_alloc, rcvbuf, wmem_alloc,
    /// sndbuf, fwd_alloc, wmem_queued, optmem, backlog and drops. A field that this stack does not
    /// model is 0.
    pub(crate) fn memory_info(&self, fd: Fd, id: Option<FlowId>) -> CallResult<Vec<u8>> {
        let options = &self.socket(fd)?.options;
        let queued = id.map_or(0, |id| self.queued(id));
        let info = id.and_then(|id| self.flow_info(id));
        let unread = info.map_or(0, |info| info.unread);
        let mut fields = Fields::default();
        fields.words(&[
            unread,
            options.rcvbuf,
            0,
            options.sndbuf,
            0,
            queued,
            0,
            0,
            0,
        ]);
        Ok(fields.0)
    }
}
