//! PAWS (RFC 7323 §5) rejects segments from before a wrap of the sequence numbers, by their
//! timestamps. PAWS compares the timestamp of a segment with TS.Recent, an earlier timestamp of the
//! peer (§4.3). This file also updates TS.Recent.

use tidelane_flow::{Driver, flags};
use tidelane_wire::{Segment, TcpFlags};

use crate::SlowPath;

/// Number of ticks by which a timestamp may be older than TS.Recent (Linux: TCP_PAWS_WINDOW), so
/// that PAWS accepts segments that the path has reordered.
const WINDOW: i32 = 1;

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if PAWS rejects `segment` (§5.3 R1). PAWS rejects no RST (§5.2), no segment
    /// without timestamps, and no segment while TS.Recent is outdated (§5.5).
    pub(crate) fn fails_paws(&self, segment: &Segment<'_>) -> bool {
        let Some(t) = segment.options.timestamps else {
            return false;
        };
        self.hot.has(flags::TIMESTAMPS)
            && !segment.flags.contains(TcpFlags::RST)
            && self.ticks_behind(t.tsval) > WINDOW
            && !self.is_ts_recent_old()
    }

    /// Updates TS.Recent (§4.3, R3) from a segment that starts at or before Last.ACK.sent. The
    /// caller has checked the ACK, as in Linux: otherwise a segment with a guessed sequence number
    /// could make PAWS reject all later segments of the peer. A timestamp that is one tick older
    /// than TS.Recent does not replace TS.Recent. An even older timestamp replaces TS.Recent,
    /// because PAWS accepts its segment only if TS.Recent is outdated.
    pub(crate) fn note_timestamp(&mut self, segment: &Segment<'_>) {
        if self.hot.has(flags::TIMESTAMPS)
            && let Some(t) = segment.options.timestamps
            && segment.seq.at_or_before(self.hot.last_ack_sent)
            && !(1..=WINDOW).contains(&self.ticks_behind(t.tsval))
        {
            self.hot.ts_recent = t.tsval;
        }
    }

    /// Returns the ticks by which `tsval` is older than TS.Recent; negative if `tsval` is newer.
    fn ticks_behind(&self, tsval: u32) -> i32 {
        self.hot.ts_recent.wrapping_sub(tsval) as i32
    }

    /// Returns true if the segment, which answers our SYN, echoes a timestamp from before the
    /// creation of the flow (connection) or from the future. None of our SYNs carried this
    /// timestamp. The segment then belongs to an earlier connection (as in Linux).
    pub(crate) fn echoes_foreign_timestamp(&self, segment: &Segment<'_>) -> bool {
        let echo = segment.options.timestamps.filter(|t| t.tsecr != 0);
        let age = |tsecr| self.clock.ms.0.wrapping_sub(tsecr);
        let oldest = age(self.cold.last_arrival.0);
        self.config.timestamps && echo.is_some_and(|t| age(t.tsecr) > oldest)
    }
}
