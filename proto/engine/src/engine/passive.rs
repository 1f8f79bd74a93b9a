//! Passive opens. A SYN for a listener creates a half-open flow (a connection in SYN-RECEIVED). If
//! the SYN queue is full, the engine answers the SYN by a SYN cookie, or drops the SYN if the
//! configuration turns SYN cookies off. The ACK that returns the cookie creates the flow.

use tidelane_flow::{
    Admission, Arrival, Clock, Driver, FlowId, FlowState, ListenerId, State, StateEvent,
};
use tidelane_slowpath::{PeerSyn, SlowPath, has_invalid_wscale};
use tidelane_time::Duration;
use tidelane_wire::{DropReason, Segment, TcpFlags};

use super::Engine;
use crate::{cookies, listeners::Listener};

/// Longest lifetime of a SYN cookie (compare TCP_SYNCOOKIE_VALID in Linux). A listener accepts
/// cookies until this time has passed since the listener most recently sent a cookie.
const COOKIE_LIFETIME: Duration = Duration::from_secs(128);

impl Engine {
    /// Handles a SYN for a listener (RFC 9293 §3.10.7.2). As in Linux, the engine drops the SYN if
    /// the accept queue is full, and the peer retransmits the SYN later. If the SYN queue is full,
    /// the engine answers the SYN by a SYN cookie, or drops the SYN if the configuration turns SYN
    /// cookies off. The driver (the program that runs the engine) can also demand a cookie or a
    /// drop ([`Driver::admit`]).
    pub(super) fn passive_open(
        &mut self,
        clock: Clock,
        arrival: &Arrival,
        segment: &Segment<'_>,
        id: ListenerId,
        driver: &mut impl Driver,
    ) {
        let Some(listener) = self.listeners.get(id).copied() else {
            return;
        };
        if !self.passes_filter(arrival, segment, Some(id), driver) {
            return;
        }
        self.counters.impossible_wscales += u64::from(has_invalid_wscale(segment));
        if !listener.has_accept_room() {
            self.counters.listen_overflows += 1;
            return self.drop_syn(DropReason::AcceptQueueFull);
        }
        let room = listener.has_syn_room() && self.half_open < self.config.half_open_max;
        let admission = match room {
            true => driver.admit(id, true),
            false => Admission::SynCookie,
        };
        match admission {
            Admission::Flow => {
                self.create_half_open(clock, arrival, segment, (id, &listener), driver)
            }
            Admission::SynCookie if self.config.syn_cookies => {
                self.send_cookie(clock, arrival, segment, (id, &listener), driver);
            }
            Admission::SynCookie => self.drop_syn(DropReason::SynQueueFull),
            Admission::Drop => self.drop_syn(DropReason::UserLimit),
        }
    }

    /// Returns true if the flow is in SYN-RECEIVED and the application does not have the flow yet.
    /// With Fast Open, an application may already have a flow in SYN-RECEIVED.
    pub(super) fn is_half_open(&self, id: FlowId) -> bool {
        let half_open = |flow: &FlowState| flow.state == State::SynReceived;
        self.table.get(id).is_some_and(half_open)
            && !self
                .connections
                .get(id.index())
                .and_then(Option::as_ref)
                .is_some_and(|cold| cold.fast_open.accepted_early)
    }

    /// Returns true if the accept queue of the flow's listener is full.
    pub(super) fn is_accept_queue_full(&self, id: FlowId) -> bool {
        self.connections
            .get(id.index())
            .and_then(Option::as_ref)
            .and_then(|cold| cold.listener)
            .and_then(|id| self.listeners.get(id))
            .is_some_and(|listener| !listener.has_accept_room())
    }

    /// Removes a flow of `listener` from the SYN queue. If `opened` is true, the flow enters the
    /// accept queue.
    pub(super) fn leave_syn_queue(&mut self, listener: Option<ListenerId>, opened: bool) {
        if listener.is_some() {
            self.half_open = self.half_open.saturating_sub(1);
        }
        if let Some(listener) = listener.and_then(|id| self.listeners.get_mut(id)) {
            listener.syn_queue = listener.syn_queue.saturating_sub(1);
            listener.accept_queue += u32::from(opened);
        }
    }

    /// Counts a dropped SYN, or a dropped ACK that returns a SYN cookie.
    pub(super) fn drop_syn(&mut self, reason: DropReason) {
        self.counters.listen_drops += 1;
        self.counters.drops[reason.index()] += 1;
    }

    /// Creates a half-open flow for a SYN, and sends the SYN,ACK.
    fn create_half_open(
        &mut self,
        clock: Clock,
        arrival: &Arrival,
        segment: &Segment<'_>,
        listener: (ListenerId, &Listener),
        driver: &mut impl Driver,
    ) {
        let verdict = self.check_fast_open(clock.now, &arrival.key, segment, listener.0);
        let route = driver.route(&arrival.key, arrival.link);
        let Some(id) = self.create_flow(clock, arrival.key, route, listener.1.options) else {
            return self.drop_syn(DropReason::FlowTableFull);
        };
        self.report_new(id, Some(listener.0), driver);
        let syn = PeerSyn::of(segment, arrival.ecn);
        self.apply_syn(clock, id, listener.0, &syn, driver);
        if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
            cold.fast_open.option = verdict.option;
        }
        if verdict.accept {
            self.accept_fast_open(clock, id, listener.0, segment, driver);
        }
        self.send_first_syn(clock, id, driver);
    }

    /// Applies the peer's SYN to a new half-open flow.
    fn apply_syn(
        &mut self,
        clock: Clock,
        id: FlowId,
        listener: ListenerId,
        syn: &PeerSyn,
        driver: &mut impl Driver,
    ) {
        let Some(slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        slow.hot.state = State::Closed.next(StateEvent::PassiveSyn);
        slow.cold.listener = Some(listener);
        slow.cold.apply_syn(slow.config, slow.hot, syn);
        self.half_open += 1;
        if let Some(entry) = self.listeners.get_mut(listener) {
            entry.syn_queue += 1;
        }
    }

    /// Answers a SYN by a SYN,ACK that encodes the connection's state (RFC 4987 §3.6).
    fn send_cookie(
        &mut self,
        clock: Clock,
        arrival: &Arrival,
        segment: &Segment<'_>,
        listener: (ListenerId, &Listener),
        driver: &mut impl Driver,
    ) {
        let mtu = driver.route(&arrival.key, arrival.link).mtu;
        let socket = (&listener.1.options, mtu);
        let out = cookies::reply(&self.secret, &self.config, &clock, arrival, segment, socket);
        self.counters.syncookies_sent += 1;
        if let Some(entry) = self.listeners.get_mut(listener.0) {
            entry.cookies_until = clock.now + COOKIE_LIFETIME;
        }
        // If no transmit frame is free, the SYN,ACK is dropped. The peer retransmits its SYN.
        let _ = driver.transmit(&out);
    }

    /// Handles an ACK that may return a SYN cookie. If the cookie is valid, creates the flow and
    /// passes the segment to the flow, unless the driver forbids the connection or there is no
    /// room. Returns true if the cookie is valid.
    pub(super) fn accept_cookie(
        &mut self,
        clock: Clock,
        arrival: &Arrival,
        segment: &Segment<'_>,
        driver: &mut impl Driver,
    ) -> bool {
        let excluded = TcpFlags::SYN | TcpFlags::RST;
        if !segment.flags.contains(TcpFlags::ACK) || segment.flags.intersects(excluded) {
            return false;
        }
        let Some(id) = self.listeners.find_for(&arrival.key) else {
            return false;
        };
        let Some(listener) = self.listeners.get(id).copied() else {
            return false;
        };
        if clock.now >= listener.cookies_until {
            return false;
        }
        let (irs, cookie) = (segment.seq.sub(1), segment.ack.sub(1));
        let decoded = cookies::check(&self.secret, &arrival.key, irs, cookie, clock.now);
        let Some(peer_options) = decoded else {
            self.counters.syncookies_failed += 1;
            return false;
        };
        if !self.passes_filter(arrival, segment, Some(id), driver) {
            return true;
        }
        if !listener.has_accept_room() {
            // The ACK is dropped, as in Linux. The peer's first data segment returns the cookie a
            // second time.
            self.counters.listen_overflows += 1;
            self.drop_syn(DropReason::AcceptQueueFull);
            return true;
        }
        if driver.admit(id, false) != Admission::Flow {
            self.drop_syn(DropReason::UserLimit);
            return true;
        }
        let route = driver.route(&arrival.key, arrival.link);
        let made = self.create_flow_with_iss(clock, arrival.key, route, listener.options, cookie);
        let Some(flow) = made else {
            self.drop_syn(DropReason::FlowTableFull);
            return true;
        };
        self.counters.syncookies_recv += 1;
        self.report_new(flow, Some(id), driver);
        let syn = cookies::peer_syn(&peer_options, segment);
        self.apply_syn(clock, flow, id, &syn, driver);
        if let Some(mut slow) = slow_path!(self, flow, clock, driver) {
            cookies::resume(slow.hot, &clock, segment);
            slow.arm_rto();
        }
        self.slow_receive(flow, arrival.ecn, segment, driver);
        true
    }
}
