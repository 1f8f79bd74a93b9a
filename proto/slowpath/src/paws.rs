//! TS.Recent, and what its timestamp shows to be of an earlier turn of the sequence numbers
//! (RFC 7323 §4.3, §5).

use tidelane_flow::{Env, flags};
use tidelane_wire::{Segment, TcpFlags};

use crate::Slow;

/// By how many ticks of the peer's clock a timestamp may be older than TS.Recent (Linux:
/// TCP_PAWS_WINDOW). What a path reorders within a tick is not from an earlier turn.
const WINDOW: i32 = 1;

impl<E: Env> Slow<'_, E> {
    /// Whether PAWS refuses `segment` (§5.3 R1); a RST it never does (§5.2).
    pub(crate) fn is_from_before(&self, segment: &Segment<'_>) -> bool {
        let Some(t) = segment.options.timestamps else {
            return false;
        };
        self.hot.has(flags::TIMESTAMPS)
            && !segment.flags.contains(TcpFlags::RST)
            && self.behind(t.tsval) > WINDOW
            && !self.is_ts_recent_old()
    }

    /// TS.Recent (§4.3, R3): only from a segment that is next in order or before, and, as in Linux,
    /// only once its ACK was found good. Else a guessed sequence number would be enough to have all
    /// later segments of the peer refused as old.
    pub(crate) fn note_timestamp(&mut self, segment: &Segment<'_>) {
        if self.hot.has(flags::TIMESTAMPS)
            && let Some(t) = segment.options.timestamps
            && segment.seq.at_or_before(self.hot.last_ack_sent)
            && !(1..=WINDOW).contains(&self.behind(t.tsval))
        {
            self.hot.ts_recent = t.tsval;
        }
    }

    /// Ticks by which `tsval` is older than TS.Recent.
    fn behind(&self, tsval: u32) -> i32 {
        self.hot.ts_recent.wrapping_sub(tsval) as i32
    }
}
