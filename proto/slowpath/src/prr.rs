//! Proportional rate reduction (RFC 6937, RFC 9937). While cwnd is being reduced, the data that an
//! ACK delivers (acknowledges or SACKs) determines how much may be sent next, so that the flow
//! (connection) neither stalls nor sends bursts.

use tidelane_flow::{CaState, Driver};

use crate::SlowPath;

/// The variables of RFC 6937 §3, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Prr {
    /// RecoverFS: FlightSize when the reduction began.
    recover_fs: u32,
    /// prr_delivered: bytes delivered since the reduction began.
    delivered: u64,
    /// prr_out: bytes sent or retransmitted since the reduction began.
    out: u64,
}

impl Prr {
    /// Starts a reduction with `flight_size` bytes in flight.
    pub fn begin(flight_size: u32) -> Self {
        Self {
            recover_fs: flight_size.max(1),
            delivered: 0,
            out: 0,
        }
    }

    /// Returns the number of bytes that may be sent after an ACK that delivered `acked` bytes (RFC
    /// 6937 §3). All arguments are in bytes. If SND.UNA advanced and no further loss was found,
    /// `safe_bonus` is the size of one segment (slow start reduction bound). Otherwise `safe_bonus`
    /// is `None` (conservative reduction bound).
    fn send_count(&self, acked: u32, pipe: u32, ssthresh: u32, safe_bonus: Option<u32>) -> u32 {
        let count = if pipe > ssthresh {
            let share = self.delivered * u64::from(ssthresh);
            share
                .div_ceil(u64::from(self.recover_fs))
                .saturating_sub(self.out)
        } else {
            let conserved = self
                .delivered
                .saturating_sub(self.out)
                .max(u64::from(acked));
            let limit = conserved + u64::from(safe_bonus.unwrap_or(0));
            limit.min(u64::from(ssthresh - pipe))
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if cwnd is being reduced: the sender is in Recovery or CWR.
    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.cold.ca_state, CaState::Recovery | CaState::Cwr)
    }

    /// Updates cwnd for an ACK that delivered `delivered` bytes during a reduction. `advanced` is
    /// true if SND.UNA advanced. `more_lost` is true if more data was marked lost.
    pub(crate) fn reduce(&mut self, delivered: u32, advanced: bool, more_lost: bool) {
        let mss = u32::from(self.hot.mss);
        let (pipe, ssthresh) = (self.pipe(), self.cold.controller.ssthresh());
        let Some(prr) = self.cold.prr.as_mut().filter(|_| delivered > 0) else {
            return;
        };
        prr.delivered += u64::from(delivered);
        let bonus = (advanced && !more_lost).then_some(mss);
        let mut count = prr.send_count(delivered, pipe, ssthresh, bonus);
        if prr.out == 0 {
            // The first transmission of the reduction, such as the fast retransmission, does not
            // wait for further deliveries.
            count = count.max(mss);
        }
        self.hot.cwnd = pipe.saturating_add(count);
    }

    /// Accounts for `len` bytes that were sent or retransmitted.
    pub(crate) fn charge_pacing_and_prr(&mut self, len: u32) {
        self.note_paced(len);
        if let Some(prr) = &mut self.cold.prr {
            prr.out += u64::from(len);
        }
    }

    /// Ends the reduction and also F-RTO, the test for spurious timeouts (RFC 5682). Sets cwnd to
    /// the window of the congestion control.
    pub(crate) fn end_reduction(&mut self) {
        self.cold.prr = None;
        self.cold.frto = crate::frto::Frto::Off;
        self.hot.cwnd = self.cold.controller.cwnd();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// RFC 6937 §3.1: the reduction begins with twenty segments in flight, and ssthresh is ten
    /// segments. One segment is sent for every two delivered segments.
    #[test]
    fn section_3_1_proportional_while_more_than_ssthresh_is_in_flight() {
        let mut prr = Prr::begin(20 * MSS);
        let mut sent = 0;
        for arrived in 1..=10 {
            prr.delivered += u64::from(MSS);
            let pipe = 20 * MSS - arrived * MSS + sent;
            let count = prr.send_count(MSS, pipe, 10 * MSS, None) / MSS * MSS;
            prr.out += u64::from(count);
            sent += count;
            assert_eq!(sent, arrived / 2 * MSS, "after {arrived}");
        }
    }

    #[test]
    fn section_3_1_below_ssthresh_packets_are_conserved_or_slow_start_fills_up() {
        let mut prr = Prr::begin(20 * MSS);
        prr.delivered = 3 * u64::from(MSS);
        prr.out = 2 * u64::from(MSS);
        // After heavy losses, little data is in flight.
        assert_eq!(prr.send_count(MSS, 2 * MSS, 10 * MSS, None), MSS);
        assert_eq!(prr.send_count(MSS, 2 * MSS, 10 * MSS, Some(MSS)), 2 * MSS);
        // The window does not exceed ssthresh.
        assert_eq!(prr.send_count(5 * MSS, 9 * MSS, 10 * MSS, Some(MSS)), MSS);
    }
}
