//! Handles ICMP errors and changes of the path MTU. An ICMP error quotes a segment, and is checked
//! against the flow (the connection) of this segment.

use tidelane_flow::{Clock, CloseCause, Driver, Event, IpChange, State};
use tidelane_time::Duration;
use tidelane_wire::{DropReason, IcmpError, IcmpErrorKind};

use crate::{Connection, Outcome, PathMtu, SlowPath, ip_sizes::ip_sizes, rmss::rmss};

/// Time in ms after which a lowered path MTU expires (RFC 1191 §6.3: ten minutes, at least five).
const PATH_MTU_AGE_MS: u32 = 600_000;
/// Plateaus: MTUs of common links, for ICMP errors without an MTU (RFC 1191 §7.1).
const PLATEAUS: [u16; 9] = [
    65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 552,
];

/// Returns the next lower plateau, the MTU to try after a packet of `mtu` bytes was too long.
/// Returns zero if there is no lower plateau.
fn plateau_below(mtu: u16) -> u16 {
    PLATEAUS
        .into_iter()
        .find(|plateau| *plateau < mtu)
        .unwrap_or(0)
}

impl<E: Driver> SlowPath<'_, E> {
    /// Handles an ICMP error that quotes this flow (RFC 9293 §3.9.2.2). The quoted sequence number
    /// must be outstanding (RFC 5927 §4.1); otherwise the error is forged or too late to matter.
    ///
    /// Fragmentation Needed lowers the path MTU. Any other error ends a connection in SYN-SENT. If
    /// the error shows that the peer is unreachable, the error also ends a passive open in
    /// SYN-RECEIVED. In all other cases the error is soft (RFC 9293 MUST-54, MUST-56): the
    /// application may read the error. If the connection then times out, the error becomes the
    /// cause. Against RFC 9293 SHLD-26, codes 2 to 4 of type 3 do not abort an established
    /// connection. Otherwise an attacker could end the connection by guessing 32 bits (RFC 5927
    /// §5.2).
    pub fn icmp_error(&mut self, error: &IcmpError) -> Outcome {
        // With Fast Open, SND.UNA is beyond an unacknowledged SYN,ACK.
        let oldest = match self.is_fast_open_pending() {
            true => self.hot.iss,
            false => self.hot.snd_una,
        };
        let flight = self.hot.snd_nxt.distance_from(oldest).max(1);
        if !error.seq.in_window(oldest, flight) {
            self.counters.drops[DropReason::IcmpOutOfWindow.index()] += 1;
            return Outcome::Keep;
        }
        self.counters.icmp_errors += 1;
        if let IcmpErrorKind::FragmentationNeeded { mtu } = error.kind {
            let sizes = ip_sizes(self.hot.key.peer.addr);
            match sizes.clamps_to_min || mtu >= sizes.path_mtu_min {
                true => self.lower_path_mtu(mtu),
                false => self.counters.drops[DropReason::BadIcmp.index()] += 1,
            }
            return Outcome::Keep;
        }
        let cause = cause_of(error.kind);
        match self.hot.state {
            State::SynSent => {
                self.counters.attempt_fails += 1;
                self.end(cause)
            }
            // Linux drops a half-open connection on the same errors (`tcp_req_err`).
            State::SynReceived if self.cold.listener.is_some() && is_unreachable(error.kind) => {
                self.counters.attempt_fails += 1;
                match self.is_half_open_passive() {
                    true => Outcome::Release,
                    false => self.end(cause),
                }
            }
            _ => {
                self.cold.soft_error = Some(cause);
                self.driver.event(self.id, Event::SoftError(cause));
                Outcome::Keep
            }
        }
    }

    /// Lowers the path MTU to `mtu`, or to the next lower plateau if `mtu` is zero. Then
    /// retransmits the data in flight in smaller segments (RFC 1191 §6.4, RFC 8201 §5.4).
    fn lower_path_mtu(&mut self, mtu: u16) {
        let sizes = ip_sizes(self.hot.key.peer.addr);
        // The peer's MSS is unknown in SYN-SENT.
        let of_peer = match self.hot.state {
            State::SynSent => u16::MAX,
            _ => self.cold.peer_mss,
        };
        let now = self.cold.path_mss.min(of_peer) + sizes.headers;
        let asked = if mtu == 0 { plateau_below(now) } else { mtu };
        let mtu = asked.max(sizes.path_mtu_min);
        if asked < mtu {
            // Even the smallest segment size does not fit this path, so let routers fragment the
            // packets (as in Linux).
            self.driver.set_ip(self.id, IpChange::MayFragment(true));
        }
        if mtu >= now {
            return;
        }
        self.counters.pmtu_lowered += 1;
        self.cold.path_mss = mtu - sizes.headers;
        self.cold.mtu.bound(mtu - sizes.headers);
        self.cold.path_deadline = Some(self.clock.ms.plus(PATH_MTU_AGE_MS));
        self.cold.refresh_mss(self.config, self.hot);
        if self.hot.state.is_synchronized() {
            self.cache_path_mtu(false);
            self.retransmit_flight();
        } else if self.hot.state == State::SynSent && self.hot.flight_size() > 1 {
            // The data made the SYN too long. The retransmission carries no data, and announces an
            // MSS that fits the path.
            self.cold.rmss = self.cold.rmss.min(self.cold.path_mss);
            self.cold.fast_open.syn_retransmitted = true;
            let _ = self.send_syn();
        }
    }

    /// Applies a new MTU of the flow's link, as in Linux (`tcp_sync_mss`). After a decrease, the
    /// flight is retransmitted in smaller segments. After an increase, segments grow up to the
    /// peer's MSS, unless the path has a lower limit.
    pub fn apply_link_mtu(&mut self, mtu: u32) {
        let link = rmss(self.config, self.hot.key.peer.addr, mtu, &self.cold.options);
        let before = std::mem::replace(&mut self.cold.rmss, link);
        if link < self.cold.path_mss {
            self.cold.path_mss = link;
            self.cold.mtu.bound(link);
            self.cold.refresh_mss(self.config, self.hot);
            if self.hot.state.is_synchronized() {
                self.retransmit_flight();
            }
        } else if self.cold.path_mss == before {
            self.cold.path_mss = link;
            self.cold.refresh_mss(self.config, self.hot);
        }
    }

    /// Stores the path MTU for later connections to this destination (RFC 1191 §6.2).
    pub(crate) fn cache_path_mtu(&mut self, found_by_probe: bool) {
        let path = PathMtu {
            mss: self.cold.path_mss,
            until: self.clock.now + Duration::from_millis(PATH_MTU_AGE_MS.into()),
            found_by_probe,
        };
        self.path_mtus.learn(self.hot.key.peer.addr, path);
    }

    /// Raises the path MTU again when the lowered value has expired (RFC 1191 §6.3). The next full
    /// segments show whether the path has changed. If the flow searches for its path MTU, only the
    /// upper bound of the search is raised.
    pub(crate) fn raise_path_mtu(&mut self) {
        if self.search_again() {
            return;
        }
        self.cold.path_mss = self.cold.rmss;
        self.cold.refresh_mss(self.config, self.hot);
        self.driver.set_ip(self.id, IpChange::MayFragment(false));
    }
}

impl Connection {
    /// Applies the path MTU that an earlier connection has found (RFC 1191 §6.2), until this value
    /// expires. Does nothing if this value is not below the present `path_mss`.
    pub fn apply_path_mtu(&mut self, clock: &Clock, path: &PathMtu) {
        if path.mss >= self.path_mss {
            return;
        }
        let left = (path.until - clock.now).as_millis();
        self.path_mss = path.mss;
        self.path_deadline = Some(clock.ms.plus(left.clamp(1, PATH_MTU_AGE_MS.into()) as u32));
        if path.found_by_probe {
            self.mtu.begin_at(path.mss);
        }
    }
}

/// Returns the cause that reports an ICMP error to the application (Linux: `icmp_err_convert`).
fn cause_of(kind: IcmpErrorKind) -> CloseCause {
    match kind {
        IcmpErrorKind::PortUnreachable => CloseCause::Refused,
        IcmpErrorKind::NetUnreachable => CloseCause::NetUnreachable,
        _ => CloseCause::HostUnreachable,
    }
}

/// Returns true if the error shows that the peer is unreachable, so that a passive open in
/// SYN-RECEIVED ends.
fn is_unreachable(kind: IcmpErrorKind) -> bool {
    matches!(
        kind,
        IcmpErrorKind::NetUnreachable
            | IcmpErrorKind::HostUnreachable
            | IcmpErrorKind::TimeExceeded
            | IcmpErrorKind::ParameterProblem
    )
}
