//! Packetization layer path MTU discovery (RFC 4821): sizes that the path carries are found without
//! its routers' help.
//!
//! A search keeps two sizes: the largest that is known to arrive, which all segments have, and the
//! largest that is worth a try. Halfway between them one segment is sent as a probe. It arrives, or
//! is found lost while what was sent after it arrives, which is no sign of congestion. By default a
//! search begins when several timeouts in a row say that nothing of the full size arrives.

use tidelane_flow::{CaState, Env, MtuProbing, TxFull, flags};
use tidelane_wire::{SeqNumber, TcpFlags};

use crate::{Slow, version::sizes};

/// Timeouts in a row, with which the path is taken for a black hole (Linux: `tcp_retries1`).
const TIMEOUTS: u8 = 4;
/// The first size of a search over IPv4, as an MSS (Linux: `tcp_base_mss`); RFC 4821 §7.2.
const BASE_MSS: u16 = 1024;
/// Sizes that are no further apart are not told apart (Linux: `tcp_probe_threshold`).
const NEAR: u16 = 8;
/// Segments that the window must have for a probe, and that must follow it: they tell of its loss.
const WINDOW_MIN: u32 = 11;
/// See above.
const FOLLOWERS: u32 = 4;
/// When larger sizes are tried again (RFC 1191 §6.3: ten minutes).
const SEARCH_AGAIN_MS: u32 = 600_000;

/// The probe in flight.
#[derive(Clone, Copy, Debug)]
struct Probe {
    start: SeqNumber,
    end: SeqNumber,
    /// Its size as an MSS: options included.
    size: u16,
}

/// The search for one connection; sizes are those of a segment without headers, options included.
#[derive(Clone, Copy, Debug, Default)]
pub struct MtuSearch {
    /// There is one. What is known to arrive is the connection's `path_mss`.
    on: bool,
    /// Not worth a try: larger than this.
    high: u16,
    probe: Option<Probe>,
}

impl MtuSearch {
    /// Whether a probe may be sent some time.
    pub(crate) fn is_open(&self, low: u16) -> bool {
        self.on && (self.probe.is_some() || self.high.saturating_sub(low) >= NEAR)
    }

    /// Whether a probe is in flight.
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// What another connection has found by a search is not searched for before its time.
    pub(crate) fn rest_at(&mut self, size: u16) {
        (self.on, self.high) = (true, size);
    }

    /// A router said that nothing larger than `size` arrives.
    pub(crate) fn bound(&mut self, size: u16) {
        self.high = self.high.min(size);
    }
}

impl<E: Env> Slow<'_, E> {
    /// The size with which a search begins: nearly every path has it.
    fn base_mss(&self) -> u16 {
        let sizes = sizes(self.hot.key.peer.addr);
        BASE_MSS.max(sizes.path_mtu_min - sizes.headers)
    }

    /// The largest size that peer and route allow.
    fn whole_mss(&self) -> u16 {
        let both = self.cold.rmss.min(self.cold.smss);
        both.min(self.config.segment_max)
    }

    /// The connection begins.
    pub(crate) fn begin_mtu_search(&mut self) {
        if self.config.mtu_probing == MtuProbing::Always {
            self.search_from(self.base_mss());
        }
    }

    fn search_from(&mut self, low: u16) {
        self.cold.mtu = MtuSearch {
            on: true,
            high: self.whole_mss(),
            probe: None,
        };
        if low < self.cold.path_mss {
            self.cold.path_mss = low;
            self.cold.refresh_mss(self.config, self.hot);
        }
    }

    /// The timer expired again (RFC 4821 §7.7): after some timeouts, the size is what does not
    /// arrive; and if not that, then the base size, on some old link.
    pub(crate) fn check_black_hole(&mut self) {
        let allowed = self.config.mtu_probing != MtuProbing::Off;
        if !allowed || self.cold.timeouts < TIMEOUTS || !self.hot.state.is_synchronized() {
            return;
        }
        let sizes = sizes(self.hot.key.peer.addr);
        let least = sizes.path_mtu_min - sizes.headers;
        let base = self.base_mss();
        let low = if self.cold.path_mss > base {
            base
        } else {
            least
        };
        if low >= self.cold.path_mss.min(self.cold.smss) {
            return;
        }
        self.counters.mtu_black_holes += 1;
        self.search_from(low);
        self.cold.path_deadline = Some(self.clock.ms.plus(SEARCH_AGAIN_MS));
    }

    /// Ten minutes later the path may be another one.
    pub(crate) fn search_again(&mut self) -> bool {
        if !self.cold.mtu.on {
            return false;
        }
        self.cold.mtu.high = self.whole_mss();
        self.cold.path_deadline = Some(self.clock.ms.plus(SEARCH_AGAIN_MS));
        true
    }

    /// Sends a probe if it is time for one (RFC 4821 §7.3, §7.4).
    pub(crate) fn send_mtu_probe(&mut self) -> Result<(), TxFull> {
        let (low, high) = (self.cold.path_mss, self.cold.mtu.high);
        if !self.cold.mtu.is_open(low) || self.cold.mtu.is_probing() || !self.is_calm() {
            return Ok(());
        }
        let size = low + (high - low) / 2;
        let options = low.saturating_sub(self.hot.mss);
        let len = u32::from(size - options);
        if !self.has_room_for_probe(len) {
            return Ok(());
        }
        self.record();
        self.note_sending();
        let (start, end) = (self.hot.snd_nxt, self.hot.snd_nxt.add(len));
        let mut out = self
            .hot
            .segment_out(self.id, &self.clock, start, TcpFlags::NONE, len);
        out.segment_size = len as u16;
        self.transmit(&out)?;
        self.hot.note_acknowledged(out.wnd);
        self.counters.out_segs += 1;
        self.counters.mtu_probes += 1;
        self.hot.snd_nxt = end;
        self.note_sent(start);
        self.note_out(len);
        if !self.hot.has(flags::RTO_ARMED) {
            self.arm_rto();
        }
        self.cold.mtu.probe = Some(Probe { start, end, size });
        Ok(())
    }

    /// Whether nothing is missing, and segments have the size that is known to arrive.
    fn is_calm(&self) -> bool {
        let board = self.cold.board.as_ref();
        self.cold.ca_state == CaState::Open
            && board.is_none_or(|board| board.sacked() == 0 && board.lost() == 0)
            && !self.hot.has(flags::PERSIST)
            && !self.cold.mss_bounded
            && self.cold.path_mss <= self.cold.smss
            && !self.is_held_back()
    }

    /// Whether what is to be sent, and both windows, hold a probe and what must follow it.
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

    /// SND.UNA has moved: a probe that arrived gives all segments its size (RFC 4821 §7.6.1).
    pub(crate) fn check_mtu_probe(&mut self) {
        let arrived = |probe: &Probe| probe.end.at_or_before(self.hot.snd_una);
        let Some(probe) = self.cold.mtu.probe.filter(arrived) else {
            return;
        };
        self.cold.mtu.probe = None;
        self.counters.mtu_raised += 1;
        self.cold.path_mss = probe.size;
        self.cold.refresh_mss(self.config, self.hot);
        self.share_found();
    }

    /// What a search has found is known to connections to come (RFC 4821 §5.2).
    fn share_found(&mut self) {
        let low = self.cold.path_mss;
        if self.cold.mtu.is_open(low) {
            return;
        }
        if low.saturating_add(NEAR) > self.whole_mss() {
            self.paths.forget(self.hot.key.peer.addr);
        } else {
            self.share_path(true);
        }
    }

    /// `lost` bytes were found lost. Whether that was the probe and nothing else: it is sent again
    /// in smaller segments, and the window stays (RFC 4821 §7.6.2).
    pub(crate) fn is_lost_probe(&mut self, lost: u32) -> bool {
        let first = |probe: &Probe| probe.start == self.hot.snd_una;
        let Some(probe) = self.cold.mtu.probe.filter(first) else {
            return false;
        };
        self.cold.mtu.probe = None;
        self.cold.mtu.high = probe.size - 1;
        self.share_found();
        lost <= probe.end.distance_from(probe.start)
    }

    /// A timeout says nothing about the probe (RFC 4821 §7.6.3).
    pub(crate) fn forget_mtu_probe(&mut self) {
        self.cold.mtu.probe = None;
    }

    /// Bytes that three duplicates say are lost: the first segment, which may be the probe.
    pub(crate) fn first_segment_len(&self) -> u32 {
        let first = |probe: &Probe| probe.start == self.hot.snd_una;
        let probe = self.cold.mtu.probe.filter(first);
        probe.map_or(u32::from(self.hot.mss), |probe| {
            probe.end.distance_from(probe.start)
        })
    }
}
