//! RACK (RFC 8985 §6): what is lost because something sent later has arrived.

use crate::board::{Board, Sent};

/// DupThresh, and what a path is taken to reorder by until it shows more.
pub(crate) const DUP_THRESH: u64 = 3;
/// Linux' bound of that.
const REORDERING_MAX: u64 = 300;
/// Steps of a quarter round trip.
const STEPS_MAX: u64 = 255;
/// Recoveries until a widened window is forgotten.
const PERSIST: u32 = 16;

#[derive(Debug)]
pub(crate) struct Rack {
    /// Which transmission the latest-sent of what has arrived was. Between two of them a kernel's
    /// clock moves; here it may not.
    latest: u64,
    pub(crate) rtt: u64,
    pub(crate) advanced: bool,
    pub(crate) reordering_seen: bool,
    /// Segments.
    pub(crate) reordering: u64,
    pub(crate) dsack_seen: bool,
    steps: u64,
    pub(crate) persist: u32,
    /// Delivered when the window was last widened.
    last_delivered: u64,
}

/// What the reordering window depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grace {
    pub(crate) repairing: bool,
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
            steps: 1,
            persist: 0,
            last_delivered: 0,
        }
    }

    /// §6.2 step 2: `sent` has arrived.
    pub(crate) fn advance(&mut self, now: u64, sent: &Sent, rtt_min: u64) {
        let rtt = now - sent.at;
        if rtt < rtt_min && sent.again {
            // The first one has arrived, not this.
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        self.latest = self.latest.max(sent.order);
    }

    /// §6.2 step 3: what begins at `seq` came late, and `high` was the farthest that had come.
    pub(crate) fn note_reordering(&mut self, seq: u64, high: u64) {
        if seq < high {
            let extent = (high - seq).min(REORDERING_MAX);
            self.reordering = self.reordering.max(extent);
            self.reordering_seen = true;
        }
    }

    /// §6.2 step 4: how much later than in order a segment may come.
    pub(crate) fn window(&self, grace: &Grace) -> u64 {
        let enough = grace.repairing || grace.sacked >= self.reordering;
        if !self.reordering_seen && enough {
            return 0;
        }
        (grace.rtt_min / 4 * self.steps).min(grace.srtt as u64)
    }

    /// §6.2 step 4: a DSACK widens the window, once per round trip. `prior` is what had been
    /// delivered when the latest-sent of what has now arrived was sent.
    pub(crate) fn widen(&mut self, prior: Option<u64>, delivered: u64) {
        let Some(prior) = prior else {
            return;
        };
        if prior < self.last_delivered {
            self.dsack_seen = false;
        }
        if std::mem::take(&mut self.dsack_seen) {
            self.steps = (self.steps + 1).min(STEPS_MAX);
            (self.last_delivered, self.persist) = (delivered, PERSIST);
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// §6.2 step 5: marks what is lost. Returned is in how many microseconds more may be.
    pub(crate) fn find_lost(&self, board: &mut Board, now: u64, window: u64) -> Option<u64> {
        let mut lost = Vec::new();
        let mut wait = None;
        for (seq, sent) in board.by_transmission() {
            if sent.lost && !sent.again {
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
        lost.into_iter().for_each(|seq| board.lose(seq));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grace(sacked: u64) -> Grace {
        Grace {
            repairing: false,
            sacked,
            rtt_min: 1_000,
            srtt: 1_100.0,
        }
    }

    /// Five segments, 10 us apart; the last arrives.
    fn five() -> (Board, Rack) {
        let (mut board, mut rack) = (Board::default(), Rack::new());
        for n in 0..5 {
            board.send(10 * n, 0);
        }
        let sent = board.sack(4).expect("news");
        rack.advance(1_040, &sent, 1_000);
        (board, rack)
    }

    #[test]
    fn before_three_reports_a_quarter_round_trip_of_grace_and_none_after() {
        let (mut board, rack) = five();
        let window = rack.window(&grace(1));
        assert_eq!(window, 250);
        assert_eq!(rack.find_lost(&mut board, 1_040, window), Some(240));
        assert_eq!(board.lost, 0);
        assert_eq!(rack.window(&grace(3)), 0);
        assert_eq!(rack.find_lost(&mut board, 1_040, 0), None);
        assert_eq!((board.lost, board.in_flight()), (4, 0));
    }

    #[test]
    fn what_was_sent_again_is_lost_when_something_sent_later_has_arrived() {
        let (mut board, mut rack) = five();
        rack.find_lost(&mut board, 1_040, 0);
        board.send_again(0, 1_050, 1);
        board.send_again(1, 1_051, 1);
        assert_eq!(board.next_lost(), Some(2));
        let sent = board.sack(1).expect("news");
        rack.advance(2_051, &sent, 1_000);
        rack.find_lost(&mut board, 2_051, 0);
        assert_eq!((board.again, board.next_lost()), (0, Some(0)));
    }

    #[test]
    fn reordering_and_duplicates_widen_the_window_up_to_srtt() {
        let (_, mut rack) = five();
        rack.note_reordering(0, 7);
        assert_eq!((rack.reordering, rack.window(&grace(9))), (7, 250));
        for delivered in 1..9 {
            rack.dsack_seen = true;
            rack.widen(Some(delivered), delivered);
        }
        assert_eq!(rack.window(&grace(9)), 1_100);
        rack.persist = 0;
        rack.widen(Some(9), 9);
        assert_eq!(rack.window(&grace(9)), 250);
    }
}
