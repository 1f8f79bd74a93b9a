//! Delivery rate samples (draft-cheng-iccrg-delivery-rate-estimation) for rate-based congestion
//! control such as BBR.
//!
//! Each transmission records the number of bytes delivered so far. When its ACK arrives, the rate
//! is the number of bytes delivered since the transmission, divided by the longer of two intervals:
//! the send interval and the ACK interval. Neither send bursts nor ACK compression can therefore
//! inflate the rate.

use std::collections::VecDeque;

use tidelane_cc::{CongestionControl, Interval, RateSample};
use tidelane_flow::Driver;
use tidelane_time::Duration;

use crate::SlowPath;

/// Largest number of recorded transmissions.
const TRANSMISSIONS_MAX: usize = 4096;

/// State of the connection when a segment was sent: the per-packet state P of the draft. Segments
/// sent in the same microsecond share one record. Times are in microseconds modulo 2^32.
#[derive(Clone, Copy, Debug)]
struct Transmission {
    /// P.sent_time: time of the transmission.
    sent_us: u32,
    /// P.delivered: C.delivered at the transmission, in bytes.
    delivered: u64,
    /// P.delivered_time: C.delivered_time at the transmission, the start of the ACK interval.
    delivered_us: u32,
    /// P.first_sent_time: C.first_sent_time at the transmission, the start of the send interval.
    first_sent_us: u32,
    /// P.is_app_limited: true if the flow was app-limited at the transmission.
    app_limited: bool,
}

/// Sampler of a connection's delivery rate, with the per-connection state C of the draft. Times are
/// in microseconds modulo 2^32.
#[derive(Debug, Default)]
pub struct Sampler {
    /// C.delivered: bytes delivered so far.
    delivered: u64,
    /// C.delivered_time: time of the last delivery, or of a later transmission that took place
    /// while nothing was in flight.
    delivered_us: u32,
    /// C.first_sent_time: transmission time of the segment that gave the last sample, or of a later
    /// segment that was sent while nothing was in flight.
    first_sent_us: u32,
    /// C.app_limited: value of `delivered` up to which samples are app-limited; zero if the flow is
    /// not app-limited.
    app_limited: u64,
    /// Recorded transmissions, the oldest first.
    transmissions: VecDeque<Transmission>,
    /// Bytes marked lost since the last sample.
    lost: u32,
    /// Sample whose rate `tcp_info` shows.
    shown: Option<Interval>,
}

impl Sampler {
    /// Records a transmission. `idle` is true if nothing is in flight (§3.2).
    fn on_send(&mut self, now_us: u32, idle: bool) {
        if idle {
            self.first_sent_us = now_us;
            self.delivered_us = now_us;
        }
        if self
            .transmissions
            .back()
            .is_some_and(|s| s.sent_us == now_us)
        {
            return;
        }
        if self.transmissions.len() >= TRANSMISSIONS_MAX {
            self.transmissions.pop_front();
        }
        self.transmissions.push_back(Transmission {
            sent_us: now_us,
            delivered: self.delivered,
            delivered_us: self.delivered_us,
            first_sent_us: self.first_sent_us,
            app_limited: self.app_limited != 0,
        });
    }

    /// Counts `bytes` that an ACK newly delivered, and returns the sample of that ACK (§3.3).
    /// `sent_us` is the most recent transmission time of these bytes. Returns `None` if `sent_us`
    /// is `None`, or if there is no record of a transmission at `sent_us`.
    fn on_delivered(&mut self, now_us: u32, bytes: u32, sent_us: Option<u32>) -> Option<Interval> {
        self.delivered += u64::from(bytes);
        self.delivered_us = now_us;
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let transmission = self.take_transmission(sent_us?)?;
        self.first_sent_us = transmission.sent_us;
        let to_send = transmission
            .sent_us
            .wrapping_sub(transmission.first_sent_us);
        let to_ack = now_us.wrapping_sub(transmission.delivered_us);
        Some(Interval {
            bytes: self.delivered - transmission.delivered,
            span: Duration::from_micros(u64::from(to_send.max(to_ack))),
            prior_delivered: transmission.delivered,
            app_limited: transmission.app_limited,
        })
    }

    /// Stores `sample` for `tcp_info`. As in Linux, an app-limited sample replaces the stored
    /// sample only if it is not slower.
    fn record_for_tcp_info(&mut self, sample: Interval) {
        let faster = |last: &Interval| {
            let (new, old) = (u128::from(sample.bytes), u128::from(last.bytes));
            new * u128::from(last.span.0) >= old * u128::from(sample.span.0)
        };
        if !sample.app_limited || self.shown.as_ref().is_none_or(faster) {
            self.shown = Some(sample);
        }
    }

    /// Returns the delivery rate in bytes per second, and whether the application limited this
    /// rate. Returns zero and true before the first sample.
    pub fn rate(&self) -> (u64, bool) {
        let Some(shown) = self.shown else {
            return (0, true);
        };
        let us = shown.span.as_micros().max(1);
        (
            shown.bytes.saturating_mul(1_000_000) / us,
            shown.app_limited,
        )
    }

    /// Returns the record of the transmission at `sent_us`, or `None` if there is no record. Drops
    /// the records of earlier transmissions.
    fn take_transmission(&mut self, sent_us: u32) -> Option<Transmission> {
        let before = |s: &Transmission| (s.sent_us.wrapping_sub(sent_us) as i32) < 0;
        while self.transmissions.front().is_some_and(before) {
            self.transmissions.pop_front();
        }
        let first = self.transmissions.front()?;
        (first.sent_us == sent_us).then_some(*first)
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if the congestion control uses delivery rates.
    fn uses_delivery_rate(&self) -> bool {
        self.cold.controller.uses_delivery_rate()
    }

    /// Records a transmission that is about to take place.
    pub(crate) fn prepare_rate_sample(&mut self) {
        if !self.uses_delivery_rate() {
            return;
        }
        let (now, idle) = (self.clock.us(), self.pipe() == 0);
        let sampler = self.cold.pacing.sampler.get_or_insert_default();
        let app_limited = sampler.app_limited != 0;
        sampler.on_send(now, idle);
        if idle {
            let now = self.clock.now;
            self.cold.controller.on_transmit_start(now, app_limited);
        }
    }

    /// Marks the flow as app-limited if cwnd has room, and no data waits to be sent or
    /// retransmitted (§3.4).
    pub(crate) fn note_app_limit(&mut self) {
        if !self.uses_delivery_rate() {
            return;
        }
        let nothing = !self.hot.tx_end.after(self.hot.snd_nxt);
        let lost = self
            .cold
            .scoreboard
            .as_ref()
            .map_or(0, |scoreboard| scoreboard.lost());
        let pipe = self.pipe();
        if nothing && lost == 0 && pipe < self.hot.cwnd {
            let sampler = self.cold.pacing.sampler.get_or_insert_default();
            sampler.app_limited = (sampler.delivered + u64::from(pipe)).max(1);
        }
    }

    /// Counts `bytes` that were marked lost.
    pub(crate) fn note_lost(&mut self, bytes: u32) {
        if let Some(sampler) = &mut self.cold.pacing.sampler {
            sampler.lost = sampler.lost.saturating_add(bytes);
        }
    }

    /// Gives the congestion control the rate sample of the current ACK.
    pub(crate) fn report_rate_sample(&mut self) {
        if !self.uses_delivery_rate() {
            return;
        }
        let delivery = self.cold.delivered;
        let (now, flight, srtt) = (self.clock, self.pipe(), self.srtt());
        let rtt_min = self.cold.rtt_min.us();
        let sampler = self.cold.pacing.sampler.get_or_insert_default();
        let lost = std::mem::take(&mut sampler.lost);
        if delivery.bytes == 0 && lost == 0 {
            return;
        }
        let interval = sampler.on_delivered(now.us(), delivery.bytes, delivery.sent_us);
        // An interval shorter than the minimum RTT gives no valid sample (§3.3).
        let least = Duration::from_micros(u64::from(if rtt_min == u32::MAX { 1 } else { rtt_min }));
        let interval = interval.filter(|interval| interval.span >= least);
        if let Some(interval) = interval {
            sampler.record_for_tcp_info(interval);
        }
        let sample = RateSample {
            delivered: sampler.delivered,
            newly_delivered: delivery.bytes,
            lost,
            prior_flight: flight.saturating_add(delivery.bytes).saturating_add(lost),
            flight,
            rtt: delivery.rtt_us.map(|us| Duration::from_micros(us.into())),
            srtt,
            interval,
        };
        self.cold.controller.on_delivery(now.now, &sample);
        self.hot.cwnd = self.cold.controller.cwnd();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten segments leave in one burst. Their ACKs arrive 1 ms apart after a round trip of 20 ms.
    /// The rate follows the ACK interval, not the burst.
    #[test]
    fn a_burst_is_measured_by_its_acknowledgments() {
        let mut sampler = Sampler::default();
        sampler.on_send(1_000, true);
        let mut rates = Vec::new();
        for n in 0..10 {
            let at = 21_000 + n * 1_000;
            let interval = sampler.on_delivered(at, 1_000, Some(1_000));
            sampler.on_send(at, false);
            if let Some(i) = interval {
                rates.push(i.bytes * 1_000_000 / i.span.as_micros());
            }
        }
        // The last sample has ten segments in 29 ms: an RTT of 20 ms and nine ACK intervals.
        assert_eq!(rates.last().copied(), Some(10_000 * 1_000 / 29));
        // The first sample of the second round has ten segments in one RTT of 20 ms.
        let interval = sampler.on_delivered(41_000, 1_000, Some(21_000));
        let interval = interval.map(|i| (i.bytes, i.span.as_millis()));
        assert_eq!(interval, Some((10_000, 20)));
    }

    #[test]
    fn an_idle_time_makes_samples_app_limited() {
        let mut sampler = Sampler::default();
        sampler.on_send(0, true);
        sampler.app_limited = 1_000;
        sampler.on_send(10, false);
        let first = sampler.on_delivered(100, 500, Some(0));
        assert!(first.is_some_and(|i| !i.app_limited));
        let second = sampler.on_delivered(110, 600, Some(10));
        assert!(second.is_some_and(|i| i.app_limited));
        assert_eq!(
            sampler.app_limited, 0,
            "the app-limited period has not ended"
        );
    }

    #[test]
    fn the_shown_rate_is_that_of_the_path() {
        let mut sampler = Sampler::default();
        assert_eq!(sampler.rate(), (0, true));
        let sample = |bytes, ms, app_limited| Interval {
            bytes,
            span: Duration::from_millis(ms),
            prior_delivered: 0,
            app_limited,
        };
        sampler.record_for_tcp_info(sample(1_000, 10, false));
        assert_eq!(sampler.rate(), (100_000, false));
        // An application that sends less does not hide the rate of the path.
        sampler.record_for_tcp_info(sample(500, 10, true));
        assert_eq!(sampler.rate(), (100_000, false));
        sampler.record_for_tcp_info(sample(3_000, 20, true));
        assert_eq!(sampler.rate(), (150_000, true));
        sampler.record_for_tcp_info(sample(200, 10, false));
        assert_eq!(sampler.rate(), (20_000, false));
    }

    #[test]
    fn times_wrap() {
        let mut sampler = Sampler::default();
        sampler.on_send(u32::MAX - 10, true);
        sampler.on_send(5, false);
        let interval = sampler.on_delivered(989, 100, Some(5));
        assert_eq!(interval.map(|i| i.span.as_micros()), Some(1_000));
    }
}
