//! The times at which a client starts requests.

use std::time::{Duration, Instant};

/// Longest sleep before the client reads the clock again.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Granularity of the time-out of `epoll_wait`. A client that waits for the next request wakes at
/// least this much before the request is due, and then polls.
const EARLY: Duration = Duration::from_millis(1);

/// Decides when a client starts its requests, in a closed or an open loop.
#[derive(Debug)]
pub enum Schedule {
    /// A connection sends its next request as soon as an earlier request is answered.
    Closed,
    /// Requests are due at fixed intervals, whether or not earlier requests are answered.
    Open {
        /// Time at which the first request is due.
        start: Instant,
        /// Requests per second.
        rate: f64,
        /// Number of requests that the client has started.
        started: u64,
    },
}

impl Schedule {
    /// If `rate` is above 0, returns an open loop of `rate` requests per second from `start` on.
    /// Otherwise returns a closed loop.
    pub fn new(rate: f64, start: Instant) -> Self {
        if rate > 0.0 {
            let started = 0;
            return Self::Open {
                start,
                rate,
                started,
            };
        }
        Self::Closed
    }

    /// Returns true if the requests are due at fixed intervals.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// Takes the next request, and returns the time from which the request's latency counts. In an
    /// open loop, this time is the time at which the request was due, so that the latency includes
    /// the wait for a free connection. Returns `None` if the request is not due at `now`. In a
    /// closed loop, a request is always due.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Self::Closed => Some(now),
            Self::Open {
                start,
                rate,
                started,
            } => {
                let due = due(*start, *rate, *started);
                if due > now {
                    return None;
                }
                *started += 1;
                Some(due)
            }
        }
    }

    /// Returns the number of requests that are due at `now` but not started.
    pub fn overdue(&self, now: Instant) -> u64 {
        match self {
            Self::Closed => 0,
            Self::Open {
                start,
                rate,
                started,
            } => {
                let elapsed = now.saturating_duration_since(*start).as_secs_f64();
                ((elapsed * rate) as u64 + 1).saturating_sub(*started)
            }
        }
    }

    /// Returns the longest time that the client may sleep if no answer arrives meanwhile. `free` is
    /// true if a connection is free. If no connection is free, the client cannot start the next
    /// request, and the time does not depend on that request.
    pub fn sleep(&self, now: Instant, free: bool) -> Duration {
        match self {
            Self::Open {
                start,
                rate,
                started,
            } if free => {
                let next = due(*start, *rate, *started).saturating_duration_since(now);
                next.saturating_sub(EARLY).min(SLEEP_MAX)
            }
            _ => SLEEP_MAX,
        }
    }
}

/// Returns the time at which request `number` is due.
fn due(start: Instant, rate: f64, number: u64) -> Instant {
    start + Duration::from_secs_f64(number as f64 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_always_has_a_request() {
        let now = Instant::now();
        let mut schedule = Schedule::new(0.0, now);
        for _ in 0..10 {
            assert_eq!(schedule.take(now), Some(now));
        }
        assert_eq!(schedule.overdue(now), 0);
        assert_eq!(schedule.sleep(now, true), SLEEP_MAX);
    }

    #[test]
    fn an_open_loop_keeps_its_rate_and_counts_latency_from_the_due_time() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut schedule = Schedule::new(1000.0, start);
        assert_eq!(schedule.take(start), Some(start));
        assert_eq!(schedule.take(start), None);
        // No connection is free for 5.5 ms. Five requests become due, and keep their due times.
        let late = start + Duration::from_micros(5_500);
        assert_eq!(schedule.overdue(late), 5);
        for number in 1..=5 {
            assert_eq!(schedule.take(late), Some(start + ms(number)));
        }
        assert_eq!(schedule.take(late), None);
        assert_eq!(schedule.overdue(late), 0);
    }

    #[test]
    fn an_open_loop_sleeps_only_if_no_request_is_near() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut schedule = Schedule::new(100.0, start);
        assert_eq!(schedule.sleep(start, true), Duration::ZERO, "due now");
        assert!(schedule.take(start).is_some());
        assert_eq!(schedule.sleep(start, true), ms(9));
        assert_eq!(
            schedule.sleep(start + Duration::from_micros(9_500), true),
            ms(0)
        );
        assert_eq!(
            schedule.sleep(start + ms(10), false),
            SLEEP_MAX,
            "no connection is free"
        );
    }
}
