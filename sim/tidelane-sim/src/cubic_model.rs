//! An ideal CUBIC: the window of RFC 9438, without a protocol around it.
//!
//! The model has one flow. In [`simulate`], the flow has a fixed round-trip time, independent loss
//! of each packet, and no other limit. In [`mean_round_trip`], only the queue of a bottleneck
//! limits the flow. The sender notices a loss after one round-trip time and repairs the loss at no
//! cost. Between losses, the window follows the functions of the RFC. A real sender is slower than
//! this model because of loss recovery, timeouts and late ACKs.

use tidelane_netem::Rng;

/// The constants C and beta_cubic (RFC 9438 §4.1.1, §4.6).
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// Growth of the Reno-friendly window per round-trip time, in segments (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Returns the average window in segments by the response function of RFC 9438 §5.1. `p` is the
/// loss probability, and `rtt` is in seconds. The result is at least the average window of Reno.
pub fn response(p: f64, rtt: f64) -> f64 {
    let factor = (C * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25);
    let cubic = factor * rtt.powf(0.75) / p.powf(0.75);
    let reno = (1.5 / p).sqrt();
    cubic.max(reno)
}

/// A sender in congestion avoidance. Windows are in segments.
struct Sender {
    cwnd: f64,
    /// W_max: the window before the most recent reduction, or less after fast convergence (RFC 9438
    /// §4.7). Before the first reduction, the window at the start of congestion avoidance.
    w_max: f64,
    /// Window of the Reno-friendly region (RFC 9438 §4.3).
    w_est: f64,
    /// Seconds since the most recent reduction. Before the first reduction, seconds since the start
    /// of congestion avoidance.
    since: f64,
    /// K: seconds from a reduction until the window is W_max again (RFC 9438 §4.2).
    k: f64,
}

impl Sender {
    /// Reduces the window (RFC 9438 §4.6, §4.7).
    fn reduce(&mut self) {
        self.w_max = if self.cwnd < self.w_max {
            self.cwnd * (1.0 + BETA) / 2.0
        } else {
            self.cwnd
        };
        self.cwnd = (self.cwnd * BETA).max(2.0);
        self.w_est = self.cwnd;
        self.k = ((self.w_max - self.cwnd).max(0.0) / C).cbrt();
        self.since = 0.0;
    }

    /// Grows the window for one round-trip time without loss. `rtt` is in seconds.
    fn grow(&mut self, rtt: f64) {
        self.since += rtt;
        let cubic = C * (self.since - self.k).powi(3) + self.w_max;
        self.w_est += if self.w_est < self.w_max { ALPHA } else { 1.0 };
        // The window grows by at most half of its size per round-trip time (RFC 9438 §4.2).
        let target = cubic.clamp(self.cwnd, 1.5 * self.cwnd);
        self.cwnd = target.max(self.w_est);
    }
}

/// Returns the average window of an ideal sender over `rounds` round-trip times, in segments. `p`
/// is the loss probability, and `rtt` is in seconds.
pub fn simulate(p: f64, rtt: f64, rounds: u32, seed: u64) -> f64 {
    let mut rng = Rng::new(seed);
    let mut sender = Sender {
        cwnd: response(p, rtt),
        w_max: response(p, rtt),
        w_est: 0.0,
        since: 0.0,
        k: 0.0,
    };
    let ppm = (p * 1e6).round() as u32;
    let mut lost = false;
    let mut sum = 0.0;
    for _ in 0..rounds {
        if lost {
            sender.reduce();
        } else {
            sender.grow(rtt);
        }
        sum += sender.cwnd;
        let reduced = std::mem::take(&mut lost);
        for _ in 0..sender.cwnd as u64 {
            // Further losses in the round of a reduction belong to the same congestion event.
            lost |= rng.chance_ppm(ppm) && !reduced;
        }
    }
    sum / f64::from(rounds)
}

/// A bottleneck and the path through it.
#[derive(Clone, Copy)]
pub struct Bottleneck {
    /// Transmission time of a packet at the bottleneck, in seconds.
    pub packet_s: f64,
    /// Round-trip time of the path while the queue is empty, in seconds.
    pub rtt_s: f64,
    /// Capacity of the queue in packets.
    pub queue: f64,
}

/// Initial window in segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;

/// Returns the mean round-trip time in seconds of an ideal sender that only a queue limits. The
/// mean is over the round trips that start between the times `after` and `until`. Both times are in
/// seconds after the start of the flow.
///
/// The sender leaves slow start at the first loss or, like Linux's HyStart, when the round-trip
/// time has increased enough. The necessary increase is an eighth of the round-trip time with an
/// empty queue, but at least 4 ms and at most 16 ms.
pub fn mean_round_trip(path: Bottleneck, after: f64, until: f64) -> f64 {
    let waiting = |cwnd: f64| (cwnd - path.rtt_s / path.packet_s).clamp(0.0, path.queue);
    let longer = (path.rtt_s / 8.0).clamp(0.004, 0.016);
    let mut sender = Sender {
        cwnd: INITIAL_WINDOW,
        w_max: 0.0,
        w_est: 0.0,
        since: 0.0,
        k: 0.0,
    };
    let (mut starting, mut now, mut sum, mut rounds) = (true, 0.0, 0.0, 0u32);
    while now < until {
        let rtt = path.rtt_s + waiting(sender.cwnd) * path.packet_s;
        if now >= after {
            sum += rtt;
            rounds += 1;
        }
        now += rtt;
        let lost = sender.cwnd > path.rtt_s / path.packet_s + path.queue;
        if lost {
            starting = false;
            sender.reduce();
        } else if starting && rtt < path.rtt_s + longer {
            sender.cwnd *= 2.0;
        } else {
            if std::mem::take(&mut starting) {
                // After slow start without a loss, congestion avoidance begins with the current
                // window as W_max (RFC 9438 §4.10).
                (sender.w_max, sender.w_est) = (sender.cwnd, sender.cwnd);
            }
            sender.grow(rtt);
        }
    }
    sum / f64::from(rounds.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_function_gives_the_rfcs_table() {
        // The expected windows are from RFC 9438 table 2, for a round-trip time of 0.1 s.
        for (p, window) in [(1e-4, 187.0), (1e-5, 1054.0), (1e-6, 5926.0)] {
            let ours = response(p, 0.1);
            assert!((ours - window).abs() / window < 0.01, "{p}: {ours}");
        }
    }

    #[test]
    fn a_deep_queue_is_filled_and_a_shallow_one_bounds_the_round_trip() {
        let path = |queue| Bottleneck {
            packet_s: 0.001,
            rtt_s: 0.04,
            queue,
        };
        // The window varies between 70 % and 100 % of the capacity of path and queue together.
        let deep = mean_round_trip(path(1000.0), 60.0, 300.0);
        assert!((0.73..1.04).contains(&deep), "{deep}");
        let shallow = mean_round_trip(path(10.0), 60.0, 300.0);
        assert!((0.04..0.05).contains(&shallow), "{shallow}");
    }

    #[test]
    fn the_simulated_sender_is_near_the_response_function() {
        let (p, rtt) = (1e-4, 0.1);
        let ratio = simulate(p, rtt, 200_000, 1) / response(p, rtt);
        assert!((0.8..1.2).contains(&ratio), "{ratio}");
    }
}
