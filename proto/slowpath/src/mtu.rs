//! Packetization layer path MTU discovery (RFC 4821): a search for the path MTU that needs no ICMP
//! errors.
//!
//! A search has two bounds. The lower bound is the largest segment size that is known to arrive.
//! All segments except probes have at most this size. The upper bound is the largest size that is
//! worth a probe. A probe is one segment whose size is halfway between the bounds. The ACK of the
//! probe raises the lower bound. The loss of the probe lowers the upper bound, and is no congestion
//! signal if no other data is lost. By default, a search begins when several consecutive timeouts
//! suggest a path MTU black hole: a link that drops large packets without an ICMP error.

use tidelane_flow::{CaState, Driver, MtuProbing, TxFull, flags};
use tidelane_wire::{SeqNumber, TcpFlags};

use crate::{SlowPath, ip_sizes::ip_sizes};

/// Number of consecutive timeouts after which the path counts as a black hole (Linux:
/// `tcp_retries1`).
const TIMEOUTS: u8 = 4;
/// First size of a search over IPv4, as an MSS (Linux: `tcp_base_mss`; RFC 4821 §7.2).
const BASE_MSS: u16 = 1024;
/// Difference of the two bounds, in bytes, below which the search ends (Linux:
/// `tcp_probe_threshold`).
const PROBE_THRESHOLD: u16 = 8;
/// Least congestion window for a probe, in segments.
const WINDOW_MIN: u32 = 11;
/// Number of segments that must follow a probe, so that their ACKs show the loss of the probe.
const FOLLOWERS: u32 = 4;
/// Time in ms after which a search tries larger sizes again (RFC 1191 §6.3: ten minutes).
const SEARCH_AGAIN_MS: u32 = 600_000;

/// An MTU probe in flight: the range `[start, end)` of sequence numbers.
#[derive(Clone, Copy, Debug)]
struct Probe {
    start: SeqNumber,
    end: SeqNumber,
    /// Size as an MSS, options included.
    size: u16,
}

/// Path MTU search of one connection. All sizes are MSS values, options included.
#[derive(Clone, Copy, Debug, Default)]
pub struct MtuSearch {
    /// True if a search has begun. The largest size known to arrive is the connection's `path_mss`.
    active: bool,
    /// Largest size worth a probe.
    high: u16,
    /// Probe in flight, if any.
    probe: Option<Probe>,
}

impl MtuSearch {
    /// Returns true if a probe is in flight, or if the search will send another probe. `low` is the
    /// largest size known to arrive.
    pub(crate) fn is_searching(&self, low: u16) -> bool {
        self.active && (self.probe.is_some() || self.high.saturating_sub(low) >= PROBE_THRESHOLD)
    }

    /// Returns true if a probe is in flight.
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Starts from the `size` that the search of an earlier connection has found. The next probe
    /// waits until that size expires.
    pub(crate) fn begin_at(&mut self, size: u16) {
        (self.active, self.high) = (true, size);
    }

    /// Lowers the upper bound of the search to `size`, after an ICMP error or a change of the link
    /// MTU.
    pub(crate) fn bound(&mut self, size: u16) {
        self.high = self.high.min(size);
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns the size at which a search begins. Nearly every path supports this size.
    fn base_mss(&self) -> u16 {
        let sizes = ip_sizes(self.hot.key.peer.addr);
        BASE_MSS.max(sizes.path_mtu_min - sizes.headers)
    }

    /// Returns the largest size that the link, the peer's MSS and the configuration allow.
    fn largest_mss(&self) -> u16 {
        let both = self.cold.rmss.min(self.cold.peer_mss);
        both.min(self.config.segment_max)
    }

    /// Starts the search of a new connection if the configuration demands a search on every
    /// connection.
    pub(crate) fn begin_mtu_search(&mut self) {
        if self.config.mtu_probing == MtuProbing::Always {
            self.search_from(self.base_mss());
        }
    }

    /// Begins a search whose lower bound is at most `low`.
    fn search_from(&mut self, low: u16) {
        self.cold.mtu = MtuSearch {
            active: true,
            high: self.largest_mss(),
            probe: None,
        };
        if low < self.cold.path_mss {
            self.cold.path_mss = low;
            self.cold.refresh_mss(self.config, self.hot);
        }
    }

    /// Checks for a black hole after a timeout (RFC 4821 §7.7). After [`TIMEOUTS`] timeouts, a
    /// search begins at the base size. After further timeouts, a new search begins at the least
    /// size, for links with an MTU below the base size.
    pub(crate) fn check_black_hole(&mut self) {
        let allowed = self.config.mtu_probing != MtuProbing::Off;
        if !allowed || self.cold.timeouts < TIMEOUTS || !self.hot.state.is_synchronized() {
            return;
        }
        let sizes = ip_sizes(self.hot.key.peer.addr);
        let least = sizes.path_mtu_min - sizes.headers;
        let base = self.base_mss();
        let low = if self.cold.path_mss > base {
            base
        } else {
            least
        };
        if low >= self.cold.path_mss.min(self.cold.peer_mss) {
            return;
        }
        self.counters.mtu_black_holes += 1;
        self.search_from(low);
        self.cold.path_deadline = Some(self.clock.ms.plus(SEARCH_AGAIN_MS));
    }

    /// Raises the upper bound again after ten minutes, because the path may have changed. Returns
    /// false if there is no search.
    pub(crate) fn search_again(&mut self) -> bool {
        if !self.cold.mtu.active {
            return false;
        }
        self.cold.mtu.high = self.largest_mss();
        self.cold.path_deadline = Some(self.clock.ms.plus(SEARCH_AGAIN_MS));
        true
    }

    /// Sends an MTU probe if a probe is due (RFC 4821 §7.3, §7.4).
    pub(crate) fn send_mtu_probe(&mut self) -> Result<(), TxFull> {
        let (low, high) = (self.cold.path_mss, self.cold.mtu.high);
        if !self.cold.mtu.is_searching(low) || self.cold.mtu.is_probing() || !self.may_probe() {
            return Ok(());
        }
        let size = low + (high - low) / 2;
        let options = low.saturating_sub(self.hot.mss);
        let len = u32::from(size - options);
        if !self.has_room_for_probe(len) {
            return Ok(());
        }
        self.ensure_scoreboard();
        self.prepare_rate_sample();
        let (start, end) = (self.hot.snd_nxt, self.hot.snd_nxt.add(len));
        let mut out = self
            .hot
            .segment_out(self.id, &self.clock, start, TcpFlags::NONE, len);
        out.segment_size = len as u16;
        self.transmit(&out)?;
        self.hot.note_ack_sent(out.wnd);
        self.counters.out_segs += 1;
        self.counters.mtu_probes += 1;
        self.hot.snd_nxt = end;
        self.track_sent(start, len as u16);
        self.charge_pacing_and_prr(len);
        if !self.hot.has(flags::RTO_ARMED) {
            self.arm_rto();
        }
        self.cold.mtu.probe = Some(Probe { start, end, size });
        Ok(())
    }

    /// Returns true if the flow may send a probe: no data is missing, the lower bound does not
    /// exceed the peer's MSS, and neither a small window nor pacing limits the flow.
    fn may_probe(&self) -> bool {
        let scoreboard = self.cold.scoreboard.as_ref();
        self.cold.ca_state == CaState::Open
            && scoreboard
                .is_none_or(|scoreboard| scoreboard.sacked() == 0 && scoreboard.lost() == 0)
            && !self.hot.has(flags::PERSIST)
            && !self.cold.mss_bounded_by_window
            && self.cold.path_mss <= self.cold.peer_mss
            && !self.is_held_back()
    }

    /// Returns true if the unsent data and the room in SND.WND suffice for a probe of `len` bytes
    /// and the segments that must follow the probe. In addition, cwnd must be at least
    /// [`WINDOW_MIN`] segments, and must have room for the probe.
    fn has_room_for_probe(&self, len: u32) -> bool {
        let mss = u32::from(self.hot.mss);
        let needed = len + FOLLOWERS * mss;
        let flight = self.hot.flight_size();
        let unsent = self.hot.tx_end.after(self.hot.snd_nxt);
        unsent
            && self.hot.tx_end.distance_from(self.hot.snd_nxt) >= needed
            && flight.saturating_add(needed) <= self.hot.snd_wnd
            && self.hot.cwnd >= WINDOW_MIN * mss
            && flight.saturating_add(len.max(2 * mss)) <= self.hot.cwnd
    }

    /// Raises the segment size if the probe was acknowledged (RFC 4821 §7.6.1).
    pub(crate) fn check_mtu_probe(&mut self) {
        let arrived = |probe: &Probe| probe.end.at_or_before(self.hot.snd_una);
        let Some(probe) = self.cold.mtu.probe.filter(arrived) else {
            return;
        };
        self.cold.mtu.probe = None;
        self.counters.mtu_raised += 1;
        self.cold.path_mss = probe.size;
        self.cold.refresh_mss(self.config, self.hot);
        self.cache_search_result();
    }

    /// Stores the result of a finished search for later connections (RFC 4821 §5.2). A path that
    /// supports the largest size needs no entry.
    fn cache_search_result(&mut self) {
        let low = self.cold.path_mss;
        if self.cold.mtu.is_searching(low) {
            return;
        }
        if low.saturating_add(PROBE_THRESHOLD) > self.largest_mss() {
            self.path_mtus.forget(self.hot.key.peer.addr);
        } else {
            self.cache_path_mtu(true);
        }
    }

    /// Handles the loss of `lost` bytes. If a probe begins at SND.UNA, the probe counts as lost,
    /// and lowers the upper bound of the search. Returns true if nothing but the probe was lost.
    /// The data of the probe is then retransmitted in smaller segments, and cwnd does not change
    /// (RFC 4821 §7.6.2).
    pub(crate) fn on_probe_loss(&mut self, lost: u32) -> bool {
        let first = |probe: &Probe| probe.start == self.hot.snd_una;
        let Some(probe) = self.cold.mtu.probe.filter(first) else {
            return false;
        };
        self.cold.mtu.probe = None;
        self.cold.mtu.high = probe.size - 1;
        self.cache_search_result();
        lost <= probe.end.distance_from(probe.start)
    }

    /// Forgets the probe after a timeout or a retransmission. A later ACK then shows nothing about
    /// the size of the probe (RFC 4821 §7.6.3).
    pub(crate) fn forget_mtu_probe(&mut self) {
        self.cold.mtu.probe = None;
    }

    /// Returns the length of the first segment in flight, which may be the probe. Three duplicate
    /// ACKs report the loss of this segment.
    pub(crate) fn first_segment_len(&self) -> u32 {
        let first = |probe: &Probe| probe.start == self.hot.snd_una;
        let probe = self.cold.mtu.probe.filter(first);
        probe.map_or(u32::from(self.hot.mss), |probe| {
            probe.end.distance_from(probe.start)
        })
    }
}
