//! An open mux port: its packet rings, counters and place in the queues of [`Ports`](crate::Ports).
//! The mux shares one NIC between TCP/IP stacks, and a mux port is the pair of packet rings between
//! the mux and a program that has its own stack. The mux serves the mux ports in *turns*, each of
//! which is one burst of frames from one mux port.

use tidelane_time::Instant;

use crate::{
    egress::copy_to,
    port_counters::PortCounters,
    port_end::PortEnd,
    rate::{Amount, RateLimiter, SendRate, WAIT_MIN},
};

/// Error of [`Ports::open`](crate::Ports::open): the largest number of mux ports is already open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortsFull;

/// An open mux port.
pub struct Port<P> {
    /// The mux's end of the mux port's packet rings.
    pub io: P,
    /// Counters of the mux port.
    pub counters: PortCounters,
    /// True if the mux gave the mux port frames since the last flush.
    pub queued: bool,
    /// True if the mux port is in the queue for a turn.
    pub in_turns: bool,
    /// The time until which the mux port waits for its rate: its rate limits allow no turn before
    /// this time. `None` if the port does not wait.
    pub waits_until: Option<Instant>,
    /// The rate limits of the mux port. `None` without a limit. The limiter is in a box, so that a
    /// turn of a port without a limit tests only one pointer.
    limiter: Option<Box<RateLimiter>>,
}

impl<P: PortEnd> Port<P> {
    /// Makes a mux port without a rate limit. `io` is the mux's end of the port's packet rings.
    pub fn new(io: P) -> Self {
        Self {
            io,
            counters: PortCounters::default(),
            queued: false,
            in_turns: false,
            waits_until: None,
            limiter: None,
        }
    }

    /// Sets the limits of the rate at which the mux port sends.
    pub fn set_rate(&mut self, rate: SendRate) {
        let limiter = RateLimiter::new(rate);
        self.limiter = (!limiter.is_unlimited()).then(|| Box::new(limiter));
    }

    /// Returns the rate limits of the mux port.
    pub fn rate(&self) -> SendRate {
        self.limiter
            .as_ref()
            .map_or(SendRate::default(), |limiter| limiter.rate())
    }

    /// Returns true if the program has sent frames that the mux has not taken yet, and the mux port
    /// does not wait for its rate.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.waits_until.is_none() && self.io.has_frames()
    }

    /// Returns true if the rate of the mux port has a limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.limiter.is_some()
    }

    /// Returns the largest number of frames, at most `max`, for a turn at `now`. If the rate allows
    /// no turn yet, makes the mux port wait, and returns the end of the wait as the error.
    #[inline]
    pub fn begin_turn(&mut self, now: Instant, max: usize) -> Result<usize, Instant> {
        let Some(limiter) = &self.limiter else {
            return Ok(max);
        };
        let due = limiter.due();
        if due > now {
            let due = due + WAIT_MIN;
            self.waits_until = Some(due);
            self.counters.delays += 1;
            return Err(due);
        }
        Ok(limiter.packets_in_turn(now, max))
    }

    /// Charges the rate limits for the packets of a turn. Returns true if the mux port has a limit
    /// and has more frames.
    #[cold]
    pub fn end_turn(&mut self, now: Instant, sent: Amount) -> bool {
        let Some(limiter) = &mut self.limiter else {
            return false;
        };
        limiter.pay(now, sent);
        self.io.has_frames()
    }

    /// Copies a received packet to the mux port's packet ring. Returns true if the caller must
    /// queue the port for a flush, and false if the port is already queued.
    #[inline]
    pub fn give(&mut self, frame: &[u8]) -> bool {
        if copy_to(&mut self.io, frame) {
            self.counters.received += 1;
        } else {
            self.counters.overruns += 1;
        }
        !std::mem::replace(&mut self.queued, true)
    }
}
