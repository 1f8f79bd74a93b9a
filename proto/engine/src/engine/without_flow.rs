//! Segments without a flow: segments for a connection in TIME-WAIT, segments for a listener, and
//! segments that match neither. A flow is the full state of a connection. For a connection in
//! TIME-WAIT, the engine answers from an entry of the TIME-WAIT table.

use tidelane_flow::{Arrival, Clock, Driver, IpFields, ListenerId, Verdict};
use tidelane_slowpath::{ANSWER_INTERVAL_MS, is_rate_limited, reset_reply};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{DropReason, Segment, TcpFlags, TcpOptions};

use super::{Engine, without_offset};
use crate::time_wait::Entry;

impl Engine {
    /// Handles a segment without a flow: answers the segment on behalf of a connection in
    /// TIME-WAIT, opens a connection, answers the segment by a RST, or drops the segment.
    #[inline(never)]
    pub(super) fn receive_without_flow(
        &mut self,
        arrival: &Arrival,
        segment: &Segment<'_>,
        driver: &mut impl Driver,
    ) {
        self.counters.in_segs += 1;
        let clock = self.clock;
        self.renew_limits(clock.now);
        if !self.passes_filter(arrival, segment, None, driver) {
            return;
        }
        let control = TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN;
        let pure_syn = segment.flags.0 & control.0 == TcpFlags::SYN.0;
        let converted;
        let segment = if pure_syn {
            // The TSecr of a SYN has no meaning (RFC 7323 §3.2), so do not compute the offset.
            segment
        } else {
            converted = without_offset(segment, || self.timestamp_offset(&arrival.key));
            &converted
        };
        if let Some(entry) = self.time_wait.find(&arrival.key).copied()
            && !(pure_syn && entry.may_be_reused(segment))
        {
            self.answer_in_time_wait(clock, &entry, segment, driver);
            return;
        }
        if pure_syn {
            match self.listeners.find_for(&arrival.key) {
                Some(listener) => self.passive_open(clock, arrival, segment, listener, driver),
                None => self.refuse(arrival, segment, DropReason::NoListener, driver),
            }
        } else if !segment.flags.contains(TcpFlags::ACK)
            && self.listeners.find(&arrival.key.local).is_some()
        {
            // RFC 9293 §3.10.7.2: LISTEN drops all other segments without ACK, and sends no answer.
            self.counters.drops[DropReason::NoFlow.index()] += 1;
        } else if !self.accept_cookie(clock, arrival, segment, driver) {
            self.refuse(arrival, segment, DropReason::NoFlow, driver);
        }
    }

    /// Answers a segment for a connection in TIME-WAIT by an ACK. The connection's last ACK and a
    /// RST get no answer. A retransmitted FIN restarts the 2 MSL timer (RFC 9293 §3.10.7.4). A SYN
    /// does not restart the timer, because a client that retransmits its SYN would prolong
    /// TIME-WAIT. The client of this SYN answers our ACK by a RST at RCV.NXT, which ends TIME-WAIT,
    /// as in Linux. A RST at any other sequence number is ignored (RFC 1337).
    fn answer_in_time_wait(
        &mut self,
        clock: Clock,
        entry: &Entry,
        segment: &Segment<'_>,
        driver: &mut impl Driver,
    ) {
        if segment.flags.contains(TcpFlags::RST) {
            if segment.seq == entry.rcv_nxt {
                self.time_wait.remove(&entry.key);
            }
            return;
        }
        // An empty segment at RCV.NXT is the connection's last ACK, which needs no answer.
        let is_last_ack = segment.len() == 0 && segment.seq == entry.rcv_nxt;
        if is_last_ack || !self.may_answer_in_time_wait(clock.now, entry, segment) {
            return;
        }
        // The answer has the DiffServ field of the connection and the default TTL, as in Linux.
        let ip = IpFields {
            traffic_class: entry.traffic_class,
            ..self.config.ip.to(entry.key.peer.addr)
        };
        let Some(mut out) = reset_reply(segment, entry.key, entry.link, ip) else {
            return;
        };
        out.seq = entry.snd_nxt;
        out.ack = entry.rcv_nxt;
        out.flags = TcpFlags::ACK;
        if let Some(recent) = entry.ts_recent {
            let tsval = clock.ms.0.wrapping_add(self.timestamp_offset(&entry.key));
            out.options = TcpOptions::timestamps(tsval, recent);
        }
        let _ = driver.transmit(&out);
        let is_fin = segment.flags.contains(TcpFlags::FIN);
        if is_fin && !segment.flags.contains(TcpFlags::SYN) {
            self.time_wait.insert(Entry {
                until: clock.now + self.config.msl * 2u64,
                ..*entry
            });
        }
    }

    /// Returns true if a segment in TIME-WAIT may be answered. The rate limit applies only to
    /// segments for which [`is_rate_limited`] returns true.
    fn may_answer_in_time_wait(
        &mut self,
        now: Instant,
        entry: &Entry,
        segment: &Segment<'_>,
    ) -> bool {
        if !is_rate_limited(segment) {
            return true;
        }
        let interval = Duration::from_millis(u64::from(ANSWER_INTERVAL_MS));
        if entry.answered_at.is_some_and(|at| now - at < interval) {
            self.counters.drops[DropReason::RateLimited.index()] += 1;
            return false;
        }
        self.time_wait.note_answer(&entry.key, now);
        true
    }

    /// Returns true if the driver (the program that runs the engine) accepts a segment without a
    /// flow ([`Driver::filter`]). Otherwise drops the segment or answers it by a RST, as the
    /// driver's [`Verdict`] demands.
    pub(super) fn passes_filter(
        &mut self,
        arrival: &Arrival,
        segment: &Segment<'_>,
        listener: Option<ListenerId>,
        driver: &mut impl Driver,
    ) -> bool {
        match driver.filter(&arrival.key, arrival.link, listener) {
            Verdict::Accept => return true,
            Verdict::Refuse => self.refuse(arrival, segment, DropReason::RuleDenied, driver),
            Verdict::Drop if listener.is_some() => self.drop_syn(DropReason::RuleDenied),
            // The driver has already counted the segment as dropped.
            Verdict::Drop => {}
        }
        false
    }
}
