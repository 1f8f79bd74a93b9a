//! RACK (RFC 8985 §6): a segment counts as lost if another segment was sent sufficiently later and
//! has arrived.

use crate::scoreboard::{Scoreboard, Sent};

/// DupThresh, which is also the initial reordering degree in segments.
pub(crate) const DUP_THRESH: u64 = 3;
/// Linux's upper bound of the reordering degree, in segments.
const REORDERING_MAX: u64 = 300;
/// Largest reordering window, in quarters of the smallest round-trip time.
const STEPS_MAX: u64 = 255;
/// A widened reordering window returns to its initial size after this number of recoveries without
/// a DSACK.
const PERSIST: u32 = 16;

/// State of RACK. Times are in microseconds.
#[derive(Debug)]
pub(crate) struct Rack {
    /// Highest transmission number of the segments that have arrived (RACK.xmit_ts). The sender
    /// numbers all its transmissions in order. The model compares these numbers instead of send
    /// times, because two transmissions may have equal times.
    latest: u64,
    /// Round-trip time of the segment whose arrival was processed most recently (RACK.rtt).
    pub(crate) rtt: u64,
    /// True if loss detection has to run again.
    pub(crate) advanced: bool,
    /// True if the connection has seen reordering.
    pub(crate) reordering_seen: bool,
    /// Reordering degree in segments: the largest distance so far of a late segment from the
    /// highest SACKed segment. Starts at [`DUP_THRESH`].
    pub(crate) reordering: u64,
    /// True if a DSACK has arrived since the last update of the reordering window. A DSACK for a
    /// tail loss probe does not count.
    pub(crate) dsack_seen: bool,
    /// Reordering window in quarters of the smallest round-trip time (RACK.reo_wnd_mult).
    reo_wnd_steps: u64,
    /// Number of recoveries until the reordering window returns to its initial size
    /// (RACK.reo_wnd_persist).
    pub(crate) reo_wnd_persist: u32,
    /// Number of segments that had been delivered when the reordering window was last widened.
    last_delivered: u64,
}

/// Inputs of the reordering window. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowInputs {
    /// True in Recovery and Loss.
    pub(crate) recovering: bool,
    /// Number of SACKed segments.
    pub(crate) sacked: u64,
    pub(crate) rtt_min: u64,
    pub(crate) srtt: f64,
}

impl Rack {
    pub(crate) const fn new() -> Self {
        Self {
            latest: 0,
            rtt: 0,
            advanced: false,
            reordering_seen: false,
            reordering: DUP_THRESH,
            dsack_seen: false,
            reo_wnd_steps: 1,
            reo_wnd_persist: 0,
            last_delivered: 0,
        }
    }

    /// Updates the state after the segment `sent` has arrived (RFC 8985 §6.2 step 2).
    pub(crate) fn advance(&mut self, now: u64, sent: &Sent, rtt_min: u64) {
        let rtt = now - sent.at;
        if rtt < rtt_min && sent.retrans {
            // The original transmission has arrived, not the retransmission.
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        self.latest = self.latest.max(sent.order);
    }

    /// Records that segment `seq` arrived after a higher segment (RFC 8985 §6.2 step 3). `high` is
    /// the sequence number after the highest SACKed segment. Records nothing if `high` is not above
    /// `seq`.
    pub(crate) fn note_reordering(&mut self, seq: u64, high: u64) {
        if seq < high {
            let extent = (high - seq).min(REORDERING_MAX);
            self.reordering = self.reordering.max(extent);
            self.reordering_seen = true;
        }
    }

    /// Returns the reordering window in microseconds (RFC 8985 §6.2 step 4).
    pub(crate) fn reo_wnd(&self, inputs: &WindowInputs) -> u64 {
        let enough = inputs.recovering || inputs.sacked >= self.reordering;
        if !self.reordering_seen && enough {
            return 0;
        }
        (inputs.rtt_min / 4 * self.reo_wnd_steps).min(inputs.srtt as u64)
    }

    /// Widens the reordering window after a DSACK, at most once per round trip (RFC 8985 §6.2 step
    /// 4). If no DSACK has arrived and `reo_wnd_persist` is 0, resets the reordering window.
    ///
    /// `delivered` is the number of segments delivered so far. Let S be the most recently sent
    /// segment that the current ACK newly ACKs or SACKs. `prior` is the number of segments that had
    /// been delivered when S was sent. `prior` is `None` if the ACK newly ACKs or SACKs no segment.
    pub(crate) fn update_reo_wnd(&mut self, prior: Option<u64>, delivered: u64) {
        let Some(prior) = prior else {
            return;
        };
        if prior < self.last_delivered {
            self.dsack_seen = false;
        }
        if std::mem::take(&mut self.dsack_seen) {
            self.reo_wnd_steps = (self.reo_wnd_steps + 1).min(STEPS_MAX);
            (self.last_delivered, self.reo_wnd_persist) = (delivered, PERSIST);
        } else if self.reo_wnd_persist == 0 {
            self.reo_wnd_steps = 1;
        }
    }

    /// Marks lost segments (RFC 8985 §6.2 step 5). `window` is the reordering window in
    /// microseconds. Considers only the segments that were sent before a segment that has arrived.
    /// Returns the time in microseconds until all these segments count as lost, or `None` if the
    /// function waits for none of them.
    pub(crate) fn detect_loss(
        &self,
        scoreboard: &mut Scoreboard,
        now: u64,
        window: u64,
    ) -> Option<u64> {
        let mut lost = Vec::new();
        let mut wait = None;
        for (seq, sent) in scoreboard.by_transmission() {
            if sent.lost && !sent.retrans {
                continue;
            }
            if sent.order >= self.latest {
                break;
            }
            match (sent.at + self.rtt + window).checked_sub(now) {
                Some(left @ 1..) => wait = wait.max(Some(left)),
                _ => lost.push(seq),
            }
        }
        lost.into_iter().for_each(|seq| scoreboard.mark_lost(seq));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(sacked: u64) -> WindowInputs {
        WindowInputs {
            recovering: false,
            sacked,
            rtt_min: 1_000,
            srtt: 1_100.0,
        }
    }

    /// Sends segments 0 to 4, 10 us apart. Only segment 4 arrives.
    fn five() -> (Scoreboard, Rack) {
        let (mut scoreboard, mut rack) = (Scoreboard::default(), Rack::new());
        for n in 0..5 {
            scoreboard.send(10 * n, 0);
        }
        let sent = scoreboard.sack(4).expect("newly SACKed");
        rack.advance(1_040, &sent, 1_000);
        (scoreboard, rack)
    }

    #[test]
    fn the_reordering_window_is_zero_after_three_sacks() {
        let (mut scoreboard, rack) = five();
        let window = rack.reo_wnd(&inputs(1));
        assert_eq!(window, 250);
        assert_eq!(rack.detect_loss(&mut scoreboard, 1_040, window), Some(240));
        assert_eq!(scoreboard.lost, 0);
        assert_eq!(rack.reo_wnd(&inputs(3)), 0);
        assert_eq!(rack.detect_loss(&mut scoreboard, 1_040, 0), None);
        assert_eq!((scoreboard.lost, scoreboard.in_flight()), (4, 0));
    }

    #[test]
    fn a_retransmission_is_lost_when_a_segment_sent_later_arrives() {
        let (mut scoreboard, mut rack) = five();
        rack.detect_loss(&mut scoreboard, 1_040, 0);
        scoreboard.retransmit(0, 1_050, 1);
        scoreboard.retransmit(1, 1_051, 1);
        assert_eq!(scoreboard.next_lost(), Some(2));
        let sent = scoreboard.sack(1).expect("newly SACKed");
        rack.advance(2_051, &sent, 1_000);
        rack.detect_loss(&mut scoreboard, 2_051, 0);
        assert_eq!(
            (scoreboard.retrans_out, scoreboard.next_lost()),
            (0, Some(0))
        );
    }

    #[test]
    fn reordering_and_duplicates_widen_the_window_up_to_srtt() {
        let (_, mut rack) = five();
        rack.note_reordering(0, 7);
        assert_eq!((rack.reordering, rack.reo_wnd(&inputs(9))), (7, 250));
        for delivered in 1..9 {
            rack.dsack_seen = true;
            rack.update_reo_wnd(Some(delivered), delivered);
        }
        assert_eq!(rack.reo_wnd(&inputs(9)), 1_100);
        rack.reo_wnd_persist = 0;
        rack.update_reo_wnd(Some(9), 9);
        assert_eq!(rack.reo_wnd(&inputs(9)), 250);
    }
}
