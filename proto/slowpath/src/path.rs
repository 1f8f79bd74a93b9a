//! What the path says: ICMP errors, checked against the live flow, and the path's MTU.

use tidelane_flow::{Clock, CloseCause, Env, Event, State};
use tidelane_time::Duration;
use tidelane_wire::{DropReason, IcmpError, IcmpErrorKind};

use crate::{Connection, Fate, Path, Slow, open::rmss, version::sizes};

/// When a lowered path MTU is forgotten: RFC 1191 §6.3 has ten minutes, and never less than five.
const PATH_MTU_AGE_MS: u32 = 600_000;
/// MTUs of common links, for routers that do not tell theirs (RFC 1191 §7.1).
const PLATEAUS: [u16; 9] = [
    65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 552,
];

/// The MTU to try when a packet of `mtu` bytes was too long.
fn plateau_below(mtu: u16) -> u16 {
    PLATEAUS
        .into_iter()
        .find(|plateau| *plateau < mtu)
        .unwrap_or(0)
}

impl<E: Env> Slow<'_, E> {
    /// An ICMP error that quotes this flow (RFC 9293 §3.9.2.2). The quoted sequence number must be
    /// outstanding (RFC 5927 §4.1): others are forged, or too late to matter.
    ///
    /// Before the connection is established every error is hard, after that every one is soft
    /// (RFC 9293 MUST-54, MUST-56): the program may learn of it, and what
    /// it says is given as the cause if the flow then times out. RFC 9293 SHLD-26 would abort on
    /// codes 2 to 4, which lets anyone end connections who can guess 32 bits (RFC 5927 §5.2).
    pub fn icmp_error(&mut self, error: &IcmpError) -> Fate {
        // SYN,ACK of a flow that the program already has is out, too.
        let oldest = match self.is_pending() {
            true => self.hot.iss,
            false => self.hot.snd_una,
        };
        let flight = self.hot.snd_nxt.distance_from(oldest).max(1);
        if !error.seq.in_window(oldest, flight) {
            self.counters.drops[DropReason::IcmpOutOfWindow.index()] += 1;
            return Fate::Keep;
        }
        self.counters.icmp_errors += 1;
        if let IcmpErrorKind::FragmentationNeeded { mtu } = error.kind {
            let sizes = sizes(self.hot.key.peer.addr);
            match sizes.less_is_least || mtu >= sizes.path_mtu_min {
                true => self.shrink_path(mtu),
                false => self.counters.drops[DropReason::BadIcmp.index()] += 1,
            }
            return Fate::Keep;
        }
        let cause = cause_of(error.kind);
        match self.hot.state {
            State::SynSent => {
                self.counters.attempt_fails += 1;
                self.end(cause)
            }
            // Linux drops the request on the same kinds (`tcp_req_err`).
            State::SynReceived if self.cold.listener.is_some() && is_unreachable(error.kind) => {
                self.counters.attempt_fails += 1;
                match self.is_unseen() {
                    true => Fate::Release,
                    false => self.end(cause),
                }
            }
            _ => {
                self.cold.soft_error = Some(cause);
                self.env.event(self.id, Event::SoftError(cause));
                Fate::Keep
            }
        }
    }

    /// RFC 1191 §6.4, RFC 8201 §5.4: segments get smaller, and what is in flight is sent again at
    /// once.
    fn shrink_path(&mut self, mtu: u16) {
        let sizes = sizes(self.hot.key.peer.addr);
        // In SYN-SENT the peer has said nothing yet.
        let of_peer = match self.hot.state {
            State::SynSent => u16::MAX,
            _ => self.cold.smss,
        };
        let now = self.cold.path_mss.min(of_peer) + sizes.headers;
        let asked = if mtu == 0 { plateau_below(now) } else { mtu };
        let mtu = asked.max(sizes.path_mtu_min);
        if asked < mtu {
            // No segment fits that path as it is: routers may cut them (as in Linux).
            self.env.fragments(self.id, true);
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
            self.share_path(false);
            self.resend_all();
        } else if self.hot.state == State::SynSent && self.hot.flight_size() > 1 {
            // It was the text that made SYN too long: again without, and with what fits.
            self.cold.rmss = self.cold.rmss.min(self.cold.path_mss);
            self.cold.fast_open.repeated = true;
            let _ = self.send_syn();
        }
    }

    /// The MTU of the flow's link is `mtu` bytes from now on. Segments follow, as in Linux
    /// (`tcp_sync_mss`): they get smaller at once, with the flight sent again, and larger as far as
    /// the peer takes them, unless the path has shown a limit of its own.
    pub fn link_mtu(&mut self, mtu: u32) {
        let link = rmss(self.config, self.hot.key.peer.addr, mtu, &self.cold.options);
        let before = std::mem::replace(&mut self.cold.rmss, link);
        if link < self.cold.path_mss {
            self.cold.path_mss = link;
            self.cold.mtu.bound(link);
            self.cold.refresh_mss(self.config, self.hot);
            if self.hot.state.is_synchronized() {
                self.resend_all();
            }
        } else if self.cold.path_mss == before {
            self.cold.path_mss = link;
            self.cold.refresh_mss(self.config, self.hot);
        }
    }

    /// Connections to come begin with the size that this one has found (RFC 1191 §6.2).
    pub(crate) fn share_path(&mut self, silent: bool) {
        let path = Path {
            mss: self.cold.path_mss,
            until: self.clock.now + Duration::from_millis(PATH_MTU_AGE_MS.into()),
            silent,
        };
        self.paths.learn(self.hot.key.peer.addr, path);
    }

    /// RFC 1191 §6.3: the path may have changed; the next full segment finds out.
    pub(crate) fn widen_path(&mut self) {
        if self.search_again() {
            return;
        }
        self.cold.path_mss = self.cold.rmss;
        self.cold.refresh_mss(self.config, self.hot);
        self.env.fragments(self.id, false);
    }
}

impl Connection {
    /// Takes over what is known of its path (RFC 1191 §6.2), until that is too old.
    pub fn know_path(&mut self, clock: &Clock, path: &Path) {
        if path.mss >= self.path_mss {
            return;
        }
        let left = (path.until - clock.now).as_millis();
        self.path_mss = path.mss;
        self.path_deadline = Some(clock.ms.plus(left.clamp(1, PATH_MTU_AGE_MS.into()) as u32));
        if path.silent {
            self.mtu.rest_at(path.mss);
        }
    }
}

/// What the program is told (as Linux' `icmp_err_convert`, as far as there is a cause for it).
fn cause_of(kind: IcmpErrorKind) -> CloseCause {
    match kind {
        IcmpErrorKind::PortUnreachable => CloseCause::Refused,
        IcmpErrorKind::NetUnreachable => CloseCause::NetUnreachable,
        _ => CloseCause::HostUnreachable,
    }
}

fn is_unreachable(kind: IcmpErrorKind) -> bool {
    matches!(
        kind,
        IcmpErrorKind::NetUnreachable
            | IcmpErrorKind::HostUnreachable
            | IcmpErrorKind::TimeExceeded
            | IcmpErrorKind::ParameterProblem
    )
}
